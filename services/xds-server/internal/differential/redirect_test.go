package differential_test

import (
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
	"fairlead.dev/services/xds-server/internal/translate"
)

// In namespace y, b.x is y's own service, beside one that is exported to y; elsewhere it is that of x. Once y's speaks
// HTTP on port 3306, the answer whether any service does so stays no in the mesh, but comes to depend on b.x, and is
// yes in y: there, an on-demand sidecar needs a listener at the address of a.x, whose server may send the first bytes.
func TestAnEqualAnswerThatComesToDependOnAPrivateServiceIsAskedAgain(t *testing.T) {
	protocol := func(port uint32, p configv1.Protocol, exportedTo string) func(*configv1.Service) {
		return func(s *configv1.Service) {
			s.ExportedTo = []string{exportedTo}
			s.Ports = []*configv1.ServicePort{{Name: "p", Number: port, Protocol: p, TargetPort: port}}
		}
	}
	service := func(ns, host string, port uint32, p configv1.Protocol, to string, addresses ...string) *configv1.Resource {
		return meshtest.Service(ns, host, port, protocol(port, p, to), func(s *configv1.Service) { s.Addresses = addresses })
	}
	e := testkit.Must(plan.NewEngine(plan.Config{
		Translators: translate.All(), Store: store.New(), Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(), Workers: 1,
	}))(t)
	state, change := mesh.Empty().Apply(nil, []*configv1.Resource{
		service("x", "a.x.svc.cluster.local", 3306, configv1.Protocol_PROTOCOL_TCP, "*", "10.96.0.3"),
		service("x", "b.x.svc.cluster.local", 80, configv1.Protocol_PROTOCOL_HTTP, "*"),
		service("istio-system", "b.x.svc.cluster.local", 80, configv1.Protocol_PROTOCOL_HTTP, "y"),
		service("y", "b.x.svc.cluster.local", 80, configv1.Protocol_PROTOCOL_HTTP, "*"),
	}, nil)
	e.Apply(state, change, nil)
	node := testkit.Must(class.ParseNode(node("sidecar", "lean", "y", "10.0.1.5", map[string]any{class.OnDemandMetadata: "true"})))(t)
	node.VirtualHosts = true // which an on-demand sidecar needs
	m := &member{node: node}
	m.join(e, state)
	holds := func() bool {
		item, ok := m.class.Snapshot().Type(resource.ListenerType).Get("10.96.0.3_3306")
		return ok && item.Blob != nil
	}
	if holds() {
		t.Fatal("nobody speaks HTTP on port 3306 yet")
	}
	state, change = state.Apply(nil, []*configv1.Resource{
		service("y", "b.x.svc.cluster.local", 3306, configv1.Protocol_PROTOCOL_HTTP, "*"),
	}, nil)
	e.Apply(state, change, nil)
	if !holds() {
		t.Error("the sidecar of namespace y has no listener at the address of a.x")
	}
}
