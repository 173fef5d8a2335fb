package serve_test

import (
	"slices"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/plan/plantest"
	"fairlead.dev/services/xds-server/internal/translate/nametable"
)

const nds = ndsv1.NameTableType

// startNaming is start with name tables besides.
func startNaming(t *testing.T, resources ...*configv1.Resource) *fixture {
	t.Helper()
	return startWith(t, setup{log: testkit.Logger(t), translators: func(set *plantest.Set) []plan.Translator {
		return append(set.Translators(), nametable.Translator{})
	}}, resources)
}

func vip(host, address string) *configv1.Resource {
	return meshtest.Service("default", host, 80, func(s *configv1.Service) { s.Addresses = []string{address} })
}

// addressOf is what a table says of a host.
func addressOf(t *testing.T, table *anypb.Any, host string) []string {
	t.Helper()
	m := &ndsv1.NameTable{}
	if err := table.UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	return m.GetTable()[host].GetIps()
}

// nextNames takes responses until the name table comes, acknowledges all, and returns it and the types before it.
func (c *deltaClient) nextNames() (table *discovery.DeltaDiscoveryResponse, before []string) {
	c.t.Helper()
	for {
		m := c.next()
		c.ack(m)
		if m.GetTypeUrl() == nds {
			return m, before
		}
		before = append(before, m.GetTypeUrl())
	}
}

// TestNameTableDelta: an agent asks for all name tables, of which there is one, beside what its Envoy asks for on the same stream.
func TestNameTableDelta(t *testing.T) {
	r := startNaming(t, append(basicMesh(), vip(hostC, "10.96.0.1"))...)
	c, other := r.delta("pod", "default"), r.delta("other", "default")
	c.connectAll()
	other.connectAll()
	c.subscribe(nds) // legacy wildcard, as Istio's agents
	first := c.expect(nds, "+"+nametable.Name)
	c.ack(first)
	if got := addressOf(t, first.GetResources()[0].GetResource(), hostC); !slices.Equal(got, []string{"10.96.0.1"}) {
		t.Errorf("%s is at %v", hostC, got)
	}
	p := r.acked("pod")
	sent := typeStatus(p, nds).GetBytesSent()

	// A new name comes after the cluster behind it.
	r.edit(vip("d.example.com", "10.96.0.2"))
	second, before := c.nextNames()
	if got := addressOf(t, second.GetResources()[0].GetResource(), "d.example.com"); !slices.Equal(got, []string{"10.96.0.2"}) {
		t.Errorf("the new service is at %v", got)
	}
	if !slices.Contains(before, cds) {
		t.Errorf("the name table came after %v only", before)
	}
	if now := typeStatus(r.acked("pod"), nds).GetBytesSent(); now <= sent {
		t.Errorf("%d bytes sent, before the change %d", now, sent)
	} else {
		sent = now
	}

	// What no table says sends none.
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.9"), timeoutRule("rule", hostA, 3))
	for range 2 { // clusters, endpoints
		m := c.next()
		if m.GetTypeUrl() == nds {
			t.Fatal("endpoints of a service with a VIP have changed the name table")
		}
		c.ack(m)
	}
	if now := typeStatus(r.acked("pod"), nds).GetBytesSent(); now != sent {
		t.Errorf("%d bytes sent, before the change %d", now, sent)
	}
	// Nobody else is sent one.
	if st := typeStatus(r.status("other"), nds); st != nil {
		t.Errorf("who has not asked: %v", st)
	}

	// Who still holds it is not sent it again.
	c.cancel()
	again := r.delta("pod", "default")
	again.send(&discovery.DeltaDiscoveryRequest{TypeUrl: nds, InitialResourceVersions: versions(second)})
	r.edit(vip("e.example.com", "10.96.0.3"))
	third := again.expect(nds, "+"+nametable.Name)
	if got := addressOf(t, third.GetResources()[0].GetResource(), "e.example.com"); !slices.Equal(got, []string{"10.96.0.3"}) {
		t.Errorf("the first response to who held the table is not about the change: %v", got)
	}

	// A rejected table is not sent again as it is, but when it has changed.
	again.nack(third, "in a mood")
	r.rejected("pod", nds)
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.10"))
	r.edit(vip("f.example.com", "10.96.0.4"))
	fourth := again.expect(nds, "+"+nametable.Name)
	if got := addressOf(t, fourth.GetResources()[0].GetResource(), "f.example.com"); !slices.Equal(got, []string{"10.96.0.4"}) {
		t.Errorf("after a rejection: %v", got)
	}
	again.ack(fourth)
	r.acked("pod")
}

// TestNameTableByName: a client may ask for the table by its name too.
func TestNameTableByName(t *testing.T) {
	r := startNaming(t)
	r.edit(vip(hostA, "10.96.0.1"))
	c := r.delta("pod", "default")
	c.subscribe(nds, nametable.Name)
	c.ack(c.expect(nds, "+"+nametable.Name))
	c.subscribe(nds, "another")
	c.ack(c.expect(nds, "-another"))
	r.remove(vip(hostA, "10.96.0.1"))
	m := c.expect(nds, "+"+nametable.Name)
	c.ack(m)
	if got := addressOf(t, m.GetResources()[0].GetResource(), hostA); got != nil {
		t.Errorf("%s is still at %v", hostA, got)
	}
}

// TestNameTableSotw is the same in the state of the world, where an empty list of names means all.
func TestNameTableSotw(t *testing.T) {
	r := startNaming(t, append(basicMesh(), vip(hostC, "10.96.0.1"))...)
	c := r.sotw("pod", "default")
	c.subscribe(nds)
	first := c.next()
	c.ack(first)
	if len(first.GetResources()) != 1 || first.GetVersionInfo() == "" || !slices.Equal(addressOf(t, first.GetResources()[0], hostC), []string{"10.96.0.1"}) {
		t.Fatalf("got %v", first)
	}
	r.acked("pod")
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.9")) // which no table says
	r.edit(vip(hostC, "10.96.0.2"))
	second := c.next()
	c.ack(second)
	if second.GetVersionInfo() == first.GetVersionInfo() || !slices.Equal(addressOf(t, second.GetResources()[0], hostC), []string{"10.96.0.2"}) {
		t.Errorf("got %v", second)
	}
	r.acked("pod")

	c.cancel()
	again := r.sotw("pod", "default")
	again.accepted[nds] = second.GetVersionInfo()
	again.subscribe(nds)
	r.acked("pod")
	r.edit(vip(hostC, "10.96.0.3"))
	if third := again.next(); !slices.Equal(addressOf(t, third.GetResources()[0], hostC), []string{"10.96.0.3"}) {
		t.Errorf("the first response to who held the table is not about the change: %v", third)
	}
}
