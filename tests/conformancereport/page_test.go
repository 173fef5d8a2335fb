package conformancereport

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

const reference = "../../docs/reference"

// TestPageIsThatOfItsReports holds for the page of Fairlead, which is there once its reports are, and for a page of
// reports about Istio.
func TestPageIsThatOfItsReports(t *testing.T) {
	current(t, "testdata/istiod", "testdata/istiod.md")
	page := filepath.Join(reference, "gateway-api.md")
	if _, err := os.Stat(filepath.Join(reference, "gateway-api")); !errors.Is(err, fs.ErrNotExist) {
		current(t, filepath.Join(reference, "gateway-api"), page)
	} else if _, err := os.Stat(page); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s has no reports that it is made of", page)
	}
}

// current compares a page with what Page makes of reports; -update writes it.
func current(t *testing.T, reports, path string) {
	t.Helper()
	page, err := Page(reports)
	testkit.NoError(t, err)
	testkit.Golden(t, path, []byte(page))
}

func TestReportsThatDoNotFitAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ file, from, to, says string }{
		"of different versions": {"mesh.yaml", "gatewayAPIVersion: v", "gatewayAPIVersion: w", "of different versions"},
		"without a profile":     {"mesh.yaml", "profiles:", "others:", "mesh.yaml has no profile"},
		"of a run that is left": {"mesh-tests.yaml", "", "", "no such file"},
		"that are not YAML":     {"gateway.yaml", "date:", "date: [", "gateway.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			testkit.NoError(t, os.CopyFS(dir, os.DirFS("testdata/istiod")))
			path := filepath.Join(dir, c.file)
			if c.from == "" {
				testkit.NoError(t, os.Remove(path))
			} else {
				text, err := os.ReadFile(path)
				testkit.NoError(t, err)
				if !strings.Contains(string(text), c.from) {
					t.Fatalf("%s has no %q", c.file, c.from)
				}
				testkit.WriteFile(t, path, []byte(strings.Replace(string(text), c.from, c.to, 1)))
			}
			if _, err := Page(dir); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error is %v, want %q in it", err, c.says)
			}
		})
	}
}
