package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/consultest"
	"fairlead.dev/services/config-watcher/internal/source/consul/catalog"
)

// mesh holds what it is handed, and remembers what that removed.
type mesh struct {
	mu       sync.Mutex
	services map[string][]catalog.Instance
	removed  []string
}

func (m *mesh) Names(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, instances := range m.services {
		if !slices.Contains(names, name) {
			for _, i := range instances {
				m.removed = append(m.removed, name+"/"+i.ID)
			}
			delete(m.services, name)
		}
	}
	for _, name := range names {
		if _, known := m.services[name]; !known {
			m.services[name] = nil
		}
	}
}

func (m *mesh) Whole(bool) {}

func (m *mesh) Service(name string, instances []catalog.Instance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.services[name] {
		if !slices.ContainsFunc(instances, func(n catalog.Instance) bool { return n.ID == i.ID && n.Node == i.Node }) {
			m.removed = append(m.removed, name+"/"+i.ID)
		}
	}
	m.services[name] = instances
}

// statuses are those of the instances of a service, by id; nil if there is no such service.
func (m *mesh) statuses(service string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	instances, known := m.services[service]
	if !known {
		return nil
	}
	out := map[string]string{}
	for _, i := range instances {
		out[i.ID] = i.Status
	}
	return out
}

// await waits until a service has these instances and no others; without any, until it is gone.
func (m *mesh) await(t *testing.T, service string, want map[string]string) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		if got := m.statuses(service); !maps.Equal(got, want) || (got == nil) != (want == nil) {
			return fmt.Errorf("%s: %v, want %v", service, got, want)
		}
		return nil
	})
}

// losses are what was removed since the last call, sorted, without servers: the leader ends the registration of one
// that does not answer.
func (m *mesh) losses() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := slices.DeleteFunc(m.removed, func(s string) bool { return s == "consul/consul" })
	m.removed = nil
	slices.Sort(out)
	return out
}

func of(a *consultest.Agent, token func() string) catalog.Config {
	return catalog.Config{Address: a.URL, TLS: a.TLS, Token: token}
}

func follow(t *testing.T, cfg catalog.Config) (*catalog.Catalog, *mesh) {
	t.Helper()
	cfg.Log = testkit.Logger(t)
	c, m := catalog.New(cfg), &mesh{services: map[string][]catalog.Instance{}}
	testkit.Background(t, func(ctx context.Context) error { return c.Run(ctx, m) })
	select {
	case <-c.Synced():
	case <-time.After(testkit.Patience):
		t.Fatalf("not synced: %+v", c.Status())
	}
	return c, m
}

func awaitState(t *testing.T, c *catalog.Catalog, want catalog.State, says string) {
	t.Helper()
	testkit.Eventually(t, 2*testkit.Patience, func() error {
		st := c.Status()
		if st.State != want || says != "" && !strings.Contains(fmt.Sprint(st.Degraded), says) {
			return fmt.Errorf("%+v, want %s with %q", st, want, says)
		}
		return nil
	})
}

func TestRealRegistrationsAreFollowed(t *testing.T) {
	agent := consultest.Dev(t)
	_, m := follow(t, of(agent, nil))
	whole := consultest.Registration{
		Node: "machine", Address: "10.1.2.3", NodeMeta: map[string]string{"rack": "4"},
		Service: &consultest.Service{
			ID: "web-1", Service: "web", Address: "10.1.2.4", Tags: []string{"v1", "a|b"}, Meta: map[string]string{"version": "v1"},
			Ports:    []consultest.Port{{Name: "http", Port: 8080, Default: true}, {Name: "admin", Port: 9090}},
			Weights:  &consultest.Weights{Passing: 10, Warning: 2},
			Locality: &consultest.Locality{Region: "eu", Zone: "a"},
		},
	}
	agent.Register(t, whole)
	m.await(t, "web", map[string]string{"web-1": catalog.Passing})
	want := catalog.Instance{
		Node: "machine", Datacenter: "dc1", NodeAddress: "10.1.2.3", NodeMeta: map[string]string{"rack": "4"}, ID: "web-1", Service: "web",
		Address: "10.1.2.4", Port: 8080, Ports: map[string]int{"http": 8080, "admin": 9090}, Tags: []string{"v1", "a|b"},
		Meta: map[string]string{"version": "v1"}, Weights: catalog.Weights{Passing: 10, Warning: 2},
		Locality: catalog.Locality{Region: "eu", Zone: "a"}, Status: catalog.Passing,
	}
	got := m.services["web"][0]
	got.TaggedAddresses, got.NodeTaggedAddresses = nil, nil // made by Consul
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, status := range []string{catalog.Warning, catalog.Critical, catalog.Passing} {
		agent.Register(t, consultest.Instance("machine", "web", "web-2", status))
		m.await(t, "web", map[string]string{"web-1": catalog.Passing, "web-2": status})
	}
	agent.Deregister(t, "machine", "web-1")
	m.await(t, "web", map[string]string{"web-2": catalog.Passing})
	for _, name := range []string{"a b/ü", "UPPER", "upper", "..", "x%2Fy", strings.Repeat("n", 300)} {
		agent.Register(t, consultest.Instance("machine", name, "strange", catalog.Passing))
		if name != ".." { // Go's mux redirects it
			m.await(t, name, map[string]string{"strange": catalog.Passing})
		}
		agent.Deregister(t, "machine", "strange")
		m.await(t, name, nil)
	}
	agent.Deregister(t, "machine", "")
	m.await(t, "web", nil)
}

