package translate_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/credential"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
	"fairlead.dev/services/xds-server/internal/translate"
)

const (
	webHost   = "web.shop.svc.cluster.local"
	otherHost = "other.shop.svc.cluster.local"
	gatewayID = "spiffe://cluster.local/ns/shop/sa/gateway"
)

// entrance is the gateway of another network.
var entrance = meshtest.Service("shop", "entrance.shop.svc.cluster.local", 15443, func(s *configv1.Service) {
	s.NetworkGateway = &configv1.NetworkGateway{Network: "b", Addresses: []string{"192.0.2.1"}, Port: 15443}
})

// telling returns a mesh in which every field of a class's key influences some resource; with entrance also the
// network.
func telling(t testing.TB, more ...*configv1.Resource) *mesh.Snapshot {
	located := func(address, zone string) *configv1.EndpointSet {
		return &configv1.EndpointSet{
			Hostname: otherHost, Port: 80, Cluster: zone, LabelSets: []*configv1.LabelSet{{}},
			Localities: []*configv1.Locality{{Region: "eu", Zone: zone}},
			Endpoints: []*configv1.Endpoint{{Address: address, Port: 80, Health: configv1.Health_HEALTH_READY,
				TlsMode: configv1.TlsMode_TLS_MODE_ISTIO, Network: zone}},
		}
	}
	set := func(s *configv1.EndpointSet) *configv1.Resource {
		return meshtest.Resource(mesh.KindEndpointSet, "shop", otherHost+":80/"+s.GetCluster(),
			&configv1.Resource{Body: &configv1.Resource_EndpointSet{EndpointSet: s}})
	}
	return meshtest.State(t, append(more,
		meshtest.Service("shop", "auto.example.com", 80, func(s *configv1.Service) { s.AutoAddresses = []string{"240.240.0.1"} }),
		meshtest.Service("shop", "both.shop.svc.cluster.local", 80, func(s *configv1.Service) {
			s.ClusterAddresses = []*configv1.ClusterAddresses{{Cluster: "east", Addresses: []string{"10.9.0.1"}}}
		}),
		meshtest.Service("shop", webHost, 80), meshtest.Service("shop", otherHost, 80), set(located("10.0.0.1", "a")),
		set(located("10.0.0.2", "b")),
		meshtest.Config(mesh.KindDestinationRule, "shop", "near",
			&networking.DestinationRule{Host: otherHost, TrafficPolicy: &networking.TrafficPolicy{
				OutlierDetection: &networking.OutlierDetection{Consecutive_5XxErrors: wrapperspb.UInt32(1), Interval: durationpb.New(time.Second)},
				LoadBalancer: &networking.LoadBalancerSettings{
					LocalityLbSetting: &networking.LocalityLoadBalancerSetting{Enabled: wrapperspb.Bool(true)}},
			}}),
		meshtest.Config(mesh.KindSidecar, "shop", "narrow", &networking.Sidecar{
			WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"narrow": "yes"}},
			Egress:           []*networking.IstioEgressListener{{Hosts: []string{"~/*"}}},
		}),
		meshtest.Config(mesh.KindSidecar, "shop", "bound", &networking.Sidecar{
			WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"bound": "yes"}},
			Ingress: []*networking.IstioIngressListener{{Port: &networking.SidecarPort{Number: 8080, Name: "http", Protocol: "HTTP"},
				DefaultEndpoint: "127.0.0.1:8080"}},
		}),
		meshtest.PeerAuthentication("shop", "strict", "STRICT", func(pa *security.PeerAuthentication) {
			pa.Selector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "strict"}}
		}),
		meshtest.Config(mesh.KindGateway, "shop", "web", &networking.Gateway{
			Selector: map[string]string{"app": "web"},
			Servers: []*networking.Server{{
				Port: &networking.Port{Number: 443, Name: "https", Protocol: "HTTPS"}, Hosts: []string{"*"},
				Tls: &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, CredentialName: "web"},
			}},
		}),
		meshtest.EnvoyFilter("shop", "new-proxies", `
configPatches:
- applyTo: CLUSTER
  match: {context: SIDECAR_OUTBOUND, proxy: {proxyVersion: '^9\.'}}
  patch: {operation: MERGE, value: {connect_timeout: 3s}}
`),
	)...).WithCredentials(credential.NewSet(map[credential.Ref]*credential.Credential{
		{Identity: gatewayID, Name: "web"}: credential.New(&secretv1.Credential{CertificateChain: []byte("chain"), PrivateKey: []byte("key"),
			Version: "1"}),
	}))
}

