package serve_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

var errBroken = errors.New("broken on purpose")

// sotwClient is a client of the state-of-the-world variant. Like Envoy it repeats names, version and nonce in every
// request.
type sotwClient struct {
	client[discovery.DiscoveryRequest, discovery.DiscoveryResponse]
	names    map[string][]string
	accepted map[string]string
	nonce    map[string]string
}

func (r *fixture) sotw(pod, namespace string) *sotwClient {
	r.t.Helper()
	ads := discovery.NewAggregatedDiscoveryServiceClient(r.Conn)
	return &sotwClient{
		client: open[discovery.DiscoveryRequest, discovery.DiscoveryResponse](context.Background(), r.t, node(pod, namespace),
			ads.StreamAggregatedResources),
		names: map[string][]string{}, accepted: map[string]string{}, nonce: map[string]string{},
	}
}

func (c *sotwClient) send(url string, change func(*discovery.DiscoveryRequest)) {
	c.t.Helper()
	m := &discovery.DiscoveryRequest{
		Node: c.node, TypeUrl: url, ResourceNames: c.names[url], VersionInfo: c.accepted[url], ResponseNonce: c.nonce[url],
	}
	c.node = nil
	if change != nil {
		change(m)
	}
	if err := c.stream.Send(m); err != nil {
		c.t.Fatal(err)
	}
}

func (c *sotwClient) subscribe(url string, names ...string) {
	c.t.Helper()
	c.names[url] = names
	c.send(url, nil)
}

func (c *sotwClient) ack(m *discovery.DiscoveryResponse) {
	c.t.Helper()
	c.accepted[m.GetTypeUrl()], c.nonce[m.GetTypeUrl()] = m.GetVersionInfo(), m.GetNonce()
	c.send(m.GetTypeUrl(), nil)
}

func (c *sotwClient) nack(m *discovery.DiscoveryResponse, message string) {
	c.t.Helper()
	c.nonce[m.GetTypeUrl()] = m.GetNonce()
	c.send(m.GetTypeUrl(), func(req *discovery.DiscoveryRequest) { req.ErrorDetail = nack(message) })
}

func resourceNames(t testing.TB, resources []*anypb.Any) []string {
	t.Helper()
	var names []string
	for _, r := range resources {
		m, err := r.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, cache.GetResourceName(m))
	}
	return names
}

func (c *sotwClient) expect(url string, want ...string) *discovery.DiscoveryResponse {
	c.t.Helper()
	m := c.next()
	got := resourceNames(c.t, m.GetResources())
	if m.GetTypeUrl() != url || !slices.Equal(got, want) {
		c.t.Fatalf("got %s %q, want %s %q", m.GetTypeUrl(), got, url, want)
	}
	return m
}

func (c *sotwClient) connectAll() {
	c.t.Helper()
	c.subscribe(cds)
	c.ack(c.expect(cds, "80|"+hostA, "80|"+hostB))
	c.subscribe(eds, "80|"+hostA, "80|"+hostB)
	c.ack(c.expect(eds, "80|"+hostA, "80|"+hostB))
	c.subscribe(lds)
	c.ack(c.expect(lds, "80"))
	c.subscribe(rds, "80")
	c.ack(c.expect(rds, "80"))
}

func TestSotwFirstConfigAndUpdates(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.sotw("pod", "default")
	c.connectAll()
	r.acked("pod")

	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.9"))
	c.ack(c.expect(eds, "80|"+hostA))
	r.acked("pod")

	// All clusters are sent; the endpoints of the changed one follow.
	r.edit(timeoutRule("r", hostA, 7), virtualService("v", hostA))
	clusters := c.expect(cds, "80|"+hostA, "80|"+hostB)
	c.ack(c.expect(eds, "80|"+hostA))
	c.ack(clusters)
	c.ack(c.expect(rds, "80"))
	r.acked("pod")

	before := r.acked("pod")
	r.edit(meshtest.Workload("other", "w", "10.2.0.1"))
	p := r.status("pod")
	if p.GetAcked().GetSequence() != r.Sequence || typeStatus(p, cds).GetBytesSent() != typeStatus(before, cds).GetBytesSent() {
		t.Errorf("after an unrelated change: %v", p)
	}
}

func TestSotwRemoval(t *testing.T) {
	mesh := basicMesh()
	r := start(t, mesh...)
	c := r.sotw("pod", "default")
	c.connectAll()
	r.acked("pod")
	r.remove(mesh[:2]...)
	c.ack(c.expect(cds, "80|"+hostB))
	c.subscribe(eds, "80|"+hostB) // as Envoy does when a cluster is gone
	r.acked("pod")
	r.edit(meshtest.Endpoints("default", hostB, 80, "10.1.0.9"))
	c.ack(c.expect(eds, "80|"+hostB))
	r.acked("pod")
}

