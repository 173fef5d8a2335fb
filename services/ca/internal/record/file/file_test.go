package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/ca/internal/record"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	return New(filepath.Join(t.TempDir(), "state.json"), nil)
}

func save(t *testing.T, s *Store, text, version string) record.Record {
	t.Helper()
	r, err := s.Save(t.Context(), []byte(text), version)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOnlyTheLastVersionIsReplaced(t *testing.T) {
	s := newStore(t)
	if _, err := s.Load(t.Context()); !errors.Is(err, record.ErrNone) {
		t.Fatalf("without a file: %v", err)
	}
	one := save(t, s, "one", "")
	if _, err := s.Save(t.Context(), []byte("other"), ""); !errors.Is(err, record.ErrChanged) {
		t.Errorf("a second first record: %v", err)
	}
	two := save(t, s, "two", one.Version)
	if _, err := s.Save(t.Context(), []byte("other"), one.Version); !errors.Is(err, record.ErrChanged) {
		t.Errorf("of an older version: %v", err)
	}
	if got, err := s.Load(t.Context()); err != nil || string(got.Data) != "two" || got.Version != two.Version {
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
			s.fs.Fault = nil
			one = save(t, s, "one", got.Version)
		}
	}
}

func TestFollowSeesEachRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		var seen []string
		var problems []error
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			_ = s.Follow(ctx, func(r record.Record) { seen = append(seen, string(r.Data)) }, func(err error) {
				if err != nil {
					problems = append(problems, err)
				}
			})
		}()
		synctest.Wait()
		one := save(t, s, "one", "")
		synctest.Wait()
		save(t, s, "two", one.Version)
		synctest.Wait()
		if err := os.WriteFile(s.path, []byte("restored"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * period)
		if err := errors.Join(os.Remove(s.path), os.Mkdir(s.path, 0o700)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * period)
		stop()
		synctest.Wait()
		if got := strings.Join(seen, " "); got != "one two restored" || len(problems) == 0 {
			t.Errorf("seen %q, problems %v", got, problems)
		}
	})
}
