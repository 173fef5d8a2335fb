package findings

import (
	"context"
	"fmt"
	"testing"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

func route(name, host string) normalise.Change {
	k := object.Key{Group: validate.GroupNetworking, Kind: "VirtualService", Namespace: "apps", Name: name}
	return normalise.Change{Key: k, Object: &object.Object{Key: k, Body: &networking.VirtualService{
		Hosts: []string{name}, Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}}}}},
	}}}
}

func service(name string, there bool) normalise.Change {
	c := normalise.Change{Key: object.Key{Kind: "Service", Namespace: "apps", Name: name}}
	if there {
		c.Object = &object.Object{Key: c.Key, Body: &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}}
	}
	return c
}

func start(t *testing.T) *Keeper {
	t.Helper()
	k := New(Config{Log: testkit.Logger(t), Clock: clock.Real()})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return k
}

// submit queues changes and waits until they are taken into account.
func (k *Keeper) submit(t *testing.T, changes ...normalise.Change) {
	t.Helper()
	k.Submit(changes, &mesh.MeshConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := k.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestKeeper: the findings are those of all that was submitted, whatever it takes to judge it, and what appears is remembered.
func TestKeeper(t *testing.T) {
	k := start(t)
	own, others, err := k.Try(t.Context(), []normalise.Change{route("early", "nobody")})
	if err != nil || len(own)+len(others) > 0 {
		t.Errorf("before the first revision: %v, %v, %v", own, others, err)
	}
	const many = 4 * chunk
	var changes []normalise.Change
	for i := range many {
		changes = append(changes, route(fmt.Sprintf("r%04d", i), "server"))
	}
	k.submit(t, changes...)
	if n := len(k.All()); n != many {
		t.Fatalf("%d findings, want %d", n, many)
	}
	k.submit(t, service("server", true))
	if n := len(k.All()); n != 0 {
		t.Errorf("%d findings when nothing is missing", n)
	}
	mark := k.Mark()
	own, others, err = k.Try(t.Context(), []normalise.Change{service("server", false), route("late", "server")})
	if err != nil || len(own) != 1 || len(others) != many {
		t.Errorf("tried: %v, %d, %v", own, len(others), err)
	}
	if found := k.Since(mark, nil); len(found) > 0 || len(k.All()) > 0 {
		t.Errorf("what was tried only is found: %v", found)
	}
	k.submit(t, service("server", false))
	if found := k.Since(mark, []object.Key{changes[0].Key}); len(found) != many-1 {
		t.Errorf("%d findings since, want %d", len(found), many-1)
	}
	if found := k.Since(k.Mark(), nil); len(found) > 0 {
		t.Errorf("since now: %v", found)
	}
	if found := k.About("r0007.apps.svc.cluster.local"); len(found) != 1 || found[0].Key.Name != "r0007" {
		t.Errorf("about a host: %v", found)
	}
	k.submit(t, service("server", true))
	if found := k.Since(mark, nil); len(found) > 0 {
		t.Errorf("what is not so any more is found: %v", found)
	}
	if len(k.recent) > 2*mostRecent {
		t.Errorf("%d are remembered", len(k.recent))
	}
}

// TestKeeperForgets: however often findings come and go, what is remembered of them is bounded.
func TestKeeperForgets(t *testing.T) {
	k := start(t)
	var changes []normalise.Change
	for i := range 2 * mostRecent {
		changes = append(changes, route(fmt.Sprintf("r%05d", i), "server"))
	}
	k.submit(t, changes...)
	k.submit(t, service("server", true))
	k.submit(t, service("server", false))
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := len(k.recent); n > 2*mostRecent {
		t.Errorf("%d are remembered", n)
	}
}
