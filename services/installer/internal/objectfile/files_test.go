package objectfile_test

import (
	"errors"
	"path/filepath"
	"testing"

	"fairlead.dev/services/installer/internal/objectfile"
)

func TestListRefuses(t *testing.T) {
	empty := t.TempDir()
	for _, path := range []string{filepath.Join(empty, "missing.yaml"), empty} {
		var bad *objectfile.Error
		if _, err := objectfile.List([]string{path}); !errors.As(err, &bad) || bad.File != path || bad.Remedy == "" {
			t.Errorf("%s: %v", path, err)
		}
	}
}