func TestRealMaintenance(t *testing.T) {
	agent := consultest.Dev(t)
	_, m := follow(t, of(agent, nil))
	agent.Must(t, http.MethodPut, "/v1/agent/service/register", map[string]any{"Name": "web", "ID": "web-1", "Port": 80})
	passes := map[string]string{"web-1": catalog.Passing}
	maintained := map[string]string{"web-1": catalog.Maintenance}
	m.await(t, "web", passes)
	for _, path := range []string{"/v1/agent/service/maintenance/web-1", "/v1/agent/maintenance"} {
		agent.Must(t, http.MethodPut, path+"?enable=true", nil)
		m.await(t, "web", maintained)
		agent.Must(t, http.MethodPut, path+"?enable=false", nil)
		m.await(t, "web", passes)
	}
}

// Without HTTP/2 an agent admits 200 connections of a client: services beyond that are read in turn.
func TestRealPlaintextIsLimited(t *testing.T) {
	agent := consultest.Dev(t)
	for i := range 300 {
		agent.Register(t, consultest.Instance("machine", fmt.Sprintf("s%03d", i), fmt.Sprintf("i%03d", i), catalog.Passing))
	}
	c, m := follow(t, of(agent, nil))
	awaitState(t, c, catalog.Limited, "use an https address")
	for _, i := range []int{0, 150, 299} {
		agent.Register(t, consultest.Instance("machine", fmt.Sprintf("s%03d", i), fmt.Sprintf("i%03d", i), catalog.Critical))
	}
	for _, i := range []int{0, 150, 299} {
		m.await(t, fmt.Sprintf("s%03d", i), map[string]string{fmt.Sprintf("i%03d", i): catalog.Critical})
	}
	if st := c.Status(); st.State != catalog.Limited || st.Watches+st.Polled != st.Services || len(m.losses()) > 0 {
		t.Errorf("%+v", st)
	}
	// Others are served beside.
	if _, err := agent.Do(http.MethodGet, "/v1/status/leader", nil); err != nil {
		t.Error(err)
	}
}

// services registers services with two instances each.
func services(t *testing.T, a *consultest.Agent, n int) {
	t.Helper()
	for i := range n {
		for j := range 2 {
			a.Register(t, consultest.Instance(fmt.Sprintf("node%d", j), fmt.Sprintf("s%02d", i), fmt.Sprintf("s%02d-%d", i, j), catalog.Passing))
		}
	}
}

// TestRealFaultsRemoveNothing kills and stops servers and the agent, and takes the quorum away.
func TestRealFaultsRemoveNothing(t *testing.T) {
	cluster := consultest.NewCluster(t)
	services(t, cluster.Client, 20)
	secret, _ := cluster.Token(t, consultest.ReadAll)
	c, m := follow(t, of(cluster.Client, func() string { return secret }))
	awaitState(t, c, catalog.Synced, "")
	change := 0
	settled := func(after string) {
		t.Helper()
		change++
		status := []string{catalog.Passing, catalog.Warning}[change%2]
		testkit.Eventually(t, 2*testkit.Patience, func() error {
			_, err := cluster.Client.Do(http.MethodPut, "/v1/catalog/register", consultest.Instance("node0", "s00", "s00-0", status))
			return err
		})
		m.await(t, "s00", map[string]string{"s00-0": status, "s00-1": catalog.Passing})
		awaitState(t, c, catalog.Synced, "")
		if lost := m.losses(); len(lost) > 0 {
			t.Fatalf("%s: %v were removed", after, lost)
		}
	}
	settled("at rest")
	for range 2 {
		leader := cluster.Leader(t)
		leader.Kill()
		settled("leader killed")
		leader.Start(t)
		settled("leader back")
	}
	leader := cluster.Leader(t)
	leader.Stop(t)
	settled("leader stopped")
	leader.Continue(t)
	settled("leader continues")
	cluster.Client.Kill()
	awaitState(t, c, catalog.Away, "")
	cluster.Client.Start(t)
	settled("agent restarted")
	cluster.Client.Stop(t)
	awaitState(t, c, catalog.Away, "")
	cluster.Client.Continue(t)
	settled("agent continues")
	cluster.Servers[0].Kill()
	cluster.Servers[1].Kill()
	testkit.Eventually(t, 2*testkit.Patience, func() error {
		if _, err := cluster.Client.Do(http.MethodGet, "/v1/health/service/s00?consistent", nil); err == nil {
			return errors.New("there is a quorum")
		}
		return nil
	})
	c.Refresh()
	awaitState(t, c, catalog.Away, "")
	cluster.Servers[0].Start(t)
	cluster.Servers[1].Start(t)
	settled("quorum back")
}

