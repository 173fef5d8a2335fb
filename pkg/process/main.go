package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"fairlead.dev/pkg/terminal"
)

// Exit codes of every Fairlead program.
const (
	ExitOK      = 0 // did what was asked, or was stopped by a signal
	ExitFailure = 1 // failed while running
	ExitUsage   = 2 // wrong flags or arguments
	ExitRefused = 3 // input (a configuration, a request) is not valid
)

// burst is how long after the first signal another counts as the same one: timeout(1), for example, signals both the
// program and its process group.
const burst = 250 * time.Millisecond

// Main runs a program and exits. SIGINT or SIGTERM ends ctx, on which run must return; a second signal exits at once.
// An error is printed on stderr; the exit code is that of WithExitCode, else ExitFailure.
func Main(name string, run func(ctx context.Context) error) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	os.Exit(runMain(name, run, signals, burst, os.Exit, os.Stderr))
}

func runMain(name string, run func(context.Context) error, signals <-chan os.Signal, burst time.Duration, exit func(int),
	stderr io.Writer) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-signals:
			cancel()
		case <-done:
			return
		}
		first := time.Now()
		for {
			select {
			case sig := <-signals:
				if time.Since(first) < burst {
					continue
				}
				fmt.Fprintf(stderr, "%s: second signal (%s), stopping at once\n", name, sig)
				exit(ExitFailure)
			case <-done:
			}
			return
		}
	}()

	err := run(ctx)
	if err == nil || (ctx.Err() != nil && errors.Is(err, context.Canceled)) {
		return ExitOK
	}
	fmt.Fprintf(terminal.Safe(stderr), "%s: %v\n", name, err)
	return ExitCode(err)
}

type exitError struct {
	error
	code int
}

func (e *exitError) Unwrap() error { return e.error }

// WithExitCode makes Main exit with code for err; nil stays nil.
func WithExitCode(err error, code int) error {
	if err == nil {
		return nil
	}
	return &exitError{error: err, code: code}
}

// Usage makes Main exit with ExitUsage for err; nil stays nil.
func Usage(err error) error { return WithExitCode(err, ExitUsage) }

// Usagef is Usage of an error that fmt.Errorf makes.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// Refused makes Main exit with ExitRefused for err; nil stays nil.
func Refused(err error) error { return WithExitCode(err, ExitRefused) }

// Refusedf is Refused of an error that fmt.Errorf makes.
func Refusedf(format string, args ...any) error { return Refused(fmt.Errorf(format, args...)) }

// ExitCode returns the code with which Main exits for err.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	return ExitFailure
}
