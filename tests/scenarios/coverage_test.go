package scenarios

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/tests/scenarios/internal/coverage"
)

// TestAPIPages keeps docs/reference/traffic-api.md and security-api.md true; `make golden` rewrites them.
func TestAPIPages(t *testing.T) {
	goldens := map[string]string{}
	files, err := filepath.Glob("../../services/xds-server/internal/translate/testdata/in/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("goldens %v, %v", files, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		goldens[strings.TrimSuffix(filepath.Base(file), ".yaml")] = string(raw)
	}
	table, err := coverage.New(coverage.Evidence{Scenarios: all(t, "cases", "examples"), Goldens: goldens,
		Refused: paths(t, "unsupported.txt"), Ineffective: paths(t, "ineffective.txt")})
	if err != nil {
		t.Fatal(err)
	}
	for _, api := range []coverage.API{coverage.Traffic, coverage.Security} {
		testkit.Golden(t, "../../docs/reference/"+string(api)+"-api.md", table.Markdown(api))
	}
}

// paths reads a table by which config-watcher tells what is not supported.
func paths(t *testing.T, table string) []string {
	t.Helper()
	raw, err := os.ReadFile("../../services/config-watcher/internal/validate/support/" + table)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for line := range strings.Lines(string(raw)) {
		if path, _, ok := strings.Cut(line, " | "); ok && !strings.HasPrefix(line, "#") {
			paths = append(paths, path)
		}
	}
	return paths
}
