package harness

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/held"
	"fairlead.dev/tests/scenarios/internal/runner"
	"fairlead.dev/tests/scenarios/internal/store"
)

// admin asks Envoy's admin interface.
func (l *workload) admin(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, store.AckedWithin)
	defer cancel()
	raw, err := probe.Get(ctx, l.envoy(), "http://envoy"+path)
	if err != nil {
		err = fmt.Errorf("the proxy of %s: %w", l.spec.Name, err)
	}
	return raw, err
}

// envoy is a client of Envoy's admin interface.
func (l *workload) envoy() *http.Client {
	return probe.Unix(filepath.Join(l.state(), probe.EnvoyAdmin))
}

// onDemand tells whether the workload's sidecar asks for what it calls, and keeps that.
func (l *workload) onDemand() bool {
	return l.harness.options.OnDemand && l.spec.Kind == format.Sidecar && l.spec.Capture != format.None
}

// Held lists the names of what a proxy holds.
func (h *Harness) Held(ctx context.Context, name string) (runner.Held, error) {
	l, err := h.find(name)
	if err != nil {
		return runner.Held{}, err
	}
	if !l.spec.HasProxy() {
		return runner.Held{}, fmt.Errorf("%s has no proxy", name)
	}
	all, err := l.xds.Holdings(ctx)
	if err != nil {
		return runner.Held{}, err
	}
	return all.Names(l.onDemand())
}

// look reads everything that all proxies hold that run.
func (h *Harness) look(ctx context.Context) (map[string]held.Known, error) {
	out := map[string]held.Known{}
	var mu sync.Mutex
	err := wait.Each(h.proxies(), func(l *workload) error {
		k, err := l.xds.Look(ctx)
		mu.Lock()
		defer mu.Unlock()
		out[l.spec.Name] = k
		return err
	})
	return out, err
}

// sent tells, by proxy, what it was sent.
func (h *Harness) sent(ctx context.Context) (map[string]held.Sent, error) {
	proxies, err := h.store.Proxies(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]held.Sent{}
	for _, p := range proxies {
		types := held.Sent{}
		for _, t := range p.Types {
			_, name, _ := strings.Cut(t.TypeUrl, "/")
			types[name] = fmt.Sprintf("%s %s %d", p.XdsServer, p.ConnectedAt.AsTime(), t.BytesSent)
		}
		out[p.NodeId] = types
	}
	return out, nil
}

// nodeID is the proxy's name among those that the control plane knows.
func (l *workload) nodeID() string {
	role := "sidecar"
	if l.isGateway() {
		role = "router"
	}
	return fmt.Sprintf("%s~%s~%s.%s~%[4]s.svc.%s", role, l.host.IP, l.spec.Name, l.spec.Namespace, domain)
}

// differences of what proxies hold to what they held at a snapshot, and which proxies those are.
func (h *Harness) differences(ctx context.Context, s *Snapshot, proxies []*workload) (out []string, of []*workload, err error) {
	sent, err := h.sent(ctx)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	err = wait.Each(proxies, func(l *workload) error {
		mu.Lock()
		was := s.held[l.spec.Name]
		mu.Unlock()
		diff, err := l.xds.Compare(ctx, &was, l.onDemand(), s.sent[l.nodeID()], sent[l.nodeID()])
		mu.Lock()
		defer mu.Unlock()
		s.held[l.spec.Name] = was
		if len(diff) > 0 {
			out, of = append(out, diff...), append(of, l)
		}
		return err
	})
	slices.Sort(out)
	return out, of, err
}
