package translate_test

import (
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// TestAProvidersEndpointsStay: they change also for a proxy to which the provider's service is exported no more, after
// the proxy has subscribed to them while it was.
func TestAProvidersEndpointsStay(t *testing.T) {
	const host, cluster = "ext.auth.svc.cluster.local", "outbound|9000||ext.auth.svc.cluster.local"
	grpc := &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider{Service: "auth/" + host, Port: 9000}
	e := newEngine(t)
	e.edit(
		meshtest.Mesh(&meshv1alpha1.MeshConfig{ExtensionProviders: []*meshv1alpha1.MeshConfig_ExtensionProvider{{
			Name: "ext", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{EnvoyExtAuthzGrpc: grpc},
		}}}),
		meshtest.Config(mesh.KindAuthorizationPolicy, "client", "p", &security.AuthorizationPolicy{
			Action:       security.AuthorizationPolicy_CUSTOM,
			ActionDetail: &security.AuthorizationPolicy_Provider{Provider: &security.AuthorizationPolicy_ExtensionProvider{Name: "ext"}},
			Rules:        []*security.Rule{{}},
		}),
		meshtest.Service("auth", host, 9000), meshtest.Endpoints("auth", host, 9000, "10.0.0.1"),
	)
	c := e.Acquire(&class.Key{Type: class.Sidecar, Namespace: "client", TrustDomain: "cluster.local", Filters: ^class.Filters(0)}, e.heard)
	c.Plan(e.heard, resource.ClusterType, true, nil)
	c.Plan(e.heard, resource.EndpointType, false, []string{cluster})
	had := map[string]any{}
	for _, change := range []struct {
		what string
		to   *configv1.Resource
	}{
		{"at first", meshtest.Service("auth", host, 9000)},
		{"without an export", meshtest.Service("auth", host, 9000, meshtest.Visible("auth"))},
		{"with another endpoint", meshtest.Endpoints("auth", host, 9000, "10.0.0.2")},
	} {
		e.edit(change.to)
		for _, url := range []string{resource.ClusterType, resource.EndpointType} {
			if item, _ := c.Snapshot().Type(url).Get(cluster); item.Blob == nil {
				t.Fatalf("%s there is no %s of the provider", change.what, url)
			}
		}
		item, _ := c.Snapshot().Type(resource.EndpointType).Get(cluster)
		had[change.what] = item.Blob
	}
	if had["with another endpoint"] == had["without an export"] {
		t.Error("the provider's endpoints do not change")
	}
}
