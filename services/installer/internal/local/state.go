package local

import (
	"context"
	"fmt"
	"os"
	"time"

	"fairlead.dev/pkg/version"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/proto/fairlead/runstate"

	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// keepState writes state.json at every change. It repeats a write that fails, as on a full disk: the mesh goes on
// without it.
func (n *Node) keepState(ctx context.Context) error {
	failing := false
	for ctx.Err() == nil {
		changed := n.statuses.Changed()
		err := n.writeState()
		switch {
		case err != nil && !failing:
			n.cfg.Console.Line(fmt.Sprintf("warning: %v; the mesh goes on, but other commands see an old state until it can be written", err))
		case err == nil && failing:
			n.cfg.Console.Line("the state is written again")
		}
		if failing = err != nil; failing {
			n.wait(ctx, time.Second)
			continue
		}
		waitFor(ctx, changed)
	}
	return nil
}

// writeState writes state.json. The lock keeps an older state from replacing a newer one.
func (n *Node) writeState() error {
	n.stateMu.Lock()
	defer n.stateMu.Unlock()
	return rundir.Write(n.cfg.Layout, n.state())
}

// state returns the content of state.json.
func (n *Node) state() *runstate.State {
	entries := n.statuses.Snapshot()
	n.mu.Lock()
	defer n.mu.Unlock()
	p, l := n.cfg.Plan, n.cfg.Layout
	s := &runstate.State{
		PID: os.Getpid(), Birth: rundir.Birth(os.Getpid()),
		Version: version.Version, StartedAt: n.start.UTC(), RunDir: l.Dir, Ready: n.ready,
		TrustDomain: p.TrustDomain, RootCertFile: l.RootCert(), AdminTokenFile: l.AdminToken(),
		ConfigWatcherAddress: p.ConfigWatcher().GRPC.String(),
		EnvoyBinary:          n.cfg.EnvoyBinary, ConfigPaths: n.cfg.ConfigPaths,
		URLs: []runstate.URL{},
	}
	proc := func(p plan.Process) runstate.Process {
		e := entries[p.Name]
		out := runstate.Process{Name: p.Name, PID: e.PID, Path: p.Path, Log: p.Log, Ready: e.Ready, Restarts: e.Restarts}
		if e.PID > 0 {
			out.Birth = rundir.Birth(e.PID)
		}
		return out
	}
	identity := func(namespace, account string) string {
		return fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", p.TrustDomain, namespace, account)
	}
	for _, svc := range p.Services {
		s.Services = append(s.Services, runstate.Service{
			Process: proc(svc.Process), Program: svc.Program, GRPCAddress: svc.GRPC.String(), OpsAddress: svc.Ops.String(),
			Identity: identity(contract.SystemNamespace, svc.Account),
		})
	}
	for _, pod := range p.Pods {
		state := podState(pod, n.pods[pod.ID()], identity(pod.Namespace, pod.ServiceAccount), proc)
		state.Resting = n.resting[pod.ID()]
		s.Pods = append(s.Pods, state)
	}
	for _, u := range p.URLs {
		s.URLs = append(s.URLs, runstate.URL(u))
	}
	return s
}

func podState(pod *plan.Pod, ready bool, identity string, proc func(plan.Process) runstate.Process) runstate.Pod {
	out := runstate.Pod{
		Name: pod.Name, Namespace: pod.Namespace, Workload: pod.Workload, ServiceAccount: pod.ServiceAccount,
		Labels: pod.Labels, IP: pod.IP.String(), Kind: string(pod.Kind), Ready: ready, Identity: identity,
		Containers: []runstate.Container{},
	}
	for _, c := range pod.Containers {
		ports := map[string]string{}
		for _, port := range c.Ports {
			ports[fmt.Sprint(port.Number)] = port.Listen.String()
		}
		out.Containers = append(out.Containers, runstate.Container{Process: proc(c.Process), Container: c.Container, Ports: ports})
	}
	if a := pod.Agent; a != nil {
		out.NodeID = pod.NodeID()
		out.Agent = &runstate.Agent{
			Process: proc(a.Process), StateDir: a.StateDir, AdminSocket: a.AdminSocket(),
			StatusAddress: a.Status.String(), ReadyAddress: a.Ready.String(), TokenFile: a.TokenFile,
		}
	}
	return out
}
