package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

func eventsOf(kind, file string, n int) []source.Event {
	var out []source.Event
	for i := range n {
		k := object.Key{Kind: kind, Namespace: "a", Name: fmt.Sprint(file, i)}
		out = append(out, source.Event{Key: k, Object: &object.Object{Key: k, Location: fmt.Sprintf("dir/%s:%d", file, i)}})
	}
	return out
}

func TestTogether(t *testing.T) {
	join := func(lists ...[]source.Event) (out []source.Event) {
		for _, l := range lists {
			out = append(out, l...)
		}
		return out
	}
	for name, c := range map[string]struct {
		events []source.Event
		// Files and their numbers of events, of each part.
		want string
	}{
		"few events of several files are one part": {join(eventsOf("Service", "a", 30), eventsOf("Pod", "b", 30)), "[a*30 b*30]"},
		"one file is never divided":                {eventsOf("Service", "a", 200), "[a*200]"},
		"many events are divided between files": {join(eventsOf("Service", "a", 40), eventsOf("Service", "b", 40),
			eventsOf("Service", "c", 20)), "[a*40] [b*40 c*20]"},
		"of many, files with endpoints alone come first": {join(eventsOf("Service", "a", 40), eventsOf("Pod", "b", 40)), "[b*40] [a*40]"},
		"a file with other objects too waits with them": {join(eventsOf("Service", "a", 40), eventsOf("Pod", "a", 1), eventsOf("Pod", "b", 40)),
			"[b*40] [a*41]"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, part := range together(c.events, func(e source.Event) string { return e.Object.Location }) {
				var files []string
				count := map[string]int{}
				for _, e := range part {
					file := strings.TrimPrefix(e.Object.Location[:strings.LastIndexByte(e.Object.Location, ':')], "dir/")
					if count[file]++; count[file] == 1 {
						files = append(files, file)
					}
				}
				for i, f := range files {
					files[i] = fmt.Sprintf("%s*%d", f, count[f])
				}
				got = append(got, fmt.Sprint(files))
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("parts %s, want %s", s, c.want)
			}
		})
	}
}

// TestEachFileIsParsedOnce: at the start each file is decoded once, though several at a time; reading everything again
// decodes none, and a change one.
func TestEachFileIsParsedOnce(t *testing.T) {
	const files = 50
	dir := t.TempDir()
	for i := range files {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), ns(fmt.Sprint("n", i), "1"))
	}
	var mu sync.Mutex
	decoded := map[string]int{}
	total := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, count := range decoded {
			n += count
		}
		return n
	}
	decoder := manifests(false)
	whole := decoder.Decode
	decoder.Decode = func(name string, content []byte) Decoded {
		mu.Lock()
		decoded[name]++
		mu.Unlock()
		return whole(name, content)
	}
	v := runConfig(t, Config{Paths: []string{dir}, Resync: 20 * time.Millisecond, Decode: decoder})
	testkit.Eventually(t, patience, func() error {
		if !v.src.HasSynced() {
			return fmt.Errorf("not synced, %d decoded", total())
		}
		return nil
	})
	for name, n := range decoded {
		if n != 1 {
			t.Errorf("%s was decoded %d times", name, n)
		}
	}
	if total() != files {
		t.Errorf("%d files were decoded, want %d", total(), files)
	}
	testkit.WriteFile(t, filepath.Join(dir, "7.yaml"), []byte(ns("n7", "2")))
	testkit.Eventually(t, patience, func() error {
		if n := total(); n != files+1 {
			return fmt.Errorf("%d files decoded", n)
		}
		return nil
	})
}

// TestAScanEndsWithItsContext: a source that is stopped before its first scan still reads the files, and ends.
func TestAScanEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	for i := range 50 {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), ns(fmt.Sprint("n", i), "1"))
	}
	s := New(Config{Name: "file", Paths: []string{dir}, Log: testkit.Logger(t), Clock: clock.Real()})
	n := 0
	s.Handle(func(_ context.Context, _ string, events []source.Event) { n += len(events) })
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := s.scan(ctx, nil, true); err != nil || n != 50 {
		t.Errorf("%d objects: %v", n, err)
	}
}

// BenchmarkStart reads 2,000 objects in 20 files.
func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	for i := range 20 {
		var text strings.Builder
		for j := range 100 {
			fmt.Fprintf(&text, "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v%d-%d, namespace: apps}\nspec:\n "+
				" hosts: [h%d-%d]\n"+
				"  http:\n  - match:\n    - uri: {prefix: /a}\n    route:\n    - destination: {host: server, subset: v1}\n      weight: 100\n    "+
				"timeout: 5s\n", i, j, i, j)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(text.String()), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		s := New(Config{Name: "file", Paths: []string{dir}, Log: testkit.Logger(b), Clock: clock.Real()})
		n := 0
		s.Handle(func(_ context.Context, _ string, events []source.Event) {
			for _, e := range events {
				if e.Object.Key.Group == kinds.GroupNetworking {
					n++
				}
			}
		})
		if _, err := s.scan(b.Context(), nil, true); err != nil || n != 2000 {
			b.Fatalf("%d objects: %v", n, err)
		}
	}
}
