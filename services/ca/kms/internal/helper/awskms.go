//go:build awskms

package helper

import (
	"go.step.sm/crypto/kms/apiv1"
	_ "go.step.sm/crypto/kms/awskms" // registers itself
)

func openAmazonKMS() opener { return openCloud(apiv1.AmazonKMS) }
