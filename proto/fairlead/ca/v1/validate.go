// Package cav1 is the contract of trust: bundles, the record of what was issued, and signers.
package cav1

import "errors"

// Validate checks that the subscriber is named; whether the first message of a stream names it is for the handler to
// see.
func (m *WatchBundleRequest) Validate() error {
	if len(m.GetSubscriber()) > 512 {
		return errors.New("subscriber: is longer than 512 bytes; use a short unique name")
	}
	return nil
}

// Validate checks that there is a credential, and whose it has to be; the ca verifies it.
func (m *ForwardCertificateRequestRequest) Validate() error {
	switch {
	case m.GetToken() == "":
		return errors.New("token: is empty; forward the bearer token that the workload sent")
	case m.GetIdentity() == "":
		return errors.New("identity: is empty; say whom the workload was authenticated as")
	case len(m.GetIdentity()) > 2048:
		return errors.New("identity: is longer than the 2048 bytes of a SPIFFE ID")
	case len(m.GetAddress()) > 256:
		return errors.New("address: is longer than 256 bytes")
	default:
		return nil
	}
}

// Validate checks that there is a key to certify and an identity to certify it for.
func (m *SignRequest) Validate() error {
	switch {
	case len(m.GetPublicKey()) == 0:
		return errors.New("public_key: is empty; send a PKIX DER key")
	case len(m.GetUriSans()) == 0:
		return errors.New("uri_sans: is empty; a certificate names exactly the identity it is for")
	case m.GetTtl().AsDuration() <= 0:
		return errors.New("ttl: must be positive")
	default:
		return nil
	}
}
