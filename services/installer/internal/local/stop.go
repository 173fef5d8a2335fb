package local

import (
	"context"
	"errors"
	"os"
	"sync"

	"fairlead.dev/services/installer/internal/local/plan"
)

// stop stops all processes in groups, one group after the other. Processes that still run after StopTimeout are killed.
func (n *Node) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.StopTimeout)
	defer cancel()
	var gateways, sidecars, apps, agents, xds, rest []string
	for _, p := range n.cfg.Plan.Pods {
		for _, c := range p.Containers {
			apps = append(apps, c.Name)
		}
		switch {
		case p.Agent == nil:
		case p.Kind == plan.Gateway:
			gateways = append(gateways, p.Agent.Name)
		case p.Agent.NoEnvoy: // a proxyless gRPC client uses its agent until it ends
			agents = append(agents, p.Agent.Name)
		default:
			sidecars = append(sidecars, p.Agent.Name)
		}
	}
	for _, s := range n.cfg.Plan.Services {
		if s.Program == "xds-server" {
			xds = append(xds, s.Name)
		} else {
			rest = append(rest, s.Name)
		}
	}
	for _, group := range [][]string{gateways, sidecars, apps, agents, xds, rest} {
		n.stopProcesses(ctx, group)
	}
	return n.writeState()
}

// stopProcesses stops processes at the same time, and returns when all have ended.
func (n *Node) stopProcesses(ctx context.Context, names []string) {
	var wg sync.WaitGroup
	for _, name := range names {
		n.mu.Lock()
		p := n.procs[name]
		n.mu.Unlock()
		if p != nil { // nil if Run ended before startPods
			wg.Go(func() { p.Stop(ctx) })
		}
	}
	wg.Wait()
}

func (n *Node) removeReadyFile() error {
	if n.cfg.ReadyFile == "" {
		return nil
	}
	if err := os.Remove(n.cfg.ReadyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
