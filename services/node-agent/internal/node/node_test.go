package node

import (
	"net/netip"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/node-agent/internal/config"
)

func workload() *config.Config {
	return &config.Config{
		Role: config.Sidecar, PodName: "web-0", Namespace: "shop", ServiceAccount: "web", DNSDomain: "shop.svc.cluster.local",
		InstanceIPs:  []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")},
		Labels:       map[string]string{"app": "web"},
		Meta:         map[string]any{"CLUSTER_ID": "c1", "INTERCEPTION_MODE": "NONE", "NETWORK": "n1"},
		ProxyConfig:  &meshv1alpha1.ProxyConfig{MeshId: "m1", DiscoveryAddress: "xds:15012"},
		ReadyAddress: netip.MustParseAddrPort("10.0.0.7:15021"),
		StatsAddress: netip.MustParseAddrPort("10.0.0.7:15090"),
	}
}

func TestMetadata(t *testing.T) {
	n, err := New(workload())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := n.GetId(), "sidecar~10.0.0.7~web-0.shop~shop.svc.cluster.local"; got != want {
		t.Errorf("id %q, want %q", got, want)
	}
	if got, want := n.GetCluster(), "web.shop"; got != want {
		t.Errorf("cluster %q, want %q", got, want)
	}
	want := &structpb.Struct{}
	if err := protojson.Unmarshal([]byte(`{
		"NAME": "web-0", "NAMESPACE": "shop", "SERVICE_ACCOUNT": "web", "INSTANCE_IPS": "10.0.0.7,fd00::7",
		"ISTIO_VERSION": "1.31.1", "FAIRLEAD_VERSION": "dev", "FAIRLEAD_KEEPS_EXTENSION_CONFIGS": "true",
		"ENVOY_STATUS_PORT": 15021, "ENVOY_PROMETHEUS_PORT": 15090,
		"PROXY_XDS_VIA_AGENT": "true", "CLUSTER_ID": "c1", "NETWORK": "n1", "MESH_ID": "m1", "INTERCEPTION_MODE": "NONE",
		"LABELS": {"app": "web"}, "PROXY_CONFIG": {"meshId": "m1", "discoveryAddress": "xds:15012"}
	}`), want); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, n.GetMetadata(), protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

func TestProxylessNode(t *testing.T) {
	c := workload()
	c.Meta["GENERATOR"] = "grpc"
	envoy, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if g, ok := envoy.GetMetadata().GetFields()["GENERATOR"]; ok {
		t.Errorf("an Envoy beside them says it is %v", g)
	}
	n, err := NewProxyless(workload())
	if err != nil {
		t.Fatal(err)
	}
	if n.GetMetadata().GetFields()["GENERATOR"].GetStringValue() != "grpc" || n.GetLocality() == nil || n.GetId() != ID(workload()) {
		t.Errorf("got %v", n)
	}
}

func TestInterceptionMode(t *testing.T) {
	for _, tc := range []struct {
		role       config.Role
		mode, want string
	}{
		{config.Sidecar, "REDIRECT", "REDIRECT"},
		{config.Sidecar, "TPROXY", "TPROXY"},
		{config.Router, "REDIRECT", ""},
	} {
		c := workload()
		c.Role, c.Interception = tc.role, tc.mode
		delete(c.Meta, "INTERCEPTION_MODE")
		n, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if got := n.GetMetadata().GetFields()["INTERCEPTION_MODE"].GetStringValue(); got != tc.want {
			t.Errorf("%s, %s: %q, want %q", tc.role, tc.mode, got, tc.want)
		}
	}
}

func TestOnDemand(t *testing.T) {
	for _, said := range []string{"", "true", "false"} {
		c := workload()
		if on, err := strconv.ParseBool(said); err == nil {
			c.OnDemand = &on
		}
		n, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if got := n.GetMetadata().GetFields()["FAIRLEAD_ON_DEMAND"].GetStringValue(); got != said {
			t.Errorf("%q, want %q", got, said)
		}
	}
}

func TestLocality(t *testing.T) {
	for _, tc := range []struct {
		name   string
		labels map[string]string
		want   string
	}{
		{"none", nil, "//"},
		{"topology", map[string]string{"topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": "z",
			"topology.istio.io/subzone": "s"}, "r/z/s"},
		{"istio-locality wins", map[string]string{"istio-locality": "a.b.c", "topology.kubernetes.io/region": "r"}, "a/b/c"},
		{"region alone", map[string]string{"istio-locality": "a"}, "a//"},
		{"slashes", map[string]string{"istio-locality": "a.1/b/c"}, "a.1/b/c"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := workload()
			c.Labels = tc.labels
			l := locality(c)
			if got := l.GetRegion() + "/" + l.GetZone() + "/" + l.GetSubZone(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// Traces name the proxy by the node's cluster.
func TestClusterIsTheNameInTraces(t *testing.T) {
	const canonical, namespaced = meshv1alpha1.ProxyConfig_CANONICAL_NAME_ONLY, meshv1alpha1.ProxyConfig_CANONICAL_NAME_AND_NAMESPACE
	tracing := func(n meshv1alpha1.ProxyConfig_TracingServiceName) *meshv1alpha1.ProxyConfig {
		return &meshv1alpha1.ProxyConfig{ClusterName: &meshv1alpha1.ProxyConfig_TracingServiceName_{TracingServiceName: n}}
	}
	service := func(name string) *meshv1alpha1.ProxyConfig {
		return &meshv1alpha1.ProxyConfig{ClusterName: &meshv1alpha1.ProxyConfig_ServiceCluster{ServiceCluster: name}}
	}
	named := map[string]string{"app": "web", "service.istio.io/canonical-name": "front"}
	for _, tc := range []struct {
		name   string
		config *meshv1alpha1.ProxyConfig
		labels map[string]string
		meta   map[string]any
		want   string
	}{
		{"application and namespace", &meshv1alpha1.ProxyConfig{}, named, nil, "web.shop"},
		{"workload and namespace", &meshv1alpha1.ProxyConfig{}, nil, map[string]any{"WORKLOAD_NAME": "web-v1"}, "web-v1.shop"},
		{"nothing is known", &meshv1alpha1.ProxyConfig{}, nil, nil, "istio-proxy.shop"},
		{"serviceCluster", service("own"), named, nil, "own"},
		{"serviceCluster of Istio's defaults", service("istio-proxy"), named, nil, "web.shop"},
		{"application by tracingServiceName", tracing(meshv1alpha1.ProxyConfig_APP_LABEL_AND_NAMESPACE), named, nil, "web.shop"},
		{"canonical name", tracing(canonical), named, nil, "front"},
		{"canonical name of a workload without labels", tracing(canonical), nil, map[string]any{"WORKLOAD_NAME": "web-v1"}, "web-v1"},
		{"no canonical name", tracing(canonical), nil, nil, "istio-proxy.shop"},
		{"canonical name and namespace", tracing(namespaced), named, nil, "front.shop"},
	} {
		c := workload()
		c.ProxyConfig, c.Labels, c.Meta = tc.config, tc.labels, tc.meta
		if got := cluster(c); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
