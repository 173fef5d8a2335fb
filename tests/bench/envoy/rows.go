package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"
)

// figures are what is measured of one sidecar.
type figures struct {
	ready, cpu         time.Duration
	idle, resident     int64
	clusters           int
	first, later, cost time.Duration
}

// Goals of a sidecar that holds only what it calls.
var goals = figures{ready: 300 * time.Millisecond, resident: 80 << 20, clusters: 15, cost: 15 * time.Millisecond}

// noise is by how much a time may be above its goal before the goal counts as missed.
const noise = 1.25

// laterCalls of each service follow its first one.
const laterCalls = 5

// run measures and prints; missed is true if a goal is.
func run(ctx context.Context, o options, out io.Writer) (missed bool, err error) {
	l, err := newLab(ctx, o)
	if err != nil {
		return false, err
	}
	defer l.close()
	fmt.Fprintf(out, "| Envoy, %d services, %d called | RSS idle | RSS | ready | CPU until ready | outbound clusters | first request | "+
		"later | more | |\n|---|---|---|---|---|---|---|---|---|---|\n",
		o.services, len(l.targets))
	for _, onDemand := range []bool{true, false} {
		var all []figures
		for turn := range o.turns + 1 {
			f, err := l.measure(ctx, onDemand)
			if err != nil {
				return missed, err
			}
			if turn > 0 { // the first one makes the server build what it sends
				all = append(all, f)
			}
		}
		f := middle(all)
		name, verdict := "all sent", ""
		if onDemand {
			name, verdict = "on demand", f.verdict()
			missed = missed || verdict != pass
		}
		fmt.Fprintf(out, "| %s | %.1f MiB | %.1f MiB | %.2f s | %.2f s | %d | %.1f ms | %.1f ms | %.1f ms | %s |\n", name, mib(f.idle),
			mib(f.resident), f.ready.Seconds(), f.cpu.Seconds(), f.clusters,
			millis(f.first), millis(f.later), millis(f.cost), verdict)
	}
	return missed, nil
}

const pass = "pass"

func (f figures) verdict() string {
	switch {
	case f.resident > goals.resident:
		return "**miss**: RSS"
	case float64(f.ready) > noise*float64(goals.ready):
		return "**miss**: ready"
	case f.clusters > goals.clusters:
		return "**miss**: clusters"
	case float64(f.cost) > noise*float64(goals.cost):
		return "**miss**: first request"
	}
	return pass
}

// measure starts a sidecar, calls, looks, and ends it.
func (l *lab) measure(ctx context.Context, onDemand bool) (f figures, err error) {
	s, err := l.sidecar(ctx, onDemand)
	if err != nil {
		return f, err
	}
	defer s.agent.Stop()
	f.ready = s.ready
	if f.cpu, err = s.cpu(); err != nil {
		return f, err
	}
	if f.idle, err = s.resident(); err != nil {
		return f, err
	}
	var first, later []time.Duration
	for _, t := range l.targets {
		for i := range 1 + laterCalls {
			took, err := t.call()
			switch {
			case err != nil:
				return f, fmt.Errorf("%w\n%s", err, s.agent.LogTail())
			case t.tcp:
			case i == 0:
				first = append(first, took)
			default:
				later = append(later, took)
			}
		}
	}
	f.first, f.later = median(first), median(later)
	f.cost = f.first - f.later
	if f.clusters, err = s.clusters(ctx); err != nil {
		return f, err
	}
	f.resident, err = s.resident()
	return f, err
}

// middle takes the median of each figure.
func middle(all []figures) figures {
	pick := func(of func(figures) int64) int64 {
		var list []int64
		for _, f := range all {
			list = append(list, of(f))
		}
		return median(list)
	}
	took := func(of func(figures) time.Duration) time.Duration {
		return time.Duration(pick(func(f figures) int64 { return int64(of(f)) }))
	}
	return figures{
		ready:    took(func(f figures) time.Duration { return f.ready }),
		cpu:      took(func(f figures) time.Duration { return f.cpu }),
		idle:     pick(func(f figures) int64 { return f.idle }),
		resident: pick(func(f figures) int64 { return f.resident }),
		clusters: int(pick(func(f figures) int64 { return int64(f.clusters) })),
		first:    took(func(f figures) time.Duration { return f.first }),
		later:    took(func(f figures) time.Duration { return f.later }),
		cost:     took(func(f figures) time.Duration { return f.cost }),
	}
}

func median[T cmp.Ordered](list []T) T {
	list = slices.Clone(list)
	slices.Sort(list)
	return list[len(list)/2]
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

func millis(d time.Duration) float64 { return float64(d) / 1e6 }
