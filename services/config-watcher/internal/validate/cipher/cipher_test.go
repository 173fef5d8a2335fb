package cipher

import (
	"slices"
	"testing"
)

func TestKnown(t *testing.T) {
	got := Known([]string{"AES128-SHA", "RC4", "", "AES128-SHA", "-AES256-SHA", "[AES128-SHA|RC4]"})
	if want := []string{"AES128-SHA", "-AES256-SHA"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
