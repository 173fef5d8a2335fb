package serve_test

import (
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// TestBannedIdentity: the streams of a banned identity end with the reason, and new ones are refused with it. Other
// identities of the namespace go on. When the ban is lifted, the identity is served again.
func TestBannedIdentity(t *testing.T) {
	r := start(t, basicMesh()...)
	pki := testkit.PKI(t)
	connect := r.secure(t, pki)
	open := func(account, pod string) *deltaClient {
		t.Helper()
		c := r.deltaOver(t.Context(), connect(pki.NewSVID("default", account)), node(pod, "default"))
		// A stream that is refused at once says so when it is read from.
		_ = c.stream.Send(&discovery.DeltaDiscoveryRequest{Node: c.node, TypeUrl: cds, ResourceNamesSubscribe: []string{"*"}})
		return c
	}
	web, batch := open("web", "web"), open("batch", "batch")
	web.next()
	batch.next()
	ban := meshtest.Resource(mesh.KindIdentityBan, "", "default.batch", &configv1.Resource{Body: &configv1.Resource_IdentityBan{
		IdentityBan: &configv1.IdentityBan{Identity: "spiffe://cluster.local/ns/default/sa/batch", Reason: "its key was stolen"},
	}})
	r.edit(ban)
	r.ADS.EnforceBans(r.Snapshot)
	refused := func(what string, err error) {
		t.Helper()
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "its key was stolen") {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("open stream", batch.ended())
	refused("new stream", open("batch", "batch").ended())
	refused("new stream under another name", open("batch", "web").ended())
	if r.status("web") == nil {
		t.Error("another account of the namespace has lost its stream")
	}
	open("web", "web-2").next()
	r.remove(ban)
	r.ADS.EnforceBans(r.Snapshot)
	open("batch", "batch").next()
}
