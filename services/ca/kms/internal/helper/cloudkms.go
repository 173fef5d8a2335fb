//go:build cloudkms

package helper

import (
	"go.step.sm/crypto/kms/apiv1"
	_ "go.step.sm/crypto/kms/cloudkms" // registers itself
)

func openCloudKMS() opener { return openCloud(apiv1.CloudKMS) }
