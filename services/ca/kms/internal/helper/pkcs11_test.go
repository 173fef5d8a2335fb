//go:build cgo

package helper

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/pkcs11"

	"fairlead.dev/services/ca/internal/signer/keys/kms/wire"
)

// What a token says of its PIN decides whether the ca tries one.
func TestPINIsNotTriedWhenItCouldLockTheToken(t *testing.T) {
	const usual = pkcs11.CKF_LOGIN_REQUIRED | pkcs11.CKF_USER_PIN_INITIALIZED
	for name, tc := range map[string]struct {
		flags uint
		file  string
		says  string
	}{
		"usual":                {usual, "/pin", ""},
		"after one wrong PIN":  {usual | pkcs11.CKF_USER_PIN_COUNT_LOW, "/pin", ""},
		"one attempt left":     {usual | pkcs11.CKF_USER_PIN_FINAL_TRY, "/pin", "one more wrong PIN locks the token"},
		"locked":               {usual | pkcs11.CKF_USER_PIN_LOCKED | pkcs11.CKF_USER_PIN_FINAL_TRY, "/pin", "has locked the PIN"},
		"no PIN set":           {pkcs11.CKF_LOGIN_REQUIRED, "/pin", "has no PIN yet"},
		"no file":              {usual, "", "pinFile: is required"},
		"no login, and a file": {0, "/pin", ""},
		"no login, no file":    {0, "", ""},
	} {
		err := checkPIN(&wire.Store{PINFile: tc.file}, tc.flags)
		if (err == nil) != (tc.says == "") || err != nil && (err.Code != wire.Refused || !strings.Contains(err.Text, tc.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestErrorsOfTokens(t *testing.T) {
	s := &wire.Store{PINFile: "/pin"}
	for code, says := range map[uint]string{
		pkcs11.CKR_PIN_INCORRECT: "refused the PIN", pkcs11.CKR_PIN_LEN_RANGE: "refused the PIN", pkcs11.CKR_PIN_LOCKED: "locked the PIN",
		pkcs11.CKR_PIN_EXPIRED: "has expired",
	} {
		err := explainLogin(s, []byte("digest"), fmt.Errorf("log in: %w", pkcs11.Error(code)))
		if err.Code != wire.Refused || string(err.RefusedPIN) != "digest" || !strings.Contains(err.Text, says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	for err, want := range map[error]wire.Code{
		pkcs11.Error(pkcs11.CKR_DEVICE_REMOVED): wire.Away, errors.New("could not find PKCS#11 token"): wire.Away,
	} {
		if got := explainLogin(s, nil, err); got.Code != want {
			t.Errorf("%v: %v", err, got)
		}
	}
	var of *token
	for err, want := range map[error]wire.Code{
		pkcs11.Error(pkcs11.CKR_SESSION_HANDLE_INVALID): wire.Lost, pkcs11.Error(pkcs11.CKR_USER_NOT_LOGGED_IN): wire.Lost,
		pkcs11.Error(pkcs11.CKR_MECHANISM_INVALID): wire.Refused, errors.New("unsupported key type"): wire.Refused,
		fmt.Errorf("x: %w", wire.Errorf(wire.NoKey, "none")): wire.NoKey,
	} {
		if got := of.explain(err); got.Code != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}
