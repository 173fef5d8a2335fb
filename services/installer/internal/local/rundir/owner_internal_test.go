package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestForeignNamesTheOwner(t *testing.T) {
	dir, self := t.TempDir(), os.Getuid()
	denied := fmt.Errorf("state: %w", &fs.PathError{Op: "open", Path: dir + "/state.json", Err: fs.ErrPermission})
	owner := userName(uint32(self)) //nolint:gosec // no user id is negative
	for _, tc := range []struct {
		name, dir, want string
		err             error
		self            int
	}{
		{"another's mesh", dir, "state.json: permission denied: the mesh of " + dir + " belongs to user " + owner +
			"; run this as that user, or name another --run-dir", denied, self + 1},
		{"below another's directory", filepath.Join(dir, "a", "b"), ": " + dir + " belongs to user " + owner + "; run", denied, self + 1},
		{"one's own", dir, "state.json: permission denied", denied, self},
		{"something else", dir, "no space", errors.New("no space"), self + 1},
	} {
		err := foreign(tc.dir, tc.err, tc.self)
		switch text := err.Error(); {
		case !errors.Is(err, tc.err), !strings.Contains(text, strings.ReplaceAll(tc.want, "permission denied", fs.ErrPermission.Error())):
			t.Errorf("%s: %v", tc.name, err)
		case tc.self == self && text != tc.err.Error():
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
