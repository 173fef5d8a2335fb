package kinds

import (
	"strings"
	"testing"
)

func TestKeysInAToken(t *testing.T) {
	const file = `{apiVersion: ca.fairlead.dev/v1, kind: Signer, name: hsm, intermediate: {selfSigned: {}, keys: {kms: KMS}}}`
	for keys, says := range map[string]string{
		"{type: pkcs11, uri: 'pkcs11:token=mesh', module: /m.so, pinFile: /pin, timeout: 2s}": "",
		"{type: pkcs11, uri: 'pkcs11:token=mesh'}":                                            "intermediate.keys.kms.module: is required",
		"{type: pkcs11, uri: 'pkcs11:token=mesh?pin-value=1234', module: /m.so}":              "intermediate.keys.kms.uri: has pin-value",
		"{type: pkcs11, uri: 'pkcs11:token=mesh', module: /m.so, pin: 1234}":                  "unknown field",
		"{type: awskms, uri: 'awskms:region=eu-west-1'}, directory: {dir: /var/lib/keys}":     "keys.kms: are set together",
	} {
		spec, err := Parse([]byte(strings.Replace(file, "KMS", keys, 1)))
		wrong := err != nil && (!strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "1234"))
		if (err == nil) != (says == "") || wrong {
			t.Errorf("%s: got %v, want %q", keys, err, says)
		}
		if err != nil {
			continue
		}
		opened, err := Open(spec, 1, Env{})
		if err != nil || !opened.Guard.Capabilities().Remote {
			t.Errorf("a token may hold workers of the ca: %v", err)
		}
		if spec.Intermediate.Keys.KMS.Timeout.Seconds() != 2 {
			t.Errorf("%+v", spec.Intermediate.Keys.KMS)
		}
	}
}
