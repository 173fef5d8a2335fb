package install

import (
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/install/inventory"
)

func TestAnInstallationThatWasCutShortHasARemedy(t *testing.T) {
	rec := &inventory.Record{Revision: "canary", State: inventory.Applying, Past: []inventory.Installation{{Hash: "1", Failed: true}}}
	if text := cutShort(rec); !strings.HasSuffix(text, "run fairlead install again with the same file and settings") {
		t.Errorf("the first installation: %q", text)
	}
	rec.Hash = "2"
	if text := cutShort(rec); !strings.HasSuffix(text,
		"with the same file and settings, or go back with fairlead rollback --revision canary") {
		t.Errorf("after another: %q", text)
	}
}
