package proxyview

import (
	"strings"
	"testing"
)

func TestWhatIsNoSection(t *testing.T) {
	if _, _, err := SectionAndProxy([]string{"e", "web-0.shop"}); err == nil ||
		!strings.Contains(err.Error(), `neither "e" nor "web-0.shop" can be shown`) {
		t.Error(err)
	}
}
