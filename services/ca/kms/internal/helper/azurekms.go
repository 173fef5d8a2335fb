//go:build azurekms

package helper

import (
	"go.step.sm/crypto/kms/apiv1"
	_ "go.step.sm/crypto/kms/azurekms" // registers itself
)

func openAzureKMS() opener { return openCloud(apiv1.AzureKMS) }
