package record_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/record/recordtest"
)

func TestContractOfFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	recordtest.Contract(t, func() record.Store { return record.NewFile(path, nil) })
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestFollowTellsOfALostFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	clock := testkit.NewClock(time.Now())
	s := record.NewFile(path, clock)
	one := recordtest.Save(t, s, "one", "")
	seen := recordtest.Follow(t, s)
	seen.Wait(t, "one")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	clock.WaitFor(t, 1)
	clock.Advance(time.Minute)
	seen.WaitProblem(t, "restore it from a backup")
	if _, err := s.Save(t.Context(), []byte("two"), one.Version); !errors.Is(err, record.ErrChanged) {
		t.Errorf("a lost record was replaced: %v", err)
	}
	recordtest.Save(t, s, "three", "")
	seen.Wait(t, "three")
	seen.WaitProblem(t, "")
}

// A full disk, or the end of the process, at any step leaves the record before or the new one.
func TestAWriteThatFailsLeavesARecord(t *testing.T) {
	var fault func(fileio.Step, string) error
	s := record.NewFileOn(fileio.FS{Fault: func(step fileio.Step, path string) error {
		if fault == nil {
			return nil
		}
		return fault(step, path)
	}}, filepath.Join(t.TempDir(), "state.json"), nil)
	one := recordtest.Save(t, s, "one", "")
	for failing := 1; ; failing++ {
		steps := 0
		fault = func(fileio.Step, string) error {
			if steps++; steps == failing {
				return errors.New("no space left on device")
			}
			return nil
		}
		_, err := s.Save(t.Context(), []byte("two"), one.Version)
		if steps < failing {
			if err != nil || failing < 4 {
				t.Fatalf("after %d steps: %v", steps, err)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("step %d: got %v", failing, err)
		}
		got, err := s.Load(t.Context())
		if err != nil || string(got.Data) != "one" && string(got.Data) != "two" {
			t.Fatalf("step %d: got %q, %v", failing, got.Data, err)
		}
		if string(got.Data) == "two" { // the rename was done, and what follows it failed
			fault = nil
			one = recordtest.Save(t, s, "one", got.Version)
		}
	}
}
