package rejection

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLongDetailLosesItsMiddle(t *testing.T) {
	for _, quoted := range []string{strings.Repeat("x", 16<<10), strings.Repeat("ü", 8<<10)} {
		rejected, ok := From(New(Denied, ForeignIdentity, "csr asks for %s; leave the names out", quoted))
		if !ok {
			t.Fatal("not a rejection")
		}
		if n := len(rejected.Detail); n > maxDetailBytes || n < maxDetailBytes/2 || !utf8.ValidString(rejected.Detail) {
			t.Errorf("%d bytes, want valid text of at most %d", n, maxDetailBytes)
		}
		if !strings.HasPrefix(rejected.Detail, "csr asks for") || !strings.HasSuffix(rejected.Detail, "; leave the names out") {
			t.Errorf("lost what was asked for or what to do: %s", rejected.Detail)
		}
	}
	if rejected, _ := From(New(Denied, ForeignIdentity, "short")); rejected.Detail != "short" {
		t.Errorf("changed to %q", rejected.Detail)
	}
}
