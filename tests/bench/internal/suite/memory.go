package suite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/bench/internal/proxy"
	"fairlead.dev/tests/bench/internal/services"
	"fairlead.dev/tests/internal/wait"
)

// memorySettles is how long after a cold start memory is read: what a burst took is given back within some seconds.
const memorySettles = 10 * time.Second

// memory measures xds-server with the real config-watcher, which reads the mesh from a file.
func (l *lab) memory(ctx context.Context, t *table) error {
	spec := ordinary(1000)
	file := filepath.Join(l.dir, "mesh.yaml")
	raw, err := spec.Manifest()
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return err
	}
	watcher, err := l.services.ConfigWatcher(ctx, "--config-dir", file)
	if err != nil {
		return err
	}
	defer watcher.Stop()
	s, err := l.serve(ctx, watcher.GRPC)
	if err != nil {
		return err
	}
	defer s.Stop()
	// The last ones are of a class that the first ones are not of.
	all := spec.Proxies()
	const first, others = 200, 2
	known := &fixture{lab: l, spec: ordinary(first), fleet: proxy.NewFleet(slices.Concat(all[:first-others], all[len(all)-others:]))}
	defer known.fleet.Close()
	cold, err := known.connectAll(ctx, s, proxy.Target{Address: s.plaintext})
	if err != nil {
		return err
	}
	before, watching, err := l.settled(ctx, s, watcher)
	if err != nil {
		return err
	}
	if err := l.heap(ctx, s.Ops, "memory-200"); err != nil {
		return err
	}
	if err := l.heap(ctx, watcher.Ops, "memory-200-config-watcher"); err != nil {
		return err
	}
	both := float64(before.Resident + watching.Resident)
	t.add(line{
		id: "memory/both", what: fmt.Sprintf("memory at 200 sidecars: xds-server %s (peak %s) + config-watcher %s (peak %s)",
			size(float64(before.Resident)),
			size(float64(before.Peak)), size(float64(watching.Resident)), size(float64(watching.Peak))),
		figure: size(both), goal: "≤ 150 MiB", peer: "302–452 MiB", verdict: judge(both, 150<<20, true),
	})
	t.bytesLine("memory/bytes", "cold start of these 200: bytes per proxy", float64(cold.bytes)/first, -1, "")
	more := &fixture{lab: l, spec: spec, fleet: proxy.NewFleet(all[first-others : len(all)-others])}
	defer more.fleet.Close()
	if _, err := more.connectAll(ctx, s, proxy.Target{Address: s.plaintext}); err != nil {
		return err
	}
	after, watchingAfter, err := l.settled(ctx, s, watcher)
	if err != nil {
		return err
	}
	if err := l.heap(ctx, s.Ops, "memory-1000"); err != nil {
		return err
	}
	each := (float64(after.Resident+watchingAfter.Resident) - both) / float64(spec.Sidecars-first)
	t.bytesLine("memory/each", "memory of a further proxy of a known class", each, 150<<10, "")
	return nil
}

// settled reads the memory of both.
func (l *lab) settled(ctx context.Context, s *server, watcher *services.Server) (xds, config machine.Memory, err error) {
	if err := wait.Pause(ctx, memorySettles); err != nil {
		return xds, config, err
	}
	if xds, err = s.Memory(); err != nil {
		return xds, config, err
	}
	config, err = watcher.Memory()
	return xds, config, err
}
