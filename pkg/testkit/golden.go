package testkit

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files instead of comparing with them")

// Golden compares got with the file at path, or writes it when the test runs with -update.
func Golden(t testing.TB, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("golden file: %v (run the test with -update to write it)", err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("%s differs (-want +got), run the test with -update if that is meant:\n%s", path, cmp.Diff(string(want), string(got)))
	}
}

// GoldenStale fails the test for every file that matches pattern and is not in used; with -update it removes the file.
func GoldenStale(t testing.TB, pattern string, used []string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if slices.ContainsFunc(used, func(u string) bool { return filepath.Clean(u) == f }) {
			continue
		}
		if !*update {
			t.Errorf("%s belongs to no test case: remove it, or run with -update", f)
			continue
		}
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
}
