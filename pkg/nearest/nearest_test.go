package nearest_test

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/nearest"
)

func TestName(t *testing.T) {
	for word, want := range map[string]string{
		"hots": "hosts", "HTTP": "http", "exprotTo": "exportTo", "gatewys": "gateways", "banana": "", "": "",
		strings.Repeat("hosts", 100): "",
	} {
		if got := nearest.Name(word, []string{"hosts", "http", "exportTo", "gateways"}); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
	if got := nearest.Name("lister", []string{"clusters", "listeners"}); got != "listeners" {
		t.Errorf("of two equally near: %q", got)
	}
	long := strings.Repeat("a", 200)
	if got := nearest.Name(long+"b", []string{long}); got != "" {
		t.Errorf("names too long to compare: %q", got)
	}
}

func TestHint(t *testing.T) {
	if got := nearest.Hint("hots", []string{"hosts"}); got != `; did you mean "hosts"?` {
		t.Errorf("%q", got)
	}
	if got := nearest.Hint("banana", []string{"hosts"}); got != "" {
		t.Errorf("%q", got)
	}
}
