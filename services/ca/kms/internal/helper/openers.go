package helper

import "go.step.sm/crypto/kms/apiv1"

// openers are those of the stores that the program was built for: pkcs11 with cgo, and each cloud with the build tag of
// its name.
func openers() map[string]opener {
	known := map[string]opener{}
	for kind, open := range map[apiv1.Type]opener{
		apiv1.PKCS11: openPKCS11(), apiv1.AmazonKMS: openAmazonKMS(), apiv1.CloudKMS: openCloudKMS(), apiv1.AzureKMS: openAzureKMS(),
	} {
		if open != nil {
			known[string(kind)] = open
		}
	}
	return known
}
