package serve_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"fairlead.dev/services/xds-server/internal/meshtest"
)

func TestDeltaNACKBlamesTheResourceThatItNames(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	r.acked("pod")

	r.edit(timeoutRule("a", hostA, 1), timeoutRule("b", hostB, 1))
	clusters := c.expect(cds, "+80|"+hostA, "+80|"+hostB)
	c.nack(clusters, "Error adding/updating cluster(s) 80|"+hostA+": not today")
	c.ack(c.expect(eds, "+80|"+hostA, "+80|"+hostB))

	rejection := r.rejected("pod", cds)
	p := r.answered("pod")
	if d := rejection.GetResourceNames(); !slices.Equal(d, []string{"80|" + hostA}) ||
		!strings.Contains(rejection.GetMessage(), "not today") ||
		rejection.GetRevision().GetSequence() != 2 {
		t.Errorf("rejection %v", rejection)
	}
	if got := p.GetAcked().GetSequence(); got != 1 {
		t.Errorf("revision %d counts as acknowledged, want 1", got)
	}

	// Another resource of the type changes: the whole type is sent except the rejected resource.
	r.edit(meshtest.Service("default", "c", 80))
	c.ack(c.expect(cds, "+80|"+hostB, "+80|c"))
	c.ack(c.expect(eds, "+80|"+hostB))
	if got := typeStatus(r.answered("pod"), cds).GetRejection().GetResourceNames(); !slices.Equal(got, []string{"80|" + hostA}) {
		t.Errorf("still rejected: %v, want the blamed resource until it changes", got)
	}

	// The rejected resource changes.
	r.edit(timeoutRule("a", hostA, 2))
	c.ack(c.expect(cds, "+80|"+hostA))
	c.ack(c.expect(eds, "+80|"+hostA))
	if got := typeStatus(r.acked("pod"), cds).GetRejection(); got != nil {
		t.Errorf("rejection after mending: %v", got)
	}
	const want = "# HELP fairlead_xds_server_nacks_total Responses that proxies rejected, by xDS type.\n" +
		"# TYPE fairlead_xds_server_nacks_total counter\nfairlead_xds_server_nacks_total{type=\"Cluster\"} 1\n" +
		"fairlead_xds_server_nacks_total{type=\"ClusterLoadAssignment\"} 0\nfairlead_xds_server_nacks_total{type=\"Listener\"} 0\n" +
		"fairlead_xds_server_nacks_total{type=\"RouteConfiguration\"} 0\n"
	if err := testutil.GatherAndCompare(r.Registry, strings.NewReader(want), "fairlead_xds_server_nacks_total"); err != nil {
		t.Error(err)
	}
}

func TestDeltaNACKWithoutANameBlamesTheResponse(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	r.acked("pod")
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.8"), meshtest.Endpoints("default", hostB, 80, "10.1.0.8"))
	c.nack(c.expect(eds, "+80|"+hostA, "+80|"+hostB), "bad address")
	r.rejected("pod", eds)
	// Other types are still sent; the endpoints are not sent again.
	r.edit(meshtest.PeerAuthentication("default", "p", "STRICT"))
	c.ack(c.expect(lds, "+80"))
	if p := r.answered("pod"); typeStatus(p, eds).GetBytesSent() == 0 || p.GetAcked().GetSequence() != 1 {
		t.Errorf("status %v", p)
	}
	// One of the two changes: the response would be another one, so the whole type is sent.
	r.edit(meshtest.Endpoints("default", hostB, 80, "10.1.0.9"))
	c.ack(c.expect(eds, "+80|"+hostA, "+80|"+hostB))
	r.acked("pod")
}

func TestDeltaRejectedVersionIsSentAgainOnlyAfterAnotherOne(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	r.acked("pod")
	r.edit(timeoutRule("a", hostA, 1))
	c.nack(c.expect(cds, "+80|"+hostA), "Error adding/updating cluster(s) 80|"+hostA+": no")
	c.ack(c.expect(eds, "+80|"+hostA))
	r.rejected("pod", cds)
	r.remove(timeoutRule("a", hostA, 1)) // back to what the proxy has in use
	c.ack(c.expect(cds, "+80|"+hostA, "+80|"+hostB))
	c.ack(c.expect(eds, "+80|"+hostA, "+80|"+hostB))
	if got := typeStatus(r.acked("pod"), cds).GetRejection(); got != nil {
		t.Errorf("rejection after going back: %v", got)
	}
}

func TestStaleNonceIsIgnored(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.subscribe(eds, "80|"+hostA)
	first := c.expect(eds, "+80|"+hostA)
	c.ack(first)
	r.acked("pod")
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.8"))
	second := c.expect(eds, "+80|"+hostA)
	c.nack(first, "late")
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.9"))
	if got := typeStatus(r.status("pod"), eds); got.GetRejection() != nil {
		t.Errorf("a stale nonce counted: %v", got)
	}
	c.ack(second)
	c.ack(c.expect(eds, "+80|"+hostA)) // the newest version only, one response at a time
	r.acked("pod")
}

func TestUpdateDuringAnOutstandingResponseIsSentAfterIt(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	r.acked("pod")
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.100"))
	waiting := c.expect(eds, "+80|"+hostA)
	for i := range 50 {
		r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0."+string(rune('1'+i%9))),
			meshtest.Endpoints("default", hostB, 80, "10.1.1."+string(rune('1'+i%9))))
	}
	c.ack(waiting)
	last := c.expect(eds, "+80|"+hostA, "+80|"+hostB)
	c.ack(last)
	r.acked("pod")
	fresh := r.delta("fresh", "default")
	fresh.subscribe(eds, "80|"+hostA, "80|"+hostB)
	want := versions(fresh.next())
	for name, v := range versions(last) {
		if want[name] != v {
			t.Errorf("%s: version %s, newest %s", name, v, want[name])
		}
	}
}

func TestBuildFailureIsReported(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	r.acked("pod")
	r.set.Break("80|"+hostA, errBroken)
	r.edit(timeoutRule("a", hostA, 1), timeoutRule("b", hostB, 1))
	c.ack(c.expect(cds, "+80|"+hostB))
	c.ack(c.expect(eds, "+80|"+hostB))
	rejection := typeStatus(r.acked("pod"), cds).GetRejection()
	if !slices.Equal(rejection.GetResourceNames(), []string{"80|" + hostA}) || !strings.Contains(rejection.GetMessage(), errBroken.Error()) {
		t.Errorf("rejection %v", rejection)
	}
}
