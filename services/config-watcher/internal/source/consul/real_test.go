package consul

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/consultest"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// A registry follows a real agent: registrations, health, and what is gone.
func TestRealRegistryIsFollowed(t *testing.T) {
	agent := consultest.Dev(t)
	r := newRig(t)
	r.file("east.yaml", "address: "+agent.URL+"\ndatacenter: dc1\nrules: [{services: ['*'], namespace: consul}]\n")
	agent.Register(t, consultest.Instance("n1", "web", "web-1", "passing"))
	r.run(func(c *Config) { c.Follow = Follow })
	r.mesh.becomes("[consul web.service.consul:1]")
	r.rows("east SYNCED")
	agent.Register(t, consultest.Instance("n2", "web", "web-2", "critical"))
	agent.Register(t, consultest.Instance("n2", "db", "db-1", "passing"))
	r.mesh.becomes("[consul db.service.consul:1 consul web.service.consul:2]")
	agent.Deregister(t, "n2", "db-1")
	r.mesh.becomes("[consul web.service.consul:2]")
	agent.Kill()
	r.rows("east AWAY")
	r.mesh.becomes("[consul web.service.consul:2]")
}

// holds waits until a registry withholds so many services and endpoints, and the mesh has so many objects.
func (r *rig) holds(services, endpoints, objects int) {
	r.t.Helper()
	testkit.Eventually(r.t, testkit.Patience, func() error {
		got := map[string]int{}
		for _, s := range r.Sources() {
			for _, w := range s.Status().Withheld {
				got[w.What] = w.Objects
			}
		}
		if n := len(r.mesh.copy()); got["services"] != services || got["endpoints"] != endpoints || n != objects {
			return fmt.Errorf("%d objects, withheld: %v, want %d, %d services and %d endpoints", n, got, objects, services, endpoints)
		}
		return nil
	})
}

// removed counts the removals that were delivered.
func (m *mesh) removed() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, batch := range m.batches {
		for _, e := range batch {
			if e.Object == nil {
				n++
			}
		}
	}
	return n
}

// TestRealRestoredSnapshotIsHeld: `consul snapshot restore` of an empty catalog, and of one with all services and a
// third of their instances. Nothing is removed until an administrator accepts it, or a second reading says the same;
// what is registered meanwhile counts. What comes back was never gone.
func TestRealRestoredSnapshotIsHeld(t *testing.T) {
	const size = 12
	cluster := consultest.NewCluster(t)
	secret, _ := cluster.Token(t, consultest.ReadAll)
	empty := cluster.Client.Snapshot(t)
	register := func(nodes ...string) {
		t.Helper()
		for i := range size {
			for _, node := range nodes {
				cluster.Client.Register(t, consultest.Instance(node, fmt.Sprintf("s%02d", i), fmt.Sprintf("s%02d-%s", i, node), "passing"))
			}
		}
	}
	register("n0")
	third := cluster.Client.Snapshot(t)
	register("n1", "n2")
	full := cluster.Client.Snapshot(t)
	r := newRig(t)
	r.file("east.yaml", "address: "+cluster.Client.URL+"\ndatacenter: dc1\ntoken: "+secret+
		"\nrules: [{services: ['*'], namespace: consul}]\n")
	r.run(func(c *Config) {
		c.Follow = func(to Connection) Follower {
			to.TLS = cluster.Client.TLS
			return Follow(to)
		}
	})
	r.rows("east SYNCED")
	r.holds(0, 0, 4*size)

	cluster.Client.Restore(t, empty)
	r.holds(size, 3*size, 4*size)
	began := time.Now()
	cluster.Client.Register(t, consultest.Instance("n0", "new", "new-1", "passing"))
	r.holds(size, 3*size, 4*size+2)
	if n := r.mesh.removed(); n != 0 {
		t.Errorf("%d objects were removed", n)
	}
	testkit.Eventually(t, withheld.Wait+2*testkit.Patience, func() error {
		if got := r.mesh.text(); got != "[consul new.service.consul:1]" {
			return fmt.Errorf("the mesh has %s", got)
		}
		return nil
	})
	if took := time.Since(began); took < withheld.Wait-testkit.Patience/10 {
		t.Errorf("a second reading has confirmed it after %s", took)
	}

	cluster.Client.Restore(t, full)
	r.holds(0, 0, 4*size)
	removed := r.mesh.removed()
	cluster.Client.Restore(t, third)
	r.holds(0, 2*size, 4*size)
	cluster.Client.Restore(t, full)
	r.holds(0, 0, 4*size)
	if n := r.mesh.removed() - removed; n != 0 {
		t.Errorf("%d objects were removed although they came back", n)
	}

	cluster.Client.Restore(t, third)
	r.holds(0, 2*size, 4*size)
	began = time.Now()
	all := r.Sources()
	i := slices.IndexFunc(all, func(s source.Source) bool { return s.Name() == "consul/east" })
	if n := all[i].(source.Withholder).Accept(); n != 2*size {
		t.Errorf("accepts %d", n)
	}
	r.holds(0, 0, 2*size)
	if took := time.Since(began); took > withheld.Wait/2 {
		t.Errorf("it took %s", took)
	}
}
