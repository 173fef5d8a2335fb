package authz_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"fairlead.dev/services/installer/internal/cli"
	"fairlead.dev/services/installer/internal/cli/command"
)

// A command that waits for standard input ends with its context, as at Ctrl-C.
func TestReadingStandardInputIsInterrupted(t *testing.T) {
	in, keep := io.Pipe()
	defer keep.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		var out bytes.Buffer
		env := command.Env{In: in, Out: &out, Err: &out, Executable: "/nowhere/fairlead", Getenv: func(string) string { return "" }}
		done <- cli.Run(ctx, env, []string{"authz", "check", "-f", "-", "a", "b"})
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it still reads")
	}
}
