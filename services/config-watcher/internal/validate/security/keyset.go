package security

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"fairlead.dev/pkg/jwks"
	"fairlead.dev/pkg/lists"
)

// keyParameters are the parameters that a key of each type (kty) must have, RFC 7518, section 6.
var keyParameters = map[string][]string{
	"RSA": {"n", "e"},
	"EC":  {"crv", "x", "y"},
	"OKP": {"crv", "x"},
	"oct": {"k"},
}

// keySet checks keys that stand in the object: a JSON Web Key Set, or a single key. Istio refuses a set with one key
// that it cannot read.
func (c checker) keySet(at, text string) {
	const remedy = `write a JSON Web Key Set, {"keys": [...]}, as RFC 7517 has it`
	var set map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &set); err != nil || set == nil {
		c.Fail(at, nil, "not a JSON object", remedy)
		return
	}
	raw, isSet := set["keys"]
	keys := []json.RawMessage{json.RawMessage(text)}
	if isSet {
		keys = nil
		if err := json.Unmarshal(raw, &keys); err != nil {
			c.Fail(at, nil, "its keys are no list", remedy)
			return
		}
	}
	usable, err := jwks.Parse([]byte(text))
	if err != nil {
		c.Remark(at, "every token of the issuer is refused: "+err.Error(), "add the issuer's keys")
	} else if told := jwks.Told(usable.Dropped); told != "" {
		c.Remark(at, "keys are left out: "+told, "add keys that proxies can use, such as RSA of 2048 bits or P-256")
	}
	for i, k := range keys {
		private, problem := readKey(k)
		c.FailIf(problem != "", at, nil, fmt.Sprintf("key %d %s", i, problem), "correct the key, or remove it")
		c.RemarkIf(private, at, fmt.Sprintf("key %d is private, and only public ones are used", i),
			"remove it, and do not use it any more: everybody who can read the object has seen it")
	}
}

// readKey says what is wrong with a key, and whether it is private.
func readKey(raw json.RawMessage) (private bool, problem string) {
	var key map[string]any
	if err := json.Unmarshal(raw, &key); err != nil || key == nil {
		return false, "is no object"
	}
	kty, _ := key["kty"].(string)
	needed, known := keyParameters[kty]
	if !known {
		return false, fmt.Sprintf("has the unknown type (kty) %q", kty)
	}
	for _, name := range needed {
		v, isText := key[name].(string)
		switch {
		case !isText || v == "":
			return false, fmt.Sprintf("has no %q", name)
		case name != "crv" && !isBase64(v):
			return false, fmt.Sprintf("has a %q that is not encoded in base64url", name)
		}
	}
	for _, name := range []string{"alg", "use", "kid"} {
		if v, given := key[name]; given {
			if _, isText := v.(string); !isText {
				return false, fmt.Sprintf("has a %q that is no string", name)
			}
		}
	}
	if chain, given := key["x5c"]; given && !isChain(chain) {
		return false, "has an \"x5c\" that is no list of certificates"
	}
	_, d := key["d"]
	return d || kty == "oct", ""
}

func isBase64(s string) bool {
	s = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(s, "="))
	_, err := base64.RawStdEncoding.DecodeString(s)
	return err == nil
}

// isChain reports whether a value is a list of certificates, DER in base64.
func isChain(v any) bool {
	list, ok := v.([]any)
	return ok && lists.All(list, func(item any) bool {
		text, _ := item.(string)
		der, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return false
		}
		_, err = x509.ParseCertificate(der)
		return err == nil
	})
}
