package logview_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/services/installer/internal/local/logview"
)

const (
	service = `{"time":"2026-01-02T03:04:01.5Z","level":"INFO","msg":"one"}
{"time":"2026-01-02T03:04:03Z","level":"WARN","msg":"three"}
  of two lines
{"time":"2026-01-02T03:04:05Z","level":"INFO","msg":"five"}
`
	envoy = `[2026-01-02 03:04:02.250][7][warning][config] [a.cc:1] two
[2026-01-02 03:04:04.000][7][critical][main] [b.cc:2] four
plain
`
)

// logs returns sources of two files.
func logs(t *testing.T) []logview.Source {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"a": service, "b": envoy} {
		testkit.WriteFile(t, filepath.Join(dir, name), []byte(content))
	}
	return []logview.Source{{Name: "a", Path: filepath.Join(dir, "a")}, {Name: "b", Path: filepath.Join(dir, "b")}}
}

func TestRead(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 4, 0, time.UTC)
	count := func(opts logview.Options) (lines []string) {
		r, err := logview.Open(logs(t), opts)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := r.Read(func(l logview.Line) error { lines = append(lines, l.Source+": "+l.Text); return nil }); err != nil {
			t.Fatal(err)
		}
		return lines
	}
	a, b := strings.Split(service, "\n"), strings.Split(envoy, "\n")
	for name, tc := range map[string]struct {
		opts logview.Options
		want []string
	}{
		"by time": {logview.Options{Tail: -1, Level: logview.Debug},
			[]string{"a: " + a[0], "b: " + b[0], "a: " + a[1], "a: " + a[2], "b: " + b[1], "b: " + b[2], "a: " + a[3]}},
		"tail":  {logview.Options{Tail: 1, Level: logview.Debug}, []string{"b: " + b[2], "a: " + a[3]}},
		"none":  {logview.Options{Tail: 0}, nil},
		"since": {logview.Options{Tail: -1, Since: at}, []string{"b: " + b[1], "b: " + b[2], "a: " + a[3]}},
		"level": {logview.Options{Tail: -1, Level: logview.Warn},
			[]string{"b: " + b[0], "a: " + a[1], "a: " + a[2], "b: " + b[1], "b: " + b[2]}},
		"both":       {logview.Options{Tail: 1, Level: logview.Warn}, []string{"a: " + a[2], "b: " + b[2]}},
		"only error": {logview.Options{Tail: -1, Level: logview.Error}, []string{"b: " + b[1], "b: " + b[2]}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := count(tc.opts); !slices.Equal(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// TestStampedLines reads an application's lines, to which `fairlead up` has added their times.
func TestStampedLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	testkit.WriteFile(t, path, []byte(
		"2026-01-02T03:04:01.000Z GET /old\n2026-01-02T03:04:05.000Z {\"level\":\"error\"}\n2026-01-02T03:04:06.000Z GET / 200\n"))
	r, err := logview.Open([]logview.Source{{Name: "a", Path: path}},
		logview.Options{Tail: -1, Level: logview.Debug, Since: time.Date(2026, 1, 2, 3, 4, 4, 0, time.UTC)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var lines []string
	if err := r.Read(func(l logview.Line) error { lines = append(lines, l.Text); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []string{`{"level":"error"}`, "GET / 200"}; !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
}

func TestLongLinesAreCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	testkit.WriteFile(t, path, []byte(strings.Repeat("x", 3<<20)+"\nshort\n"))
	var got []int
	r, err := logview.Open([]logview.Source{{Name: "a", Path: path}}, logview.Options{Tail: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Read(func(l logview.Line) error { got = append(got, len(l.Text)); return nil }); err != nil ||
		!slices.Equal(got, []int{1 << 20, 5}) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestFollow appends to a log in parts, truncates it, and writes one that did not exist.
func TestFollow(t *testing.T) {
	sources := logs(t)
	later := logview.Source{Name: "c", Path: filepath.Join(t.TempDir(), "c")}
	r, err := logview.Open(append(sources, later), logview.Options{Tail: 0, Poll: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Read(func(l logview.Line) error { return fmt.Errorf("shown: %v", l) }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	lines, done := make(chan string, 100), make(chan error, 1)
	go func() {
		done <- r.Follow(ctx, func(l logview.Line) error { lines <- l.Source + " " + l.Text; return nil })
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if got != want {
				t.Errorf("%q, want %q", got, want)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("no line %q", want)
		}
	}
	add := func(path, text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	add(sources[0].Path, "half")
	add(sources[0].Path, " whole\n")
	expect("a half whole")
	add(later.Path, "new\n")
	expect("c new")
	if err := os.Truncate(sources[0].Path, 0); err != nil {
		t.Fatal(err)
	}
	add(sources[0].Path, "again\n")
	expect("a again")
	if err := os.Remove(sources[1].Path); err != nil {
		t.Fatal(err)
	}
	add(sources[1].Path, "replaced\n")
	expect("b replaced")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
