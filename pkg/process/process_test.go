package process_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
)

func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestRunFirstErrorWinsAndCarriesTheTaskName(t *testing.T) {
	boom := errors.New("boom")
	stopped := false
	err := process.Run(t.Context(), testkit.Logger(t),
		process.Task{Name: "good", Run: func(ctx context.Context) error {
			<-ctx.Done()
			stopped = true
			return errors.New("late trouble")
		}},
		process.Task{Name: "bad", Run: func(context.Context) error { return boom }},
	)
	if !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "bad: ") {
		t.Errorf("error is %v, want boom with the name of its task", err)
	}
	if !stopped {
		t.Error("Run returned before the other task had stopped")
	}
}

func TestRunEndingUnaskedIsAnError(t *testing.T) {
	err := process.Run(t.Context(), testkit.Logger(t),
		process.Task{Name: "server", Run: untilDone},
		process.Task{Name: "watcher", Run: func(context.Context) error { return nil }},
	)
	if !errors.Is(err, process.ErrEnded) || !strings.Contains(err.Error(), "watcher") {
		t.Errorf("error is %v, want ErrEnded for watcher", err)
	}
}

func TestRunCleanStop(t *testing.T) {
	for name, task := range map[string]func(context.Context) error{
		"context's error": untilDone,
		"nil":             func(ctx context.Context) error { <-ctx.Done(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := process.Run(ctx, testkit.Logger(t), process.Task{Name: "a", Run: task}); err != nil {
				t.Errorf("clean stop gave %v", err)
			}
		})
	}
}

func TestRunFailureWhileStopping(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	boom := errors.New("could not flush")
	err := process.Run(ctx, testkit.Logger(t), process.Task{Name: "a", Run: func(ctx context.Context) error {
		<-ctx.Done()
		return boom
	}})
	if !errors.Is(err, boom) {
		t.Errorf("error is %v, want the failure of stopping", err)
	}
}
