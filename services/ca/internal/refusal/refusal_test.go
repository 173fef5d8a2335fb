package refusal

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// What a request says is quoted, but not at any length.
func TestLongSentencesLoseTheirMiddle(t *testing.T) {
	for _, quoted := range []string{strings.Repeat("x", 16<<10), strings.Repeat("ü", 8<<10)} {
		refused, ok := From(New(Denied, ForeignIdentity, "csr asks for %s; leave the names out", quoted))
		if !ok {
			t.Fatal("not a refusal")
		}
		if n := len(refused.Detail); n > maxDetailBytes || n < maxDetailBytes/2 || !utf8.ValidString(refused.Detail) {
			t.Errorf("%d bytes, want valid text of at most %d", n, maxDetailBytes)
		}
		if !strings.HasPrefix(refused.Detail, "csr asks for") || !strings.HasSuffix(refused.Detail, "; leave the names out") {
			t.Errorf("lost what was asked for or what to do: %s", refused.Detail)
		}
	}
	if refused, _ := From(New(Denied, ForeignIdentity, "short")); refused.Detail != "short" {
		t.Errorf("changed to %q", refused.Detail)
	}
}
