package filewatch_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/pkg/filewatch"
	"fairlead.dev/pkg/testkit"
)

// Files that change one after the other are read once, when they have not changed for the time.
func TestChangesThatComeTogetherAreReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	testkit.WriteFile(t, path, []byte("0"))
	c := testkit.NewClock(time.Now())
	read := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		filewatch.Follower{
			Files: func() []string { return []string{path} }, Clock: c, Log: slog.New(slog.DiscardHandler), Debounce: time.Second,
			Read: func() time.Duration {
				raw, err := os.ReadFile(path)
				if err != nil {
					t.Error(err)
				}
				read <- string(raw)
				return time.Hour
			},
		}.Run(ctx)
	}()
	<-read
	for _, content := range []string{"1", "2"} {
		testkit.WriteFile(t, path, []byte(content))
		c.WaitFor(t, 3) // the next reading, the end of the wait, and its bound
		c.Advance(time.Millisecond)
	}
	select {
	case got := <-read:
		t.Errorf("read %q before the time", got)
	default:
	}
	c.Advance(time.Second)
	if got := <-read; got != "2" {
		t.Errorf("read %q, want what came last", got)
	}
	cancel()
	<-done
}
