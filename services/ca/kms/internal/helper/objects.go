package helper

import (
	"bytes"
	"slices"

	"fairlead.dev/services/ca/internal/signer/keys/kms/wire"
)

// class is the class of an object of PKCS#11, as far as keys of the ca can have it.
type class string

const (
	privateKey class = "private key"
	publicKey  class = "public key"
	secretKey  class = "secret key"
)

// object is one of those that have the label of a key.
type object struct {
	class  class
	id     []byte
	handle uint
}

// chooseKey returns the id of the one key pair among the objects of a label.
func chooseKey(label string, objects []object) ([]byte, error) {
	var private, public, others []object
	for _, o := range objects {
		switch o.class {
		case privateKey:
			private = append(private, o)
		case publicKey:
			public = append(public, o)
		default:
			others = append(others, o)
		}
	}
	switch {
	case len(private) > 1:
		return nil, wire.Errorf(wire.Refused, "the token has %d private keys with the label %q; delete those that are not the ca's "+
			"(pkcs11-tool --delete-object --type privkey --id ID)", len(private), label)
	case len(private) == 1 && len(private[0].id) == 0:
		return nil, wire.Errorf(wire.Refused, "the private key with the label %q has no CKA_ID; give it and its public key one "+
			"(pkcs11-tool --set-id)", label)
	case len(private) == 1:
		matches := func(o object) bool { return bytes.Equal(o.id, private[0].id) }
		if !slices.ContainsFunc(public, matches) {
			return nil, wire.Errorf(wire.Refused, "the private key with the label %q has no public key of the same label and CKA_ID; "+
				"write it to the token, or delete the key to get a new one", label)
		}
		return private[0].id, nil
	case len(public) > 0:
		return nil, wire.Errorf(wire.Refused, "the token has a public key with the label %q, without a private key; delete it", label)
	case len(others) > 0:
		return nil, wire.Errorf(wire.Refused, "the object with the label %q is of another kind, a %s; rename it, or set another prefix", label,
			others[0].class)
	}
	return nil, wire.Errorf(wire.NoKey, "the token has no key with the label %q", label)
}
