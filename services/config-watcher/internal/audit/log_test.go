package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/testkit"
)

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func open(t *testing.T, path string, change ...func(*Config)) *Log {
	t.Helper()
	cfg := Config{Path: path, Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(), Clock: testkit.NewClock(epoch)}
	for _, f := range change {
		f(&cfg)
	}
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func entryOf(i int) Entry {
	return Entry{Identity: "spiffe://cluster.local/ns/ops/sa/x", Call: "Apply", Result: Accepted,
		Objects: []Object{{Verb: "create", Kind: "Service", Namespace: "a", Name: fmt.Sprint("s-", i)}}}
}

func appendAll(t *testing.T, l *Log, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := l.Append(entryOf(i)); err != nil {
			t.Fatal(err)
		}
	}
}

func intact(t *testing.T, l *Log, want string) {
	t.Helper()
	if covers, broken, err := l.Verify(); err != nil || broken != "" || !strings.Contains(covers, want) {
		t.Errorf("verify: %q, %q, %v, want %q", covers, broken, err, want)
	}
}

// TestChain: the chain continues over restarts, rotations and a line that a crash cut off, and old files are removed.
func TestChain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit", "audit.log")
	small := func(c *Config) { c.MaxBytes, c.Keep = 1000, 3 }
	l := open(t, path, small)
	appendAll(t, l, 0, 2)
	intact(t, l, "2 lines, 1 to 2")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	cut, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = cut.WriteString("0123456789abcdef {\"seq\":3,")
	}
	if err != nil || cut.Close() != nil {
		t.Fatal(err)
	}
	l = open(t, path, small)
	appendAll(t, l, 2, 40)
	if _, broken, err := l.Verify(); broken != "" || err != nil {
		t.Errorf("after rotations: %q, %v", broken, err)
	}
	for i, want := range map[int]bool{1: true, 3: true, 4: false} {
		if _, err := os.Stat(rotated(path, i)); (err == nil) != want {
			t.Errorf("file %d: %v", i, err)
		}
	}
	last, err := l.Last(5)
	if err != nil || len(last) != 5 || !strings.Contains(last[4], `"s-39"`) || !strings.Contains(last[0], `"s-35"`) {
		t.Errorf("last: %q, %v", last, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	many := Entry{Call: "Apply", Result: Accepted}
	for i := range 3*maxObjects - 1 {
		many.Objects = append(many.Objects, entryOf(i).Objects...)
	}
	if err := l.Append(many); err != nil {
		t.Fatal(err)
	}
	last, err = l.Last(1)
	var e Entry
	if err == nil {
		err = json.Unmarshal([]byte(last[0]), &e)
	}
	if err != nil || len(e.Objects) != maxObjects-1 || e.Sequence != 43 {
		t.Errorf("line %d with %d objects, %v", e.Sequence, len(e.Objects), err)
	}
}

// TestRotationWithoutFileHandlesLosesNothing: while no file can be opened, each further line would rotate again; the
// current file grows instead, and the files before it stay.
func TestRotationWithoutFileHandlesLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, func(c *Config) { c.MaxBytes, c.Keep = 1000, 3 })
	appendAll(t, l, 0, 20)
	before, err := l.Last(1000)
	if err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 3
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	errs := make([]error, 0, 20)
	for i := 20; i < 40; i++ {
		errs = append(errs, l.Append(entryOf(i)))
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(errs...); err != nil {
		t.Errorf("lines are refused: %v", err)
	}
	after, err := l.Last(1000)
	if err != nil || len(after) != len(before)+20 || after[0] != before[0] {
		t.Errorf("%d lines from %q, of %d and 20 more from %q: %v", len(after), after[0], len(before), before[0], err)
	}
	appendAll(t, l, 40, 60)
	if _, broken, err := l.Verify(); broken != "" || err != nil {
		t.Errorf("after rotations: %q, %v", broken, err)
	}
}

