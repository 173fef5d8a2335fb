package serve_test

import (
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// overtake applies a state that has the revision of the one before.
func (r *fixture) overtake(upserts []*configv1.Resource, removed ...*configv1.Resource) {
	var keys []*configv1.ResourceKey
	for _, res := range removed {
		keys = append(keys, res.GetKey())
	}
	next, change := r.Snapshot.Apply(nil, upserts, keys)
	r.Snapshot = next
	r.ADS.ApplyEndpoints(next, change)
}

// Configuration does not wait for the answers to endpoints, which may change all the time; reports do.
func TestMostAnsweredIsAboutConfiguration(t *testing.T) {
	r := start(t, basicMesh()...)
	a := r.delta("aaa", "default")
	a.connectAll()
	r.settles(true)
	r.overtake([]*configv1.Resource{meshtest.Endpoints("default", hostA, 80, "10.1.0.11")})
	m := a.next()
	r.settles(false)
	if most, _ := r.ADS.MostAnswered(); most != nil {
		t.Error("configuration waits for the answer to endpoints")
	}
	a.ack(m)
	r.settles(true)
	if got := r.acked("aaa"); !got.GetSettled() {
		t.Errorf("not settled: %v", got)
	}
}

// TestClusterIsRemovedLastWithinARevision: make before break holds between two states of one revision.
func TestClusterIsRemovedLastWithinARevision(t *testing.T) {
	mesh := basicMesh()
	r := start(t, append(mesh, virtualService("v", hostA))...)
	c := r.delta("pod", "default")
	c.connectAll()
	r.acked("pod")
	r.overtake([]*configv1.Resource{virtualService("v", hostB)}, mesh[:2]...)
	routes := c.expect(rds, "+80")
	if p := r.status("pod"); typeStatus(p, cds).GetAwaiting() {
		t.Error("the cluster was removed while routes may still refer to it")
	}
	c.ack(routes)
	c.ack(c.expect(cds, "-80|"+hostA))
}
