package filewatch

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/lists"
)

func TestConcerns(t *testing.T) {
	files := lists.Map([]string{"/certs/./key.pem", "cert.pem"}, filepath.Clean)
	for event, want := range map[string]bool{
		"/certs/key.pem": true, "/certs/..data": true, "/certs": true, "./cert.pem": true, ".": true,
		"/certs/other.pem": false, "/other/key.pem": false, "/": false,
	} {
		if got := concerns(files, fsnotify.Event{Name: event}); got != want {
			t.Errorf("%s: %v", event, got)
		}
	}
}

// TestRun replaces a file, names another one in a directory that was not watched, and replaces that.
func TestRun(t *testing.T) {
	first, second := filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "file")
	replace(t, first, []byte("1"))
	replace(t, second, []byte("2"))
	var file atomic.Pointer[string]
	file.Store(&first)
	wake, read := make(chan struct{}, 1), make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Follower{
			Files: func() []string { return []string{*file.Load()} }, Wake: wake, Clock: clock.Real(), Log: slog.New(slog.DiscardHandler),
			Read: func() time.Duration {
				raw, err := os.ReadFile(*file.Load())
				if err != nil {
					t.Error(err)
				}
				select {
				case <-read:
				default:
				}
				read <- string(raw)
				return time.Hour
			},
		}.Run(ctx)
	}()
	until := func(want string) {
		t.Helper()
		deadline := time.After(time.Minute)
		for {
			select {
			case got := <-read:
				if got == want {
					return
				}
			case <-deadline:
				t.Fatalf("%q has not been read", want)
			}
		}
	}
	until("1")
	replace(t, first, []byte("one"))
	until("one")
	file.Store(&second)
	wake <- struct{}{}
	until("2")
	replace(t, second, []byte("two"))
	until("two")
	cancel()
	<-done
}

// replace renames a new file to path.
func replace(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
