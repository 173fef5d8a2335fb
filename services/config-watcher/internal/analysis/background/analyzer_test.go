package background

import (
	"context"
	"fmt"
	"testing"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

func route(name, host string) normalise.Change {
	k := object.Key{Group: kinds.GroupNetworking, Kind: "VirtualService", Namespace: "apps", Name: name}
	return normalise.Change{Key: k, Object: &object.Object{Key: k, Body: &networking.VirtualService{
		Hosts: []string{name}, Http: []*networking.HTTPRoute{
			{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}}}}},
	}}}
}

func service(name string, there bool) normalise.Change {
	c := normalise.Change{Key: object.Key{Kind: "Service", Namespace: "apps", Name: name}}
	if there {
		c.Object = &object.Object{Key: c.Key, Body: &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}}
	}
	return c
}

func start(t *testing.T) *Analyzer {
	t.Helper()
	return startWith(t, Config{Log: testkit.Logger(t), Clock: clock.Real()})
}

func startWith(t *testing.T, cfg Config) *Analyzer {
	t.Helper()
	a := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return a
}

// submit queues changes and waits until the findings cover them.
func (a *Analyzer) submit(t *testing.T, changes ...normalise.Change) {
	t.Helper()
	a.Submit(changes, &mesh.MeshConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := a.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestAnalyzerFollowsChanges: the findings cover every submitted change, and Since lists those that have appeared.
func TestAnalyzerFollowsChanges(t *testing.T) {
	a := start(t)
	own, others, err := a.DryRun(t.Context(), []normalise.Change{route("early", "nobody")})
	if err != nil || len(own)+len(others) > 0 {
		t.Errorf("before the first revision: %v, %v, %v", own, others, err)
	}
	const many = 4 * chunk
	changes := []normalise.Change{{Key: object.Key{Kind: "Namespace", Name: "apps"},
		Object: &object.Object{Key: object.Key{Kind: "Namespace", Name: "apps"}}}}
	for i := range many {
		changes = append(changes, route(fmt.Sprintf("r%04d", i), "server"))
	}
	a.submit(t, changes...)
	if n := len(a.All()); n != many {
		t.Fatalf("%d findings, want %d", n, many)
	}
	a.submit(t, service("server", true))
	if n := len(a.All()); n != 0 {
		t.Errorf("%d findings although nothing is missing", n)
	}
	mark := a.Mark()
	own, others, err = a.DryRun(t.Context(), []normalise.Change{service("server", false), route("late", "server")})
	if err != nil || len(own) != 1 || len(others) != many {
		t.Errorf("dry run: %v, %d, %v", own, len(others), err)
	}
	if found := a.Since(mark, nil); len(found) > 0 || len(a.All()) > 0 {
		t.Errorf("a dry run left findings: %v", found)
	}
	a.submit(t, service("server", false))
	if found := a.Since(mark, []object.Key{changes[1].Key}); len(found) != many-1 {
		t.Errorf("%d findings since, want %d", len(found), many-1)
	}
	if found := a.Since(a.Mark(), nil); len(found) > 0 {
		t.Errorf("since now: %v", found)
	}
	if found := a.About("r0007.apps.svc.cluster.local"); len(found) != 1 || found[0].Key.Name != "r0007" {
		t.Errorf("about a host: %v", found)
	}
	a.submit(t, service("server", true))
	if found := a.Since(mark, nil); len(found) > 0 {
		t.Errorf("findings that no longer hold: %v", found)
	}
	if len(a.recent) > 2*maxRecent {
		t.Errorf("%d recent findings are kept", len(a.recent))
	}
}

// TestRecentFindingsAreBounded: the memory of findings that appeared is bounded, however often they come and go.
func TestRecentFindingsAreBounded(t *testing.T) {
	a := start(t)
	var changes []normalise.Change
	for i := range 2 * maxRecent {
		changes = append(changes, route(fmt.Sprintf("r%05d", i), "server"))
	}
	a.submit(t, changes...)
	a.submit(t, service("server", true))
	a.submit(t, service("server", false))
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.recent); n > 2*maxRecent {
		t.Errorf("%d recent findings are kept", n)
	}
}
