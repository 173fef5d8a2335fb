package input_test

import (
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// TestAProviderIsTheServiceThatMeshConfigMeans: whoever else has a service of the provider's name, and whatever is
// exported to the class.
func TestAProviderIsTheServiceThatMeshConfigMeans(t *testing.T) {
	const host = "ext.auth.svc.cluster.local"
	settings := func(service string) *configv1.Resource {
		grpc := &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider{Service: service, Port: 9000}
		provider := &meshv1alpha1.MeshConfig_ExtensionProvider{
			Name: "ext", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{EnvoyExtAuthzGrpc: grpc},
		}
		return meshtest.Mesh(&meshv1alpha1.MeshConfig{
			RootNamespace: "istio-system", ExtensionProviders: []*meshv1alpha1.MeshConfig_ExtensionProvider{provider},
		})
	}
	asked := meshtest.Config(mesh.KindAuthorizationPolicy, "istio-system", "p", &security.AuthorizationPolicy{
		Action:       security.AuthorizationPolicy_CUSTOM,
		ActionDetail: &security.AuthorizationPolicy_Provider{Provider: &security.AuthorizationPolicy_ExtensionProvider{Name: "ext"}},
	})
	kubernetes := func(s *configv1.Service) { s.Source = &configv1.SourceRef{Kind: "Service"} }
	real := meshtest.Service("auth", host, 9000, kubernetes, meshtest.Visible("auth"))
	external := meshtest.Service("auth", host, 9000, meshtest.Visible("auth"))
	own := meshtest.Service("client", host, 9000, meshtest.Visible("client"), older)
	public := meshtest.Service("elsewhere", host, 9000, older)
	for name, tc := range map[string]struct {
		resources []*configv1.Resource
		port      uint32
		want      string
	}{
		"the only one":                    {[]*configv1.Resource{settings(host), asked, real}, 9000, "auth"},
		"of a namespace":                  {[]*configv1.Resource{settings("auth/" + host), asked, external, own, public}, 9000, "auth"},
		"a Kubernetes Service is first":   {[]*configv1.Resource{settings(host), asked, real, own, public}, 9000, "auth"},
		"several, of which none is first": {[]*configv1.Resource{settings(host), asked, external, own}, 9000, ""},
		"another port":                    {[]*configv1.Resource{settings(host), asked, real}, 9001, ""},
		"no policy asks":                  {[]*configv1.Resource{settings(host), real}, 9000, ""},
		"no provider":                     {[]*configv1.Resource{settings("other"), asked, real}, 9000, ""},
		"no service":                      {[]*configv1.Resource{settings(host), asked}, 9000, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := client(t, tc.resources...).Provided(host, tc.port).GetNamespace(); got != tc.want {
				t.Errorf("the provider is the service of namespace %q, want %q", got, tc.want)
			}
		})
	}
}

// TestAnAnswerForFewerClassesHasChanged: a policy for some workloads leaves the rules of the others as they are, but
// what was made of these rules holds for all workloads no more.
func TestAnAnswerForFewerClassesHasChanged(t *testing.T) {
	state := meshtest.State(t)
	view := input.NewView(&class.Key{Type: class.Sidecar, Namespace: "client"}, state)
	r := view.Reader()
	if rules := r.Rules(); len(rules.Deny.Enforced.List) > 0 || r.Scope() != input.MeshScope {
		t.Fatalf("without policies there are the rules %v of scope %v", rules, r.Scope())
	}
	some := meshtest.Config(mesh.KindAuthorizationPolicy, "istio-system", "p", &security.AuthorizationPolicy{
		Selector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "x"}},
		Action:   security.AuthorizationPolicy_DENY, Rules: []*security.Rule{{}},
	})
	for _, tc := range []struct {
		upserts []*configv1.Resource
		removed []*configv1.ResourceKey
		want    input.Scope
	}{
		{[]*configv1.Resource{some}, nil, input.WorkloadScope},
		{nil, []*configv1.ResourceKey{some.GetKey()}, input.MeshScope},
	} {
		next, change := state.Apply(&configv1.Revision{Epoch: "test", Sequence: state.Revision().GetSequence() + 1}, tc.upserts, tc.removed)
		state = next
		changed := view.Advance(state, change.Topics)
		if !r.Dependencies().Meets(changed) {
			t.Errorf("%v, %v: what depends on the rules is not built again", tc.upserts, tc.removed)
		}
		if r = view.Reader(); len(r.Rules().Deny.Enforced.List) > 0 || r.Scope() != tc.want {
			t.Errorf("%v, %v: rules %v of scope %v, want none of scope %v", tc.upserts, tc.removed, r.Rules(), r.Scope(), tc.want)
		}
	}
}