// matched returns the proxy match of the mesh's EnvoyFilter.
func matched(t *testing.T, state *mesh.Snapshot) (id string) {
	t.Helper()
	state.ProxyMatches("shop", func(p *mesh.ProxyMatch) { id = p.ID })
	return id
}

// bytesOf builds everything that proxies of a class may request and returns a version of each resource.
func bytesOf(t *testing.T, key *class.Key, state *mesh.Snapshot) map[string]string {
	t.Helper()
	out := map[string]string{}
	s := store.New()
	for _, tr := range translate.All() {
		names, err := plan.List(tr, key, state)
		if err != nil {
			t.Fatal(err)
		}
		switch tr.TypeURL() {
		case resource.RouteType:
			names = []string{"80"}
		case resource.ListenerType:
			names = append(names, "other.shop.svc.cluster.local:80", "xds.istio.io/grpc/lds/inbound/0.0.0.0:80")
		case resource.SecretType:
			names = []string{"kubernetes://web"}
		}
		for _, name := range names {
			m, err := tr.Build(input.NewView(key, state).Reader(), name)
			if err != nil {
				t.Fatal(err)
			}
			if m == nil {
				continue
			}
			b, err := s.Put(tr.TypeURL(), name, m)
			if err != nil {
				t.Fatal(err)
			}
			out[tr.TypeURL()+" "+name] = b.Version()
		}
	}
	return out
}

// A field of the key that no translator reads would split classes without need.
func TestEveryKeyFieldChangesSomeResource(t *testing.T) {
	state := telling(t, entrance)
	base := class.Key{
		Type: class.Sidecar, Namespace: "shop", Interception: class.Redirect, TrustDomain: "cluster.local", DNSDomain: "shop.svc.cluster.local",
		Locality: "eu/a", Labels: map[string]string{"app": "web"}, VirtualHosts: true, Filters: class.RBAC | class.ExtAuthz | class.JWT,
		Targets: []class.Target{{Hostname: webHost, Namespace: "shop", Port: 80, TargetPort: 8080,
			Protocol: int32(configv1.Protocol_PROTOCOL_HTTP)}},
	}
	direct := func(k *class.Key) { k.Interception = class.None }
	program := func(k *class.Key) {
		k.Type, k.Interception, k.VirtualHosts, k.Targets = class.Proxyless, class.None, false, nil
	}
	for name, tc := range map[string]struct {
		// under changes the base key before change does.
		under, change func(*class.Key)
	}{
		"Type":      {change: func(k *class.Key) { k.Type = class.Router }},
		"Namespace": {change: func(k *class.Key) { k.Namespace = "elsewhere" }},
		"Labels":    {change: func(k *class.Key) { k.Labels = map[string]string{"app": "strict"} }},
		"Targets":   {change: func(k *class.Key) { k.Targets = nil }},
		"Addresses": {under: func(k *class.Key) { k.Interception, k.Sidecar = class.None, "shop/bound" },
			change: func(k *class.Key) { k.Addresses = []string{"10.0.0.9"} }},
		"Locality":     {change: func(k *class.Key) { k.Locality = "eu/b" }},
		"Network":      {change: func(k *class.Key) { k.Network = "a" }},
		"Cluster":      {change: func(k *class.Key) { k.Cluster = "east" }},
		"Interception": {change: direct},
		"TrustDomain":  {change: func(k *class.Key) { k.TrustDomain = "example.org" }},
		"DNSDomain":    {change: func(k *class.Key) { k.DNSDomain = "shop.svc.example.org" }},
		"Sidecar":      {change: func(k *class.Key) { k.Sidecar = "shop/narrow" }},
		"VirtualHosts": {change: func(k *class.Key) { k.VirtualHosts = false }},
		"OnDemand":     {change: func(k *class.Key) { k.OnDemand = true }},
		"ProxyMatches": {change: func(k *class.Key) { k.ProxyMatches = []string{matched(t, state)} }},
		"Identity":     {under: func(k *class.Key) { k.Type = class.Router }, change: func(k *class.Key) { k.Identity = gatewayID }},
		"GatewayTopology": {under: func(k *class.Key) { k.Type = class.Router },
			change: func(k *class.Key) { k.GatewayTopology = `{"numTrustedProxies":1}` }},
		"ProxyHeaders": {change: func(k *class.Key) { k.ProxyHeaders = `{"requestId":{"disabled":true}}` }},
		"OffersMTLS":   {under: program, change: func(k *class.Key) { k.OffersMTLS = true }},
		"Filters":      {change: func(k *class.Key) { k.Filters |= class.FilterChains }},
		"DNSCapture":   {change: func(k *class.Key) { k.DNSCapture = true }},
		"Families":     {change: func(k *class.Key) { k.Families = class.IPv6 }},
	} {
		t.Run(name, func(t *testing.T) {
			before := base
			if tc.under != nil {
				tc.under(&before)
			}
			after := before
			tc.change(&after)
			if reflect.DeepEqual(before, after) {
				t.Fatal("nothing was changed")
			}
			if reflect.DeepEqual(bytesOf(t, &before, state), bytesOf(t, &after, state)) {
				t.Error("not one byte of any resource is another one")
			}
		})
		if _, ok := reflect.TypeFor[class.Key]().FieldByName(name); !ok {
			t.Errorf("the key has no field %s", name)
		}
	}
	if got, want := reflect.TypeFor[class.Key]().NumField(), 22; got != want {
		t.Errorf("the key has %d fields, %d are tried", got, want)
	}
}

