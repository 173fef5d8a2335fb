package serve_test

import (
	"testing"

	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// Envoy neither uses nor acknowledges a cluster before it has its endpoints, and the next update of clusters waits for
// that ACK. So endpoints that are removed before they were sent must be answered at once.

func TestEndpointsRemovedWhileTheirNewClusterWarms(t *testing.T) {
	late := []*configv1.Resource{meshtest.Service("default", hostC, 80), meshtest.Endpoints("default", hostC, 80, "10.1.0.3")}
	t.Run("delta", func(t *testing.T) {
		r := start(t, basicMesh()...)
		c := r.delta("pod", "default")
		c.connectAll()
		r.edit(late...)
		cluster := c.expect(cds, "+80|"+hostC)
		r.remove(late...)
		c.subscribe(eds, "80|"+hostC)
		c.ack(c.expect(eds, "-80|"+hostC))
		c.ack(cluster)
		c.ack(c.expect(cds, "-80|"+hostC))
	})
	t.Run("sotw", func(t *testing.T) {
		r := start(t, basicMesh()...)
		c := r.sotw("pod", "default")
		c.connectAll()
		r.edit(late...)
		clusters := c.expect(cds, "80|"+hostA, "80|"+hostB, "80|"+hostC)
		r.remove(late...)
		c.subscribe(eds, "80|"+hostA, "80|"+hostB, "80|"+hostC)
		m := c.expect(eds, "80|"+hostC)
		none := &endpoint.ClusterLoadAssignment{}
		if err := m.GetResources()[0].UnmarshalTo(none); err != nil {
			t.Fatal(err)
		}
		if none.GetClusterName() != "80|"+hostC || len(none.GetEndpoints()) > 0 {
			t.Errorf("got %v, want an assignment of no endpoints", none)
		}
		c.ack(m)
		c.ack(clusters)
		c.ack(c.expect(cds, "80|"+hostA, "80|"+hostB))
	})
}

func TestEndpointsRemovedWhileTheirChangedClusterWarms(t *testing.T) {
	b := []*configv1.Resource{meshtest.Service("default", hostB, 80), meshtest.Endpoints("default", hostB, 80, "10.1.0.2")}
	t.Run("delta", func(t *testing.T) {
		r := start(t, basicMesh()...)
		c := r.delta("pod", "default")
		c.connectAll()
		r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.8"))
		busy := c.expect(eds, "+80|"+hostA)
		r.edit(timeoutRule("b", hostB, 1))
		cluster := c.expect(cds, "+80|"+hostB)
		r.remove(b...)
		c.ack(busy)
		c.ack(c.expect(eds, "-80|"+hostB))
		c.ack(cluster)
		c.ack(c.expect(cds, "-80|"+hostB))
	})
	t.Run("sotw", func(t *testing.T) {
		r := start(t, basicMesh()...)
		c := r.sotw("pod", "default")
		c.connectAll()
		r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.8"))
		busy := c.expect(eds, "80|"+hostA)
		r.edit(timeoutRule("b", hostB, 1))
		clusters := c.expect(cds, "80|"+hostA, "80|"+hostB)
		r.remove(b...)
		c.ack(busy)
		c.ack(c.expect(eds, "80|"+hostB))
		c.ack(clusters)
		c.ack(c.expect(cds, "80|"+hostA))
	})
	t.Run("sotw, endpoints requested only afterwards", func(t *testing.T) {
		r := start(t, basicMesh()...)
		c := r.sotw("pod", "default")
		c.subscribe(cds)
		clusters := c.expect(cds, "80|"+hostA, "80|"+hostB)
		r.remove(b...)
		c.subscribe(eds, "80|"+hostA, "80|"+hostB)
		c.ack(c.expect(eds, "80|"+hostA, "80|"+hostB))
		c.ack(clusters)
		c.ack(c.expect(cds, "80|"+hostA))
	})
}
