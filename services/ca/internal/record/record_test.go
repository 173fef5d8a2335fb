package record

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/fileio"
)

func newStore(t *testing.T) *File {
	t.Helper()
	return NewFile(filepath.Join(t.TempDir(), "state.json"))
}

func save(t *testing.T, s *File, text, version string) Record {
	t.Helper()
	r, err := s.Save([]byte(text), version)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOnlyTheLastVersionIsReplaced(t *testing.T) {
	s := newStore(t)
	if _, err := s.Load(); !errors.Is(err, ErrNone) {
		t.Fatalf("without a file: %v", err)
	}
	one := save(t, s, "one", "")
	if _, err := s.Save([]byte("other"), ""); !errors.Is(err, ErrChanged) {
		t.Errorf("a second first record: %v", err)
	}
	two := save(t, s, "two", one.Version)
	if _, err := s.Save([]byte("other"), one.Version); !errors.Is(err, ErrChanged) {
		t.Errorf("of an older version: %v", err)
	}
	if got, err := s.Load(); err != nil || string(got.Data) != "two" || got.Version != two.Version {
		t.Errorf("got %+v, %v", got, err)
	}
	if info, err := os.Stat(s.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// A full disk, or the end of the process, at any step leaves the record before or the new one.
func TestAWriteThatFailsLeavesARecord(t *testing.T) {
	s := newStore(t)
	one := save(t, s, "one", "")
	for failing := 1; ; failing++ {
		steps := 0
		s.fs.Fault = func(fileio.Step, string) error {
			if steps++; steps == failing {
				return errors.New("no space left on device")
			}
			return nil
		}
		_, err := s.Save([]byte("two"), one.Version)
		if steps < failing {
			if err != nil || failing < 4 {
				t.Fatalf("after %d steps: %v", steps, err)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("step %d: got %v", failing, err)
		}
		got, err := s.Load()
		if err != nil || string(got.Data) != "one" && string(got.Data) != "two" {
			t.Fatalf("step %d: got %q, %v", failing, got.Data, err)
		}
		if string(got.Data) == "two" { // the rename was done, and what follows it failed
			s.fs.Fault = nil
			one = save(t, s, "one", got.Version)
		}
	}
}
