package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

func TestMainExitCodes(t *testing.T) {
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		err  error
		want int
	}{
		"success":         {nil, ExitOK},
		"failure":         {boom, ExitFailure},
		"usage":           {WithExitCode(boom, ExitUsage), ExitUsage},
		"refused, deeper": {fmt.Errorf("apply: %w", WithExitCode(boom, ExitRefused)), ExitRefused},
		"cancelled without a signal is a failure": {context.Canceled, ExitFailure},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			code := runMain("prog", func(context.Context) error { return tc.err }, nil, 0, nil, &stderr)
			if code != tc.want {
				t.Errorf("exit code %d, want %d", code, tc.want)
			}
			if tc.err != nil && !strings.Contains(stderr.String(), "prog: "+tc.err.Error()) {
				t.Errorf("stderr %q does not tell the error", stderr.String())
			}
		})
	}
	if WithExitCode(nil, ExitUsage) != nil {
		t.Error("WithExitCode(nil) is an error")
	}
	if !errors.Is(WithExitCode(boom, ExitUsage), boom) {
		t.Error("WithExitCode hides the error")
	}
}

func TestMainFirstSignalCancels(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	code := runMain("prog", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, signals, 0,
		func(int) { t.Error("exited at the first signal") }, &bytes.Buffer{})
	if code != ExitOK {
		t.Errorf("exit code %d after a clean stop", code)
	}
}

func TestMainSecondSignalExitsAtOnce(t *testing.T) {
	signals := make(chan os.Signal, 2)
	signals <- syscall.SIGINT
	signals <- syscall.SIGINT
	exited := make(chan int, 1)
	var stderr bytes.Buffer
	runMain("prog", func(context.Context) error {
		code := <-exited // hangs until the second signal is acted upon
		if code != ExitFailure {
			t.Errorf("exit code %d, want %d", code, ExitFailure)
		}
		return nil
	}, signals, 0, func(code int) { exited <- code }, &stderr)
	if !strings.Contains(stderr.String(), "second signal") {
		t.Errorf("stderr %q does not say why", stderr.String())
	}
}

func TestMainSignalsOfOneBurstAreOneWish(t *testing.T) {
	signals := make(chan os.Signal, 2)
	signals <- syscall.SIGTERM
	signals <- syscall.SIGTERM
	code := runMain("prog", func(ctx context.Context) error {
		<-ctx.Done()
		testkit.Eventually(t, testkit.Patience, func() error {
			if len(signals) > 0 {
				return errors.New("the second signal has not been read")
			}
			return nil
		})
		return ctx.Err()
	}, signals, time.Hour, func(int) { t.Error("exited at the second signal of the burst") }, &bytes.Buffer{})
	if code != ExitOK {
		t.Errorf("exit code %d after a clean stop", code)
	}
}
