package serve_test

import (
	"slices"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// TestStatusListsPendingNames leaves a response unanswered while the mesh changes.
func TestStatusListsPendingNames(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	if s := typeStatus(r.acked("pod"), cds); s.GetPending() != 0 || s.GetAwaitingSince() != nil || len(s.GetPendingNames()) != 0 {
		t.Errorf("waits although all is acknowledged: %v", s)
	}
	r.edit(timeoutRule("a", hostA, 1))
	unanswered := c.expect(cds, "+80|"+hostA)
	r.edit(timeoutRule("b", hostB, 1))
	p := r.until("pod", "waiting", func(p *configv1.ProxyStatus) bool { return typeStatus(p, cds).GetPending() == 1 })
	s := typeStatus(p, cds)
	if !s.GetAwaiting() || !s.GetAwaitingSince().AsTime().Equal(r.clock.Now()) || !slices.Equal(s.GetPendingNames(), []string{"80|" + hostB}) {
		t.Errorf("status %v at %v", s, r.clock.Now())
	}
	c.ack(unanswered)
	c.ack(c.expect(eds, "+80|"+hostA))
	c.ack(c.expect(cds, "+80|"+hostB))
	c.ack(c.expect(eds, "+80|"+hostB))
	s = typeStatus(r.acked("pod"), cds)
	if s.GetPending() != 0 || s.GetAwaitingSince() != nil {
		t.Errorf("still waits: %v", s)
	}
}
