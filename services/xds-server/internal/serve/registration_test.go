package serve_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// TestRegistrationIsReported: config-watcher is told of a proxy that wants to be registered, with the address that its
// connection comes from, and of nobody without an identity. Refusals end the proxy's streams, and no others.
func TestRegistrationIsReported(t *testing.T) {
	r := start(t, basicMesh()...)
	pki := testkit.PKI(t)
	connect := r.secure(t, pki)
	member := node("vm", "default")
	member.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{
		"AUTO_REGISTER_GROUP": structpb.NewStringValue("machines"), "NETWORK": structpb.NewStringValue("vpc"),
		"PROXY_CONFIG": structpb.NewStructValue(
			&structpb.Struct{Fields: map[string]*structpb.Value{"readinessProbe": structpb.NewStructValue(&structpb.Struct{})}}),
	}}
	c := r.deltaOver(context.Background(), connect(pki.NewSVID("default", "web")), member)
	c.subscribe(cds, "*")
	c.ack(c.next())
	other := r.deltaOver(context.Background(), connect(pki.NewSVID("default", "web")), node("other", "default"))
	other.subscribe(cds, "*")
	other.ack(other.next())
	got := r.acked("vm").GetRegistration()
	if got.GetGroup() != "machines" || got.GetNetwork() != "vpc" || got.GetAddress() != "10.0.2.118" || got.GetPeerAddress() != "127.0.0.1" ||
		!got.GetProbed() {
		t.Errorf("registration %v", got)
	}
	if reg := r.acked("other").GetRegistration(); reg != nil {
		t.Errorf("a proxy that does not ask has %v", reg)
	}
	var refused []*configv1.RefusedRegistration
	for _, id := range []string{r.acked("vm").GetNodeId(), r.acked("other").GetNodeId(), "unknown"} {
		refused = append(refused, &configv1.RefusedRegistration{NodeId: id, Identity: r.acked("vm").GetIdentity(),
			Message: "registration is refused: no"})
	}
	r.ADS.RefuseRegistrations(refused)
	c.refused("registration is refused: no")
	r.acked("other") // is still connected

	plain := r.deltaOver(context.Background(), r.Conn, member)
	plain.subscribe(cds, "*")
	if err := plain.ended(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "connect to the TLS port") {
		t.Errorf("without an identity: %v", err)
	}
}