// TestRotationThatFailsInTheMiddleLosesNothing: a name of the row that cannot be overwritten stops each attempt, and no
// attempt takes another file out of the row.
func TestRotationThatFailsInTheMiddleLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, func(c *Config) { c.MaxBytes, c.Keep = 1000, 3 })
	if err := os.MkdirAll(filepath.Join(rotated(path, 3), "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, 0, 60)
	if err := os.RemoveAll(rotated(path, 3)); err != nil {
		t.Fatal(err)
	}
	lines, err := l.Last(1000)
	if err != nil || len(lines) != 60 {
		t.Errorf("%d lines of 60: %v", len(lines), err)
	}
	intact(t, l, "60 lines, 1 to 60")
}

// TestAClosedLogIsNotRotated: a line after Close opens the file again, and only then a full file is rotated.
func TestAClosedLogIsNotRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, func(c *Config) { c.MaxBytes, c.Keep = 1000, 3 })
	for i := 0; l.size < 1000; i++ {
		appendAll(t, l, i, i+1)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, 100, 101)
	if _, err := os.Stat(rotated(path, 1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("rotated without an open file: %v", err)
	}
	appendAll(t, l, 101, 102)
	if _, err := os.Stat(rotated(path, 1)); err != nil {
		t.Error(err)
	}
	if _, broken, err := l.Verify(); broken != "" || err != nil {
		t.Errorf("%q, %v", broken, err)
	}
}

// TestTampering: Verify finds every changed or removed line of a file, and its place.
func TestTampering(t *testing.T) {
	for name, tc := range map[string]struct {
		change func([]byte) []byte
		want   string
	}{
		"another name": {func(b []byte) []byte { return bytes.Replace(b, []byte(`"s-3"`), []byte(`"s-9"`), 1) }, ":4: "},
		"a line out": {func(b []byte) []byte {
			lines := bytes.SplitAfter(b, []byte("\n"))
			return bytes.Join(append(lines[:2:2], lines[3:]...), nil)
		}, ":3: line 4 does not follow line 2"},
		"two lines swapped": {func(b []byte) []byte {
			lines := bytes.SplitAfter(b, []byte("\n"))
			lines[1], lines[2] = lines[2], lines[1]
			return bytes.Join(lines, nil)
		}, ":2: "},
		"a line with its own hash": {func(b []byte) []byte {
			lines := bytes.SplitAfter(b, []byte("\n"))
			_, text, _ := bytes.Cut(bytes.TrimSpace(bytes.Replace(lines[1], []byte(`"s-1"`), []byte(`"s-9"`), 1)), []byte(" "))
			lines[1] = fmt.Appendf(nil, "%s %s\n", hashOf(text), text)
			return bytes.Join(lines, nil)
		}, ":3: line 3 does not follow line 2"},
		"the end off": {func(b []byte) []byte { return b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1] },
			"does not end with the line that was written last, 6"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.log")
			l := open(t, path)
			appendAll(t, l, 0, 6)
			intact(t, l, "6 lines, 1 to 6")
			b, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, tc.change(b), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, broken, err := l.Verify(); err != nil || !strings.Contains(broken, tc.want) {
				t.Errorf("broken %q, %v, want %q", broken, err, tc.want)
			}
		})
	}
}

// TestFullDisk: on a full disk a write is an error and leaves the chain intact, deletions use the reserve, and writes
// succeed when there is room again.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path)
	appendAll(t, l, 0, 3)
	full := true
	l.room = func(int) error {
		if _, err := os.Stat(l.reservePath()); full && err == nil {
			return syscall.ENOSPC
		}
		return nil
	}
	if err := l.Append(entryOf(3)); !errors.Is(err, ErrUnwritable) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("full: %v", err)
	}
	intact(t, l, "3 lines")
	if err := l.Append(Entry{Call: "Delete", Result: Accepted,
		Objects: []Object{{Verb: "delete", Kind: "Service", Name: "s-1"}}}); err != nil {
		t.Errorf("deletion: %v", err)
	}
	full = false
	appendAll(t, l, 3, 5)
	if _, err := os.Stat(l.reservePath()); err != nil {
		t.Errorf("no room is kept again: %v", err)
	}
	intact(t, l, "6 lines, 1 to 6")
}