// Proxies that differ only in what the key leaves out are of one class, and get the same bytes.
func TestProxiesWithOneKeyShareBytes(t *testing.T) {
	state := telling(t)
	node := func(change func(*core.Node)) *class.Key {
		n := &core.Node{
			Id: "sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local", Locality: &core.Locality{Region: "eu", Zone: "a"},
			Metadata:             &structpb.Struct{Fields: map[string]*structpb.Value{}},
			UserAgentVersionType: &core.Node_UserAgentVersion{UserAgentVersion: "1.40.0"},
		}
		change(n)
		parsed, err := class.ParseNode(n)
		if err != nil {
			t.Fatal(err)
		}
		key, _ := parsed.Key(state)
		return key
	}
	base := node(func(*core.Node) {})
	text := func(field, value string) func(*core.Node) {
		return func(n *core.Node) { n.GetMetadata().Fields[field] = structpb.NewStringValue(value) }
	}
	for name, change := range map[string]func(*core.Node){
		"address":  func(n *core.Node) { n.Id = "sidecar~10.9.9.9~web-1.shop~shop.svc.cluster.local" },
		"name":     func(n *core.Node) { n.Id = "sidecar~10.0.0.1~web-2.shop~shop.svc.cluster.local" },
		"version":  func(n *core.Node) { n.UserAgentVersionType = &core.Node_UserAgentVersion{UserAgentVersion: "1.41.0"} },
		"cluster":  func(n *core.Node) { n.Cluster = "another" },
		"features": func(n *core.Node) { n.ClientFeatures = []string{"envoy.lb.does_not_support_overprovisioning"} },
		"labels that nobody selects by": func(n *core.Node) {
			n.GetMetadata().Fields["LABELS"] = structpb.NewStructValue(
				&structpb.Struct{Fields: map[string]*structpb.Value{"x": structpb.NewStringValue("y")}})
		},
		"service account": text("SERVICE_ACCOUNT", "web"), "registry": text("CLUSTER_ID", "two"), "network": text("NETWORK", "n"),
		"anything else": text("ISTIO_VERSION", "1.31"), "workload name": text("WORKLOAD_NAME", "web"),
	} {
		if got := node(change); got.Hash() != base.Hash() {
			t.Errorf("%s makes another class: %+v", name, got)
		}
	}
}
