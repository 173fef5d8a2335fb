package serve_test

import (
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/services/xds-server/internal/meshtest"
)

// gRPC requests clusters and listeners by name, and drops the resources that a response leaves out.
func TestSotwResponseByNameListsAllNames(t *testing.T) {
	mesh := basicMesh()
	r := start(t, mesh...)
	c := r.sotw("pod", "default")
	c.subscribe(cds, "80|"+hostA, "80|"+hostB, "80|c")
	c.ack(c.expect(cds, "80|"+hostA, "80|"+hostB))
	r.acked("pod")

	// One changes: all are sent.
	r.edit(timeoutRule("r", hostA, 7))
	c.ack(c.expect(cds, "80|"+hostA, "80|"+hostB))
	// One that was requested appears, another one is removed.
	r.edit(meshtest.Service("default", "c", 80))
	c.ack(c.expect(cds, "80|"+hostA, "80|"+hostB, "80|c"))
	r.remove(mesh[:2]...)
	c.ack(c.expect(cds, "80|"+hostB, "80|c"))
	r.acked("pod")

	// A rejected version is replaced by the one before, not left out.
	r.edit(timeoutRule("s", hostB, 7))
	bad := c.expect(cds, "80|"+hostB, "80|c")
	c.nack(bad, "Error adding/updating cluster(s) 80|"+hostB+": no")
	r.rejected("pod", cds)
	r.edit(timeoutRule("t", "c", 7))
	c.ack(c.expect(cds, "80|"+hostB, "80|c"))
}

// The proxyless gRPC clients of one workload have one node id, and each has a status of its own.
func TestStreamsOfOneWorkload(t *testing.T) {
	r := start(t, basicMesh()...)
	for range 2 {
		c := r.sotw("pod", "default")
		c.node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"GENERATOR": structpb.NewStringValue("grpc")}}
		c.subscribe(cds, "80|"+hostA)
		c.ack(c.expect(cds, "80|"+hostA))
	}
	ids := map[string]bool{}
	for _, p := range r.ADS.Statuses() {
		ids[p.GetNodeId()] = true
	}
	if len(ids) != 2 {
		t.Errorf("statuses of %v, want two", ids)
	}
}
