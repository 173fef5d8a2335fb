package cli

import (
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/local/plan"
)

func TestUpWithoutFilesSaysSo(t *testing.T) {
	const hint = "no file is named with -f"
	if says := (upFlags{}).starting(&plan.Plan{}, "logs"); !strings.Contains(says, "0 Pods") || !strings.Contains(says, hint) {
		t.Errorf("without files: %q", says)
	}
	if says := (upFlags{files: []string{"mesh.yaml"}}).starting(&plan.Plan{}, "logs"); strings.Contains(says, hint) {
		t.Errorf("with a file: %q", says)
	}
}
