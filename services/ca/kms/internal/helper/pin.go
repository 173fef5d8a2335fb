package helper

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"io/fs"
	"strings"

	"fairlead.dev/services/ca/internal/private"
	"fairlead.dev/services/ca/internal/signer/keys/kms/wire"
)

// readPIN reads the PIN from its file, without the space around it. It returns an error for one that the token has
// refused, so that further attempts do not lock the token. digest is what the ca keeps of a refused one.
func readPIN(s *wire.Store) (pin string, digest []byte, err error) {
	if s.PINFile == "" {
		return "", nil, nil
	}
	text, err := private.ReadMounted(s.PINFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil, wire.Errorf(wire.Refused, "pinFile: %s does not exist; write the PIN of the token's user into it", s.PINFile)
	case err != nil:
		return "", nil, wire.Errorf(wire.Refused, "pinFile: %v", err)
	}
	pin = strings.TrimSpace(string(text))
	if pin == "" {
		return "", nil, wire.Errorf(wire.Refused, "pinFile: %s is empty; write the PIN of the token's user into it", s.PINFile)
	}
	mac := hmac.New(sha256.New, s.Salt)
	mac.Write([]byte(pin))
	digest = mac.Sum(nil)
	if hmac.Equal(digest, s.RefusedPIN) {
		return "", nil, refusedPIN(s, digest)
	}
	return pin, digest, nil
}

// refusedPIN is the error about a PIN that the token has refused.
func refusedPIN(s *wire.Store, digest []byte) *wire.Error {
	err := wire.Errorf(wire.Refused, "the token refused the PIN in %s; it is not tried again, because the token locks itself after some "+
		"attempts: write the right PIN into the file", s.PINFile)
	err.RefusedPIN = digest
	return err
}
