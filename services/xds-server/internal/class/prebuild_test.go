package class_test

import (
	"slices"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

func TestPrebuildKeysAreThoseOfTheWorkloadsSidecars(t *testing.T) {
	workload := func(namespace, name, host string, edit ...func(*configv1.Workload)) *configv1.Resource {
		return meshtest.Workload(namespace, name, "10.0.0.1", append(edit, func(w *configv1.Workload) {
			w.TlsMode = configv1.TlsMode_TLS_MODE_ISTIO
			w.Targets = []*configv1.ServiceTarget{{Hostname: host, Port: 80, TargetPort: 80}}
		})...)
	}
	plain := meshtest.Workload("default", "plain", "10.0.0.9", func(w *configv1.Workload) {
		w.TlsMode = configv1.TlsMode_TLS_MODE_DISABLED
		w.Targets = []*configv1.ServiceTarget{{Hostname: "x.plain.svc.cluster.local", Port: 80}}
	})
	state, _ := mesh.Empty().Apply(&configv1.Revision{Sequence: 1}, []*configv1.Resource{
		workload("a", "one", "s.a.svc.cluster.local"),
		workload("b", "one", "s.b.svc.cluster.local"), workload("b", "two", "t.b.svc.cluster.local"),
		workload("limited", "one", "s.limited.svc.cluster.local"),
		meshtest.Config(mesh.KindSidecar, "limited", "sc", &networking.Sidecar{}),
		workload("elsewhere", "one", "example.com"),
		plain,
	}, nil)
	var got []string
	for _, k := range class.PrebuildKeys(state) {
		got = append(got, k.Namespace)
		n := testkit.Must(class.ParseNode(&core.Node{
			Id:       "sidecar~10.0.0.1~one." + k.Namespace + "~" + k.Namespace + ".svc.cluster.local",
			Metadata: metadata(t, map[string]any{"NAMESPACE": k.Namespace, "INTERCEPTION_MODE": "REDIRECT"}),
			Extensions: []*core.Extension{
				{Name: "envoy.access_loggers.stats"}, {Name: "envoy.filters.http.ext_authz"}, {Name: "envoy.filters.http.filter_chain"},
				{Name: "envoy.filters.http.jwt_authn"}, {Name: "envoy.filters.http.rbac"}, {Name: "envoy.filters.http.router"},
			},
		}))(t)
		n.VirtualHosts = true
		if real, _ := n.Key(state); real.OfNamespace().Hash() != k.Hash() {
			t.Errorf("expected %+v, a proxy has %+v", k, real.OfNamespace())
		}
	}
	slices.Sort(got[1:])
	if d := cmp.Diff([]string{"b", "a", "elsewhere"}, got); d != "" {
		t.Errorf("namespaces (-want +got):\n%s", d)
	}
}
