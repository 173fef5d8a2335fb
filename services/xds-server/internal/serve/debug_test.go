package serve_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/serve"
)

// debugging starts a server that answers debug types for ops/admin. connect dials it with a certificate.
func debugging(t *testing.T, pki *testkit.CA) (r *fixture, connect func(*testkit.Static) *grpc.ClientConn) {
	t.Helper()
	r = startWith(t, setup{log: testkit.Logger(t), change: func(c *serve.Config) {
		c.Debug = serve.Debug{Allowed: auth.IDs(pki.ID("ops", "admin").String()),
			Answer: func(_ *serve.Server, typeURL string, names []string) ([]*anypb.Any, error) {
				if len(names) == 0 {
					return nil, status.Error(codes.InvalidArgument, "which proxy?")
				}
				return []*anypb.Any{{TypeUrl: typeURL, Value: fmt.Append(nil, names)}}, nil
			}}
	}}, basicMesh())
	return r, r.secure(t, pki)
}

// ask opens a stream as istioctl, sends sotw requests and returns the responses until the first error.
func ask(t *testing.T, conn *grpc.ClientConn, requests ...*discovery.DiscoveryRequest) (got []*discovery.DiscoveryResponse, err error) {
	t.Helper()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	for i, req := range requests {
		if err != nil {
			return got, err
		}
		if i == 0 {
			req.Node = &core.Node{Id: "debug~0.0.0.0~istioctl~cluster.local"}
		}
		if err = stream.Send(req); err == nil || errors.Is(err, io.EOF) { // Recv returns the reason
			var m *discovery.DiscoveryResponse
			if m, err = stream.Recv(); err == nil {
				got = append(got, m)
			}
		}
	}
	return got, err
}

func TestDebugTypesAreForAdministrators(t *testing.T) {
	pki := testkit.PKI(t)
	r, connect := debugging(t, pki)
	syncz := func() *discovery.DiscoveryRequest {
		return &discovery.DiscoveryRequest{TypeUrl: "istio.io/debug/syncz", ResourceNames: []string{"x"},
			ResponseNonce: "a time, as istioctl sends"}
	}
	admin := connect(pki.NewSVID("ops", "admin"))
	got, err := ask(t, admin, syncz(), &discovery.DiscoveryRequest{TypeUrl: "istio.io/debug", ResourceNames: []string{"list"}})
	if err != nil || len(got) != 2 || string(got[1].GetResources()[0].GetValue()) != "[list]" ||
		got[0].GetTypeUrl() != "istio.io/debug/syncz" {
		t.Errorf("answers %v, %v", got, err)
	}
	if len(got) > 0 && !strings.Contains(got[0].GetControlPlane().GetIdentifier(), `"ID":"test"`) {
		t.Errorf("control plane %v", got[0].GetControlPlane())
	}
	for name, tc := range map[string]struct {
		conn     *grpc.ClientConn
		requests []*discovery.DiscoveryRequest
		want     codes.Code
	}{
		"a workload": {connect(pki.NewSVID("default", "web")), []*discovery.DiscoveryRequest{syncz()}, codes.PermissionDenied},
		"its namesake elsewhere": {connect(pki.NewSVID("default", "admin")), []*discovery.DiscoveryRequest{syncz()},
			codes.PermissionDenied},
		"nobody, on the plaintext port": {r.Conn, []*discovery.DiscoveryRequest{syncz()}, codes.Unauthenticated},
		"what cannot be answered":       {admin, []*discovery.DiscoveryRequest{{TypeUrl: "istio.io/debug"}}, codes.InvalidArgument},
		"a proxy's type after it":       {admin, []*discovery.DiscoveryRequest{syncz(), {TypeUrl: cds}}, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ask(t, tc.conn, tc.requests...); status.Code(err) != tc.want {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	if n := len(r.ADS.Statuses()); n != 0 {
		t.Errorf("%d of those who ask are taken for proxies", n)
	}
}

func TestDebugTypesByDelta(t *testing.T) {
	pki := testkit.PKI(t)
	r, connect := debugging(t, pki)
	c := r.deltaOver(t.Context(), connect(pki.NewSVID("ops", "admin")), node("pod", "default"))
	c.subscribe("istio.io/debug", "list")
	m := c.expect("istio.io/debug", "+list")
	c.ack(m)
	c.subscribe("istio.io/debug", "syncz")
	c.expect("istio.io/debug", "+syncz")
}

// TestAmbientTypesAreRefused: a proxy that would wait for such a type is told that it is not served, and a stream of a
// proxy cannot become a debug stream.
func TestAmbientTypesAreRefused(t *testing.T) {
	pki := testkit.PKI(t)
	r, connect := debugging(t, pki)
	for url, want := range map[string]codes.Code{
		"type.googleapis.com/istio.workload.Workload":      codes.Unimplemented,
		"type.googleapis.com/istio.workload.Address":       codes.Unimplemented,
		"type.googleapis.com/istio.security.Authorization": codes.Unimplemented,
		"istio.io/debug/syncz":                             codes.InvalidArgument,
	} {
		c := r.deltaOver(t.Context(), connect(pki.NewSVID("default", "web")), node("pod", "default"))
		c.connectAll()
		c.subscribe(url, "x")
		if err := c.ended(); status.Code(err) != want {
			t.Errorf("%s: %v, want %v", url, err, want)
		}
	}
	// Types that agents only send to tell something, or can do without, are ignored.
	c := r.delta("pod", "default")
	c.connectAll()
	for _, url := range []string{"type.googleapis.com/istio.v1.HealthInformation", "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"} {
		c.subscribe(url)
	}
	r.acked("pod")
}
