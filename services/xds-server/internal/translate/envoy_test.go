package translate_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/envoytest"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/cluster"
	"fairlead.dev/services/xds-server/internal/translate/endpoint"
	"fairlead.dev/services/xds-server/internal/translate/listener"
	"fairlead.dev/services/xds-server/internal/translate/route"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// The real Envoy accepts all that is built for the golden cases. It checks what no schema states: command operators,
// regular expressions, duplicate domains, filter chains with equal matches, options that exclude each other.
func TestEnvoyAcceptsGoldens(t *testing.T) {
	for name, file := range caseNames(t) {
		t.Run(name, func(t *testing.T) {
			validate(t, bootstrap(t, buildAll(t, load(t, file))))
		})
	}
}

// The real Envoy accepts all that translators build from random meshes without an error.
func TestEnvoyAcceptsRandomMeshes(t *testing.T) {
	generator := rapid.Custom(drawMesh)
	for seed := range 20 {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			c := generator.Example(seed)
			resources, err := c.resources()
			if err != nil {
				t.Fatal(err)
			}
			state, err := mesh.FromResources(resources)
			if err != nil {
				t.Fatal(err)
			}
			validate(t, bootstrap(t, accepted(fixture{key: c.Class.key(), state: state})))
		})
	}
}

// accepted builds what can be built without an error.
func accepted(w fixture) built {
	r := w.reader()
	var out built
	for kind, into := range map[plan.Translator]*[]proto.Message{
		cluster.Translator{}: &out.clusters, endpoint.Translator{}: &out.endpoints,
		listener.Translator{}: &out.listeners, route.Translator{}: &out.routes,
	} {
		names, err := plan.List(kind, w.key, w.state)
		if err != nil {
			continue
		}
		switch kind.(type) {
		case route.Translator:
			names = []string{"80", "8080", "http.80"}
		case endpoint.Translator:
			names, _ = plan.List(cluster.Translator{}, w.key, w.state)
		}
		for _, name := range names {
			if m, err := kind.Build(r, name); err == nil && m != nil {
				*into = append(*into, m)
			}
		}
	}
	return out
}

func validate(t *testing.T, config *bootstrapv3.Bootstrap) {
	t.Helper()
	// Envoy opens the certificates of a configuration that it validates.
	dir := t.TempDir()
	certificate, err := testkit.PKI(t).NewSVID("default", "test").Current()
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"cert.pem": certificate.CertPEM, "key.pem": certificate.KeyPEM,
		"ca.pem": certificate.RootsPEM} {
		testkit.WriteFile(t, filepath.Join(dir, name), content)
	}
	raw, err := protojson.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	moved := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(bytes.ReplaceAll(raw, []byte("/etc/certs"), []byte(dir)), moved); err != nil {
		t.Fatal(err)
	}
	if reason := envoytest.Validate(t, moved); reason != "" {
		t.Errorf("Envoy refuses it: %s", reason)
	}
}

// bootstrap puts all resources where Envoy validates them without a control plane: routes into listeners, load
// assignments into clusters.
func bootstrap(t *testing.T, b built) *bootstrapv3.Bootstrap {
	t.Helper()
	out := &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: "sidecar~127.0.0.1~test.default~default.svc.cluster.local", Cluster: "test"},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{AdsConfig: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_DELTA_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "xds-grpc"},
			}}},
		}},
		// node-agent's bootstrap sets it too: Envoy's default of 100 rejects common regular expressions.
		LayeredRuntime: &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
			Name: "static",
			LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: map[string]*structpb.Value{
				"re2.max_program_size.error_level": structpb.NewNumberValue(32768),
			}}},
		}}},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Clusters: []*clusterv3.Cluster{
				envoytest.GRPCCluster(t, "xds-grpc", "/nonexistent/agent.sock"), envoytest.GRPCCluster(t, "sds-grpc", "/nonexistent/agent.sock"),
			},
		},
	}
	for _, m := range b.clusters {
		out.StaticResources.Clusters = append(out.StaticResources.Clusters, proto.CloneOf(m.(*clusterv3.Cluster)))
	}
	for i, m := range b.endpoints {
		assignment := proto.CloneOf(m.(*endpointv3.ClusterLoadAssignment))
		assignment.ClusterName = "assignment-" + strconv.Itoa(i)
		out.StaticResources.Clusters = append(out.StaticResources.Clusters, &clusterv3.Cluster{
			Name: assignment.GetClusterName(), ConnectTimeout: durationpb.New(time.Second), LoadAssignment: assignment,
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		})
	}
	for _, m := range b.listeners {
		out.StaticResources.Listeners = append(out.StaticResources.Listeners, proto.CloneOf(m.(*listenerv3.Listener)))
	}
	for i, m := range b.routes {
		out.StaticResources.Listeners = append(out.StaticResources.Listeners, routeListener(i, m.(*routev3.RouteConfiguration)))
	}
	if len(b.extensions) > 0 {
		var found []*managerv3.HttpFilter
		for _, m := range b.extensions {
			found = append(found, &managerv3.HttpFilter{
				Name: m.(*corev3.TypedExtensionConfig).GetName(),
				ConfigType: &managerv3.HttpFilter_TypedConfig{
					TypedConfig: m.(*corev3.TypedExtensionConfig).GetTypedConfig(),
				},
			})
		}
		out.StaticResources.Listeners = append(out.StaticResources.Listeners,
			routeListener(len(b.routes), &routev3.RouteConfiguration{Name: "extensions"}, found...))
	}
	return out
}

// routeListener contains a route configuration, and filters before the router.
func routeListener(i int, rc *routev3.RouteConfiguration, filters ...*managerv3.HttpFilter) *listenerv3.Listener {
	manager := &managerv3.HttpConnectionManager{
		StatPrefix:     "route",
		RouteSpecifier: &managerv3.HttpConnectionManager_RouteConfig{RouteConfig: rc},
		HttpFilters: append(filters, &managerv3.HttpFilter{
			Name: "router", ConfigType: &managerv3.HttpFilter_TypedConfig{TypedConfig: typedconfig.Any(&routerv3.Router{})},
		}),
	}
	return &listenerv3.Listener{
		Name: fmt.Sprintf("route-%d", i),
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(60000 + i)},
		}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "manager", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: typedconfig.Any(manager)},
		}}}},
	}
}
