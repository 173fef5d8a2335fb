package whole

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

// FuzzAnalyze: no text makes an analysis fail, and every message says what to do.
func FuzzAnalyze(f *testing.F) {
	files, err := filepath.Glob("../../../../../tests/oracle/analysis/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range splitCases(string(text)) {
			_, mesh, _ := strings.Cut(part, "\n")
			f.Add(mesh)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, m := range analyzed(t, Config{}, nil, text).Messages {
			if m.Code == finding.InternalError || m.Reason == "" {
				t.Errorf("%+v", m)
			}
		}
	})
}
