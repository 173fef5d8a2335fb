package harness

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"fairlead.dev/tests/internal/controlplane"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/document"
)

// part is a part of the fleet that can be started and ended.
type part struct {
	services []*controlplane.Service
	workload *workload
	// what is empty for all of the workload, proxy, agent or app.
	what string
}

// Parts of a workload.
const (
	partProxy = "proxy"
	partAgent = "agent"
	partApp   = "app"
)

func (h *Harness) part(target string) (part, error) {
	if s := h.plane.Find(target); len(s) > 0 {
		return part{services: s}, nil
	}
	name, what, _ := strings.Cut(target, "/")
	l, err := h.find(name)
	if err != nil {
		return part{}, fmt.Errorf("%s: neither a service of Fairlead nor of a workload: %w", target, err)
	}
	switch {
	case what == "", what == partApp && l.hasApp(), what == partAgent && l.hasAgent(), what == partProxy && l.spec.HasProxy():
		return part{workload: l, what: what}, nil
	}
	return part{}, fmt.Errorf("%s: workload %s has no such part", target, name)
}

// change does something to a part of the fleet, and has the Pods say so.
func (h *Harness) change(ctx context.Context, target string, do func(part) error) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	p, err := h.part(target)
	if err != nil {
		return err
	}
	if err := do(p); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	if p.workload == nil || !p.workload.shown {
		return nil
	}
	return h.showPods(ctx, p.workload)
}

// Stop ends a part of the fleet as asked by SIGTERM.
func (h *Harness) Stop(ctx context.Context, target string) error {
	return h.change(ctx, target, h.stopPart)
}

func (h *Harness) stopPart(p part) error {
	if p.workload == nil {
		return wait.Each(p.services, func(s *controlplane.Service) error { return s.Stop(endWithin) })
	}
	switch p.what {
	case partApp:
		return p.workload.stopApp()
	case partProxy, partAgent:
		return p.workload.stopAgent()
	}
	return p.workload.stop()
}

// Kill ends a part of the fleet by SIGKILL.
func (h *Harness) Kill(ctx context.Context, target string) error {
	return h.change(ctx, target, func(p part) error {
		for _, s := range p.services {
			s.Kill()
		}
		l := p.workload
		if l == nil {
			return nil
		}
		if p.what == partProxy {
			return l.killEnvoy()
		}
		if p.what == "" || p.what == partAgent {
			l.kill(&l.agent)
		}
		if p.what == "" || p.what == partApp {
			l.kill(&l.app)
		}
		return nil
	})
}

// Start starts a part of the fleet that does not run, and waits until it is ready.
func (h *Harness) Start(ctx context.Context, target string) error {
	return h.change(ctx, target, func(p part) error { return h.startPart(ctx, p) })
}

func (h *Harness) startPart(ctx context.Context, p part) error {
	if p.workload == nil {
		return wait.Each(p.services, func(s *controlplane.Service) error { return restart(ctx, s) })
	}
	l := p.workload
	err := l.prepare(ctx)
	if p.what != partApp && l.hasAgent() {
		err = errors.Join(err, l.startAgent())
	}
	if (p.what == "" || p.what == partApp) && l.hasApp() {
		err = errors.Join(err, l.startApp(ctx))
	}
	if err != nil {
		return err
	}
	return l.wait(ctx)
}

// restart starts the service, if it does not run, and waits for it.
func restart(ctx context.Context, s *controlplane.Service) error {
	if err := s.Start(); err != nil {
		return err
	}
	return s.WaitReady(ctx)
}

// Evict ends a workload as a node does: its Pod goes and its agent is asked to end at once, whether or not callers know
// of it; then end ends the application. Add starts the workload again.
func (h *Harness) Evict(ctx context.Context, name string, end func(app *netns.Process) error) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	l, err := h.find(name)
	if err != nil {
		return err
	}
	if !l.shown || !running(l.app) {
		return fmt.Errorf("%s does not run", name)
	}
	l.shown, l.ready = false, false
	err = errors.Join(h.store.Delete(ctx, []string{document.Ref("Pod", l.spec.Namespace, l.spec.Name)}), l.stopAgent(), end(l.app))
	l.kill(&l.app)
	return err
}

// Restart ends a part of the fleet and starts it again.
func (h *Harness) Restart(ctx context.Context, target string) error {
	return h.change(ctx, target, func(p part) error {
		if err := h.stopPart(p); err != nil {
			return err
		}
		return h.startPart(ctx, p)
	})
}

// Add starts a workload with its Pod.
func (h *Harness) Add(ctx context.Context, name string) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	l, err := h.find(name)
	if err != nil {
		return err
	}
	if err := l.show(ctx); err != nil {
		return err
	}
	if err := l.start(ctx); err != nil {
		return err
	}
	if err := h.showPods(ctx, l); err != nil {
		return err
	}
	return h.store.Acked(ctx, 0)
}

// show makes the Pod, which is not ready.
func (l *workload) show(ctx context.Context) error {
	if l.shown {
		return nil
	}
	l.shown, l.ready = true, false
	_, err := l.harness.store.Apply(ctx, document.Encode(l.pod(false)))
	return err
}

// Remove ends a workload and takes its Pod away.
func (h *Harness) Remove(ctx context.Context, name string) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	l, err := h.find(name)
	if err != nil {
		return err
	}
	if !l.shown {
		return fmt.Errorf("%s does not run", name)
	}
	l.shown, l.ready = false, false
	if err := h.store.Delete(ctx, []string{document.Ref("Pod", l.spec.Namespace, l.spec.Name)}); err != nil {
		return err
	}
	if err := h.store.Acked(ctx, 0); err != nil {
		return err
	}
	return l.stop()
}

// Apply creates or replaces objects; with wait, every connected proxy has acknowledged them when it returns. An object
// that validation refuses is a *Refused.
func (h *Harness) Apply(ctx context.Context, yaml string, wait bool) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	revision, err := h.store.Apply(ctx, yaml)
	if err != nil || !wait {
		return err
	}
	return h.inForce(ctx, revision)
}

// Delete removes objects, each named Kind/namespace/name.
func (h *Harness) Delete(ctx context.Context, refs []string, wait bool) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	if err := h.store.Delete(ctx, refs); err != nil || !wait {
		return err
	}
	return h.inForce(ctx, 0)
}

// inForce waits until every connected proxy has acknowledged a revision, the newest if it is 0, and uses it.
func (h *Harness) inForce(ctx context.Context, revision uint64) error {
	if err := h.store.Acked(ctx, revision); err != nil {
		return err
	}
	h.settle(ctx)
	return nil
}
