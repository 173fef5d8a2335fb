package issuing

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// storm lets many agents ask the ca at once, which has all cores, beside its clients, which have one.
func (b *bench) storm(ctx context.Context) ([]Goal, error) {
	fmt.Fprintf(b.Log, "%d agents at once\n", stormAgents)
	a, err := NewAuthority(filepath.Join(b.Dir, "storm"), ECDSA)
	if err != nil {
		return nil, err
	}
	ca, err := b.istioAPI(StartCA(ctx, b.CA, a, b.keys, b.all()))
	if err != nil {
		return nil, err
	}
	storm, err := ca.storm(ctx, b.keys, &b.cores.Clients)
	if err != nil {
		return nil, err
	}
	return []Goal{{
		fmt.Sprintf("ca, %d agents at once: all have certificates (%s of CPU in the ca, %s in the agents; %d attempts refused, an error: %v)",
			stormAgents, storm.cpu.Round(time.Millisecond), storm.clients.Round(time.Millisecond), storm.refused, storm.first),
		"≤ " + stormGoal.String(), storm.took.Round(time.Millisecond).String(), storm.took <= stormGoal && storm.missing == 0,
	}, {
		fmt.Sprintf("ca, %d agents at once: probes of health that failed, of %d (the slowest took %s; %s)", stormAgents, storm.health.Probes,
			storm.health.Slowest.Round(time.Millisecond), cmp.Or(storm.health.First, "no error")), "0", fmt.Sprint(storm.health.Sick),
		storm.health.Sick == 0,
	}}, nil
}

// memory has many proxies acknowledge. The ca then has all cores, beside its clients.
func (b *bench) memory(ctx context.Context) ([]Goal, error) {
	fmt.Fprintf(b.Log, "%d proxies acknowledge\n", proxies)
	extra := filepath.Join(b.Dir, "extra-roots.pem")
	first, err := NewAuthority(filepath.Join(b.Dir, "extra"), ECDSA)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(extra, certPEM(first.Root), 0o600); err != nil {
		return nil, err
	}
	a, err := NewAuthority(filepath.Join(b.Dir, "acks"), ECDSA)
	if err != nil {
		return nil, err
	}
	ca, err := b.istioAPI(StartCA(ctx, b.CA, a, b.keys, b.all(), "--extra-roots-file", extra))
	if err != nil {
		return nil, err
	}
	most, slowest, err := ca.acknowledge(ctx, b.keys, extra)
	if err != nil {
		return nil, fmt.Errorf("%d proxies acknowledge: %w", proxies, err)
	}
	return []Goal{{
		fmt.Sprintf("ca, %d proxies acknowledging by way of %d servers: resident memory", proxies, servers),
		fmt.Sprintf("≤ %d MiB", residentGoal>>20),
		fmt.Sprintf("%.1f MiB", float64(most)/(1<<20)), most <= residentGoal,
	}, {
		fmt.Sprintf("ca, %d proxies acknowledging: from a new root to its last acknowledgement", proxies),
		"≤ " + ackedGoal.String(), slowest.Round(10 * time.Millisecond).String(), slowest <= ackedGoal,
	}}, nil
}

// all are all cores.
func (b *bench) all() *unix.CPUSet {
	all := b.cores.Server
	for cpu := range 1024 {
		if b.cores.Clients.IsSet(cpu) {
			all.Set(cpu)
		}
	}
	return &all
}
