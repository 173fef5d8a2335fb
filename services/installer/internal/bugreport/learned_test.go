package bugreport_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/bugreport"
)

// secretValue is the n-th value of many that are as long as a password.
func secretValue(n int) string {
	sum := sha256.Sum256(fmt.Append(nil, n))
	return hex.EncodeToString(sum[:16])
}

// secretsOf returns Secrets with four values each.
func secretsOf(n int) []any {
	var list []any
	for i := range n {
		data := map[string]any{}
		for k := range 4 {
			data[fmt.Sprint("k", k)] = b64(secretValue(4*i + k))
		}
		list = append(list, map[string]any{"apiVersion": "v1", "kind": "Secret", "data": data})
	}
	return list
}

// A cluster with 2,000 Secrets of four values: all of them are known, and it takes no longer to read them than other
// objects.
func TestTheValuesOfManySecretsAreLearned(t *testing.T) {
	const secrets = 2000
	var r *bugreport.Redactor
	testkit.Quick(t, 500*time.Millisecond, func() time.Duration {
		r = &bugreport.Redactor{}
		list := secretsOf(secrets)
		return testkit.CPUTime(t, func() { r.Tree(list) })
	})
	for _, n := range []int{0, 4 * secrets / 2, 4*secrets - 1} {
		if got := string(r.Text([]byte("login " + secretValue(n) + " ok"))); got != "login [redacted] ok" {
			t.Errorf("value %d: %q", n, got)
		}
	}
	log := []byte(strings.Repeat("2026-01-01T00:00:00Z info the request of a client was answered within 12 ms, code 200\n", 100_000))
	testkit.Quick(t, 5*time.Second, func() time.Duration {
		return testkit.CPUTime(t, func() { r.Text(log) })
	})
}

func TestValuesThatOverlapAreRedactedWhole(t *testing.T) {
	for name, c := range map[string]struct {
		values    []string
		text, out string
	}{
		"one within another": {[]string{"secret-1", "my-secret-1-long"}, "a my-secret-1-long b secret-1",
			"a [redacted] b [redacted]"},
		"the end of one begins the next": {[]string{"abcdefgh", "efghijkl"}, "-abcdefghijkl-", "-[redacted]-"},
		"of the same beginning":          {[]string{"prefix-long", "prefix-"}, "prefix-lon prefix-long", "[redacted]lon [redacted]"},
		"one after another":              {[]string{"abcdef"}, "abcdefabcdef abcde", "[redacted][redacted] abcde"},
		"at the end":                     {[]string{"abcdef"}, "x abcdef", "x [redacted]"},
		"too short":                      {[]string{"abcde", "  abc  "}, "abcde abc", "abcde abc"},
		"not ASCII":                      {[]string{"pässwört"}, "x=pässwört.", "x=[redacted]."},
	} {
		t.Run(name, func(t *testing.T) {
			var r bugreport.Redactor
			r.Learn(c.values...)
			if got := string(r.Text([]byte(c.text))); got != c.out {
				t.Errorf("%q, expected %q", got, c.out)
			}
		})
	}
}
