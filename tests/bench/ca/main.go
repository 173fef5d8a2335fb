// Command ca measures what an issued certificate costs Fairlead's ca, end to end over kept TLS connections, beside a
// floor that only checks the request and signs, beside istiod, step-ca and SPIRE: with the same intermediate, requests
// and clients, on the same core in turn. It prints a table, and what must hold. See docs/performance.md.
//
// Exit code 0: every goal is reached. 1: one is missed, or the benchmark could not run. 2: wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"fairlead.dev/tests/bench/internal/issuing"
	"fairlead.dev/tests/bench/internal/machine"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == issuing.FloorRole {
		if err := issuing.ServeFloor(os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "floor:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 3 && os.Args[1] == issuing.ProberRole {
		if err := issuing.ServeProber(os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "prober:", err)
			os.Exit(1)
		}
		return
	}
	o := issuing.Options{Log: os.Stderr}
	var realtime bool
	flag.StringVar(&o.CA, "ca", "bin/ca", "the ca's binary")
	flag.StringVar(&o.Istiod, "istiod", "", "Istio's pilot-discovery; empty: left out")
	flag.StringVar(&o.StepCA, "step-ca", "", "Smallstep's step-ca; empty: left out")
	flag.StringVar(&o.SPIRE, "spire", "", "SPIRE's spire-server; empty: left out")
	flag.IntVar(&o.Turns, "turns", 3, "how often each row is measured; the median counts")
	flag.DurationVar(&o.During, "during", 4*time.Second, "how long each row is measured in a turn")
	flag.StringVar(&o.Only, "only", "", "a part to run alone: "+strings.Join(issuing.Parts(), ", "))
	flag.StringVar(&o.Dir, "keep", "", "directory for logs; empty: one that is removed at the end")
	flag.BoolVar(&realtime, "realtime", false, "run before other programs of the machine, which needs root")
	flag.Parse()
	if flag.NArg() > 0 || o.Turns < 1 || o.During < time.Second || o.Only != "" && !slices.Contains(issuing.Parts(), o.Only) {
		fmt.Fprintln(os.Stderr, "ca: takes no arguments; -turns is 1 or more, -during 1s or more, -only a part of the benchmark")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, realtime)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ca:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o issuing.Options, realtime bool) error {
	if realtime {
		if err := machine.Realtime(); err != nil {
			return err
		}
	}
	if o.Dir == "" {
		dir, err := issuing.TempDir()
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.Dir = dir
	}
	rows, goals, err := issuing.Run(ctx, o)
	all := issuing.Print(os.Stdout, rows, goals) // what there is
	if err != nil {
		return fmt.Errorf("could not run: %w", err)
	}
	if !all {
		return errors.New("a goal is missed")
	}
	return nil
}
