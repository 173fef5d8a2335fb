// Command envoy measures the real Envoy as a sidecar of a mesh with many services, ten of which are called: once
// holding only what is called, once holding everything. It prints one row of a table each. See docs/performance.md.
//
// It needs root, `ip` and `nft`: connections are redirected to Envoy, in a network namespace of its own.
//
// Exit code 0: every goal is reached. 1: one is missed, or the benchmark could not run. 2: wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// inside is set in the environment of the process that runs in the network namespace.
const inside = "FAIRLEAD_BENCH_ENVOY_INSIDE"

type options struct {
	binDir, envoy string
	services      int
	turns         int
	keep          string
}

func main() {
	var o options
	flag.StringVar(&o.binDir, "bin", "bin", "directory of the binaries: ca, xds-server, node-agent")
	flag.StringVar(&o.envoy, "envoy", ".tools/envoy", "the Envoy binary")
	flag.IntVar(&o.services, "services", 5000, "services in the mesh, at least 200")
	flag.IntVar(&o.turns, "turns", 3, "how often each row is measured; the median counts")
	flag.StringVar(&o.keep, "keep", "", "directory for logs; empty: one that is removed at the end")
	flag.Parse()
	if flag.NArg() > 0 || o.services < 200 || o.turns < 1 {
		fmt.Fprintln(os.Stderr, "envoy: takes no arguments; -services is 200 or more, -turns 1 or more")
		os.Exit(2)
	}
	if os.Getenv(inside) == "" {
		os.Exit(enter())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	missed, err := run(ctx, o, os.Stdout)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "envoy: could not run:", err)
		os.Exit(1)
	case missed:
		fmt.Fprintln(os.Stderr, "envoy: a goal is missed")
		os.Exit(1)
	}
}

// enter runs the program again in a new network namespace and returns its exit code.
func enter() int {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "envoy: needs root to make a network namespace")
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "envoy:", err)
		return 1
	}
	cmd := exec.Command(self, os.Args[1:]...) //nolint:gosec // this program
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "envoy: network namespace:", err)
		return 1
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may have ended
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "envoy:", err)
		return 1
	}
	return 0
}