func TestRealSnapshotsAreFollowed(t *testing.T) {
	cluster := consultest.NewCluster(t)
	services(t, cluster.Client, 10)
	secret, _ := cluster.Token(t, consultest.ReadAll)
	c, m := follow(t, of(cluster.Client, func() string { return secret }))
	snapshot := cluster.Client.Snapshot(t)
	cluster.Client.Deregister(t, "node0", "s01-0")
	m.await(t, "s01", map[string]string{"s01-1": catalog.Passing})
	cluster.Client.Register(t, consultest.Instance("node2", "s02", "s02-2", catalog.Passing))
	cluster.Client.Register(t, consultest.Instance("node2", "late", "late-1", catalog.Passing))
	m.await(t, "late", map[string]string{"late-1": catalog.Passing})
	m.await(t, "s02", map[string]string{"s02-0": catalog.Passing, "s02-1": catalog.Passing, "s02-2": catalog.Passing})
	m.losses()
	cluster.Client.Restore(t, snapshot)
	m.await(t, "s01", map[string]string{"s01-0": catalog.Passing, "s01-1": catalog.Passing})
	m.await(t, "s02", map[string]string{"s02-0": catalog.Passing, "s02-1": catalog.Passing})
	m.await(t, "late", nil)
	awaitState(t, c, catalog.Synced, "")
	if lost := m.losses(); !slices.Equal(lost, []string{"late/late-1", "s02/s02-2"}) {
		t.Errorf("removed: %v", lost)
	}
}

func TestRealRightsThatAreLostRemoveNothing(t *testing.T) {
	cluster := consultest.NewCluster(t)
	services(t, cluster.Client, 4)
	secret, accessor := cluster.Token(t, consultest.ReadAll)
	c, m := follow(t, of(cluster.Client, func() string { return secret }))
	awaitState(t, c, catalog.Synced, "")
	for what, rules := range map[string]string{
		"service s00": `service_prefix "" { policy = "read" } service "s00" { policy = "deny" } node_prefix "" { policy = "read" }`,
		"node node1":  `service_prefix "" { policy = "read" } node_prefix "" { policy = "read" } node "node1" { policy = "deny" }`,
		"everything":  `key_prefix "" { policy = "read" }`,
	} {
		cluster.SetRules(t, accessor, rules)
		c.Refresh()
		awaitState(t, c, catalog.Forbidden, ":read")
		// A change wakes all watches of what is hidden.
		cluster.Client.Register(t, consultest.Instance("node0", "s00", "s00-0", catalog.Warning))
		cluster.Client.Register(t, consultest.Instance("node0", "s00", "s00-0", catalog.Passing))
		cluster.Client.Register(t, consultest.Instance("node0", "other", "other", catalog.Passing))
		cluster.Client.Deregister(t, "node0", "other")
		time.Sleep(3 * time.Second) // for nothing to happen
		if lost := slices.DeleteFunc(m.losses(), func(s string) bool { return s == "other/other" }); len(lost) > 0 {
			t.Errorf("%s is hidden: %v were removed", what, lost)
		}
		cluster.SetRules(t, accessor, consultest.ReadAll)
		c.Refresh()
		awaitState(t, c, catalog.Synced, "")
	}
	cluster.Revoke(t, accessor)
	c.Refresh()
	awaitState(t, c, catalog.Forbidden, "ACL not found")
	fresh, _ := cluster.Token(t, consultest.ReadAll)
	testkit.NoError(t, c.Reconnect(of(cluster.Client, func() string { return fresh })))
	awaitState(t, c, catalog.Synced, "")
	if lost := slices.DeleteFunc(m.losses(), func(s string) bool { return s == "other/other" }); len(lost) > 0 {
		t.Errorf("a token was revoked and exchanged: %v were removed", lost)
	}
	testkit.NoError(t, c.Reconnect(of(cluster.Client, nil)))
	awaitState(t, c, catalog.Forbidden, "has no token")
	cluster.Client.Deregister(t, "node0", "s03-0")
	time.Sleep(3 * time.Second) // for nothing to happen
	if lost := m.losses(); len(lost) > 0 {
		t.Errorf("without a token: %v were removed", lost)
	}
}
