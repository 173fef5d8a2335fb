// Package recordtest has what every record.Store must do, as a test of it.
package recordtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/record"
)

// Contract tests a kind of Store. open returns another Store of the same record, as another process has it; there is no
// record yet.
func Contract(t *testing.T, open func() record.Store) {
	t.Helper()
	s, other := open(), open()
	if _, err := s.Load(t.Context()); !errors.Is(err, record.ErrNone) {
		t.Fatalf("without a record: %v", err)
	}
	if _, err := s.Save(t.Context(), []byte("x"), record.Version([]byte("gone"))); !errors.Is(err, record.ErrChanged) {
		t.Errorf("a version of a record that is not there: %v", err)
	}
	first := Save(t, s, "one", "")
	seen := Follow(t, other)
	seen.Wait(t, "one")
	if _, err := other.Save(t.Context(), []byte("x"), ""); !errors.Is(err, record.ErrChanged) {
		t.Errorf("a second first record: %v", err)
	}
	second := Save(t, other, "two", first.Version)
	if _, err := s.Save(t.Context(), []byte("x"), first.Version); !errors.Is(err, record.ErrChanged) {
		t.Errorf("of an older version: %v", err)
	}
	got, err := s.Load(t.Context())
	if err != nil || string(got.Data) != "two" || got.Version != second.Version || got.Order <= first.Order {
		t.Errorf("got %+v, %v after %+v", got, err, first)
	}
	seen.Wait(t, "two")
	large := []byte(strings.Repeat("x", 768<<10+1))
	if _, err := s.Save(t.Context(), large, got.Version); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a large record: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Follow(ended, func(record.Record) { t.Error("read after the end") }, func(error) {}); err != nil {
		t.Error(err)
	}
	noUpdateIsLost(t, open)
	seen.Stop()
	seen.WantInOrder(t)
}

// noUpdateIsLost has several processes count up in the record.
func noUpdateIsLost(t *testing.T, open func() record.Store) {
	t.Helper()
	const processes, each = 4, 5
	now, err := open().Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	Save(t, open(), "0", now.Version)
	var group sync.WaitGroup
	for range processes {
		s := open()
		group.Go(func() {
			for done := 0; done < each; {
				now, err := s.Load(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				n, _ := strconv.Atoi(string(now.Data))
				switch _, err := s.Save(t.Context(), []byte(strconv.Itoa(n+1)), now.Version); {
				case err == nil:
					done++
				case !errors.Is(err, record.ErrChanged):
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	if now, err := open().Load(t.Context()); err != nil || string(now.Data) != strconv.Itoa(processes*each) {
		t.Errorf("counted to %s, %v, want %d", now.Data, err, processes*each)
	}
}

// Save saves a text.
func Save(t testing.TB, s record.Store, text, version string) record.Record {
	t.Helper()
	r, err := s.Save(t.Context(), []byte(text), version)
	if err != nil {
		t.Fatal(err)
	}
	if string(r.Data) != text || r.Version != record.Version([]byte(text)) {
		t.Fatalf("saved %q as %+v", text, r)
	}
	return r
}

// Seen is what a Follow has called its functions with.
type Seen struct {
	Stop func()

	mu      sync.Mutex
	records []record.Record
	problem error
}

// Follow follows a Store until the test ends.
func Follow(t testing.TB, s record.Store) *Seen {
	t.Helper()
	seen := &Seen{}
	seen.Stop = testkit.Background(t, func(ctx context.Context) error {
		return s.Follow(ctx, func(r record.Record) {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			seen.records = append(seen.records, r)
		}, func(err error) {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			seen.problem = err
		})
	})
	return seen
}

// Problem is the last one.
func (s *Seen) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// Texts are those of the records.
func (s *Seen) Texts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, r := range s.records {
		out = append(out, string(r.Data))
	}
	return out
}

// Wait waits until a text is the last one.
func (s *Seen) Wait(t testing.TB, text string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if texts := s.Texts(); len(texts) == 0 || texts[len(texts)-1] != text {
			return fmt.Errorf("saw %q, want %q last", texts, text)
		}
		return nil
	})
}

// WaitProblem waits until the problem has a text; an empty one stands for no problem.
func (s *Seen) WaitProblem(t testing.TB, text string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if err := s.Problem(); (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
			return fmt.Errorf("the problem is %q, want %q", fmt.Sprint(err), text)
		}
		return nil
	})
}

// WantInOrder wants every record to be newer than the one before.
func (s *Seen) WantInOrder(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.records {
		if i > 0 && (r.Order <= s.records[i-1].Order || r.Version == s.records[i-1].Version) {
			t.Errorf("record %d is %+v, after %+v", i, r, s.records[i-1])
		}
	}
}