func TestSotwReconnect(t *testing.T) {
	mesh := basicMesh()
	first := start(t, mesh...)
	held := first.sotw("pod", "default")
	held.connectAll()
	for name, r := range map[string]*fixture{"same replica": first, "another replica": start(t, mesh...)} {
		t.Run(name, func(t *testing.T) {
			c := r.sotw("again", "default")
			defer c.cancel()
			for _, url := range []string{cds, eds, lds, rds} {
				c.names[url], c.accepted[url] = held.names[url], held.accepted[url]
				c.send(url, nil)
			}
			// Endpoints and routes are sent again, because the version does not tell which of the names the client
			// still holds.
			c.ack(c.expect(eds, "80|"+hostA, "80|"+hostB))
			c.ack(c.expect(rds, "80"))
			p := r.acked("again")
			for _, url := range []string{cds, lds} {
				if ty := typeStatus(p, url); ty == nil || ty.GetBytesSent() != 0 {
					t.Errorf("%s: %v, want 0 bytes sent", short(url), ty)
				}
			}
		})
	}
	t.Run("something changed", func(t *testing.T) {
		r := start(t, append([]*configv1.Resource{timeoutRule("r", hostA, 7)}, mesh...)...)
		c := r.sotw("again", "default")
		for _, url := range []string{cds, eds} {
			c.names[url], c.accepted[url] = held.names[url], held.accepted[url]
			c.send(url, nil)
		}
		c.ack(c.expect(cds, "80|"+hostA, "80|"+hostB))
		c.ack(c.expect(eds, "80|"+hostA, "80|"+hostB)) // the clusters warm
	})
}

func TestSotwNACKKeepsTheLastAcknowledgedVersion(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.sotw("pod", "default")
	c.subscribe(cds)
	good := c.expect(cds, "80|"+hostA, "80|"+hostB)
	c.ack(good)
	r.acked("pod")
	r.edit(timeoutRule("a", hostA, 1))
	bad := c.expect(cds, "80|"+hostA, "80|"+hostB)
	c.nack(bad, "Error adding/updating cluster(s) 80|"+hostA+": no")
	r.rejected("pod", cds)
	r.edit(meshtest.Service("default", "c", 80))
	next := c.expect(cds, "80|"+hostA, "80|"+hostB, "80|c")
	if got, want := next.GetResources()[0].GetValue(), good.GetResources()[0].GetValue(); string(got) != string(want) {
		t.Error("the rejected version went out again")
	}
	if next.GetVersionInfo() == bad.GetVersionInfo() {
		t.Error("the version is that of the rejected response")
	}
	c.ack(next)
	if p := r.answered("pod"); typeStatus(p, cds).GetRejection() == nil || p.GetAcked().GetSequence() == r.Sequence {
		t.Errorf("the rejection is forgotten: %v", p)
	}
	r.edit(timeoutRule("a", hostA, 2))
	c.ack(c.expect(cds, "80|"+hostA, "80|"+hostB, "80|c"))
	r.acked("pod")
}

// A client that keeps the last good version of a rejected cluster does not hold the same as a mesh without that
// cluster. The version that it states must be another one, or the cluster would stay after a reconnect.
func TestSotwReconnectAfterARejectedResourceIsRemoved(t *testing.T) {
	mesh := basicMesh()
	first := start(t, mesh...)
	held := first.sotw("pod", "default")
	held.subscribe(cds)
	held.ack(held.expect(cds, "80|"+hostA, "80|"+hostB))
	first.acked("pod")
	first.edit(timeoutRule("a", hostA, 1))
	held.nack(held.expect(cds, "80|"+hostA, "80|"+hostB), "Error adding/updating cluster(s) 80|"+hostA+": no")
	first.rejected("pod", cds)
	first.edit(meshtest.Service("default", "c", 80))
	held.ack(held.expect(cds, "80|"+hostA, "80|"+hostB, "80|c"))
	first.answered("pod")

	second := start(t, append(mesh[2:], meshtest.Service("default", "c", 80))...)
	c := second.sotw("pod", "default")
	c.accepted[cds] = held.accepted[cds]
	c.subscribe(cds)
	c.ack(c.expect(cds, "80|"+hostB, "80|c"))
	second.acked("pod")
}

func TestSotwReconnectedClientKeepsTheLastAcknowledgedVersion(t *testing.T) {
	r := start(t, basicMesh()...)
	held := r.sotw("pod", "default")
	held.subscribe(cds)
	good := held.expect(cds, "80|"+hostA, "80|"+hostB)
	held.ack(good)
	r.acked("pod")
	held.cancel()

	c := r.sotw("again", "default")
	c.accepted[cds] = held.accepted[cds]
	c.subscribe(cds)
	r.acked("again")
	r.edit(timeoutRule("a", hostA, 1))
	c.nack(c.expect(cds, "80|"+hostA, "80|"+hostB), "Error adding/updating cluster(s) 80|"+hostA+": no")
	r.rejected("again", cds)
	r.edit(meshtest.Service("default", "c", 80))
	next := c.expect(cds, "80|"+hostA, "80|"+hostB, "80|c")
	if got, want := next.GetResources()[0].GetValue(), good.GetResources()[0].GetValue(); string(got) != string(want) {
		t.Error("the cluster is not the one that the client held when it connected")
	}
}
