package class_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// usualFilters are those of a client that lists none.
const usualFilters = class.RBAC | class.ExtAuthz | class.JWT

// TestEveryFieldMakesAnotherClass changes each field of the key by its name: a new field that the hash lacks fails
// here.
func TestEveryFieldMakesAnotherClass(t *testing.T) {
	base := class.Key{
		Type: class.Sidecar, Namespace: "a", Labels: map[string]string{"app": "x"}, Interception: class.Redirect,
		Targets: []class.Target{{Hostname: "h", Namespace: "a", Port: 80, TargetPort: 8080, Protocol: 2}},
	}
	changes := map[string]func(*class.Key){
		"Type":            func(k *class.Key) { k.Type = class.Router },
		"Namespace":       func(k *class.Key) { k.Namespace = "b" },
		"Labels":          func(k *class.Key) { k.Labels = map[string]string{"app": "y"} },
		"Targets":         func(k *class.Key) { k.Targets = nil },
		"Addresses":       func(k *class.Key) { k.Addresses = []string{"10.0.0.1"} },
		"Locality":        func(k *class.Key) { k.Locality = "eu" },
		"Network":         func(k *class.Key) { k.Network = "n1" },
		"Cluster":         func(k *class.Key) { k.Cluster = "east" },
		"Interception":    func(k *class.Key) { k.Interception = class.None },
		"TrustDomain":     func(k *class.Key) { k.TrustDomain = "td" },
		"DNSDomain":       func(k *class.Key) { k.DNSDomain = "d" },
		"Sidecar":         func(k *class.Key) { k.Sidecar = "a/s" },
		"VirtualHosts":    func(k *class.Key) { k.VirtualHosts = true },
		"OnDemand":        func(k *class.Key) { k.OnDemand = true },
		"Identity":        func(k *class.Key) { k.Identity = "spiffe://cluster.local/ns/shop/sa/gateway" },
		"ProxyHeaders":    func(k *class.Key) { k.ProxyHeaders = `{"requestId":{"disabled":true}}` },
		"GatewayTopology": func(k *class.Key) { k.GatewayTopology = `{"numTrustedProxies":1}` },
		"OffersMTLS":      func(k *class.Key) { k.OffersMTLS = true },
		"ProxyMatches":    func(k *class.Key) { k.ProxyMatches = []string{"x"} },
		"DNSCapture":      func(k *class.Key) { k.DNSCapture = true },
		"Families":        func(k *class.Key) { k.Families = class.DualStack },
		"Filters":         func(k *class.Key) { k.Filters = class.RBAC },
	}
	seen := map[class.Hash]string{base.Hash(): "base"}
	fields := reflect.TypeFor[class.Key]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		change, ok := changes[name]
		if !ok {
			t.Errorf("field %s is not tried", name)
			continue
		}
		k := base
		change(&k)
		if other, ok := seen[k.Hash()]; ok {
			t.Errorf("changing %s gives the class of %s", name, other)
		}
		seen[k.Hash()] = name
	}
	target := reflect.TypeFor[class.Target]()
	for i := range target.NumField() {
		k := base
		k.Targets = []class.Target{base.Targets[0]}
		switch f := reflect.ValueOf(&k.Targets[0]).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("other")
		case reflect.Uint32:
			f.SetUint(1)
		default:
			f.SetInt(1)
		}
		if other, ok := seen[k.Hash()]; ok {
			t.Errorf("changing a target's %s gives the class of %s", target.Field(i).Name, other)
		}
	}
	// Values must not run into each other.
	a, b := base, base
	a.Locality, a.TrustDomain, b.Locality, b.TrustDomain = "xy", "z", "x", "yz"
	if a.Hash() == b.Hash() {
		t.Error("neighbouring values run together")
	}
}

func metadata(t testing.TB, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAgentsReleaseIsKnown(t *testing.T) {
	const rev = "istio.io/rev"
	for name, tc := range map[string]struct {
		metadata          map[string]any
		version, revision string
	}{
		"node-agent": {
			map[string]any{"FAIRLEAD_VERSION": "v0.9.0", "ISTIO_VERSION": "1.31.1", "ANNOTATIONS": map[string]any{rev: "canary"},
				"LABELS": map[string]any{rev: "a-tag"}},
			"v0.9.0", "canary",
		},
		"a gateway of Istio": {map[string]any{"ISTIO_VERSION": "1.29.0", "LABELS": map[string]any{rev: "default"}}, "1.29.0", "default"},
		"a machine":          {map[string]any{"FAIRLEAD_VERSION": "v0.9.0"}, "v0.9.0", ""},
		"texts that are too long": {map[string]any{"FAIRLEAD_VERSION": strings.Repeat("x", 200),
			"LABELS": map[string]any{rev: strings.Repeat("x", 5000)}}, "", ""},
	} {
		n, err := class.ParseNode(&core.Node{Id: "sidecar~10.0.0.1~web.shop~x", Metadata: metadata(t, tc.metadata)})
		if err != nil || n.AgentVersion != tc.version || n.Revision != tc.revision {
			t.Errorf("%s: %+v, %v, want agent %q of revision %q", name, n, err, tc.version, tc.revision)
		}
	}
}

func TestParseNode(t *testing.T) {
	good := func() *core.Node {
		return &core.Node{
			Id: "sidecar~10.0.0.1~web-0.apps.shop~shop.svc.cluster.local", Locality: &core.Locality{Region: "eu", Zone: "eu-a"},
			Metadata: metadata(t, map[string]any{
				"NAMESPACE": "shop", "SERVICE_ACCOUNT": "web", "CLUSTER_ID": "one", "NETWORK": "net", "INTERCEPTION_MODE": "NONE",
				"INSTANCE_IPS": "10.0.0.1,fd00::1, nonsense", "LABELS": map[string]any{"app": "web"},
			}),
			Extensions: []*core.Extension{
				{Name: "envoy.filters.http.rbac"}, {Name: "envoy.filters.http.filter_chain"}, {Name: "envoy.filters.http.router"},
			},
			UserAgentVersionType: &core.Node_UserAgentVersion{UserAgentVersion: "1.40.0"},
		}
	}
	n, err := class.ParseNode(good())
	if err != nil {
		t.Fatal(err)
	}
	want := &class.Node{
		ID: good().GetId(), Type: class.Sidecar, Name: "web-0.apps", Namespace: "shop",
		Addresses: []string{"10.0.0.1", "fd00::1"}, ServiceAccount: "web", Interception: class.None, Cluster: "one", Version: "1.40.0",
		Filters: class.RBAC | class.FilterChains,
		Metadata: map[string]string{
			"NAMESPACE": "shop", "SERVICE_ACCOUNT": "web", "CLUSTER_ID": "one", "NETWORK": "net", "INTERCEPTION_MODE": "NONE",
			"INSTANCE_IPS": "10.0.0.1,fd00::1, nonsense",
		},
	}
	if d := cmp.Diff(want, n); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for name, change := range map[string]func(*core.Node){
		"no id":                func(n *core.Node) { n.Id = "" },
		"three parts":          func(n *core.Node) { n.Id = "sidecar~10.0.0.1~a.b" },
		"five parts":           func(n *core.Node) { n.Id += "~x" },
		"unknown type":         func(n *core.Node) { n.Id = strings.Replace(n.Id, "sidecar", "ztunnel", 1) },
		"no namespace":         func(n *core.Node) { n.Id = "sidecar~10.0.0.1~web.~x" },
		"no name":              func(n *core.Node) { n.Id = "sidecar~10.0.0.1~.shop~x" },
		"namespaces disagree":  func(n *core.Node) { n.Metadata = metadata(t, map[string]any{"NAMESPACE": "other"}) },
		"unknown interception": func(n *core.Node) { n.Metadata = metadata(t, map[string]any{"INTERCEPTION_MODE": "MAGIC"}) },
		"long text": func(n *core.Node) {
			n.Metadata = metadata(t, map[string]any{"SERVICE_ACCOUNT": strings.Repeat("x", 5000)})
		},
		"long id":        func(n *core.Node) { n.Id += strings.Repeat("x", 2000) },
		"huge":           func(n *core.Node) { n.Metadata = metadata(t, map[string]any{"X": strings.Repeat("x", 300<<10)}) },
		"many entries":   func(n *core.Node) { n.Metadata = entries(257, 1) },
		"large metadata": func(n *core.Node) { n.Metadata = entries(100, 200) },
		"more addresses than anybody": func(n *core.Node) {
			n.Metadata = metadata(t, map[string]any{"INSTANCE_IPS": manyAddresses()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := good()
			change(n)
			if got, err := class.ParseNode(n); !errors.Is(err, class.ErrMalformed) {
				t.Errorf("got %v, %v, want ErrMalformed", got, err)
			}
		})
	}
}

// entries are n entries of text of a metadata.
func entries(n, size int) *structpb.Struct {
	m := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := range n {
		m.Fields[fmt.Sprint("E", i)] = structpb.NewStringValue(strings.Repeat("x", size))
	}
	return m
}

// TestAgentsMetadataIsTaken parses nodes as Istio's agents send them, for a Pod with many settings of its own.
func TestAgentsMetadataIsTaken(t *testing.T) {
	fields := map[string]any{
		"ANNOTATIONS": map[string]any{"large": strings.Repeat("x", 60<<10)}, "LABELS": map[string]any{"app": "web"},
		"PROXY_CONFIG":      map[string]any{"proxyMetadata": map[string]any{"X": strings.Repeat("x", 20<<10)}},
		"PLATFORM_METADATA": map[string]any{"gcp_project": strings.Repeat("x", 20<<10)}, "ENVOY_STATUS_PORT": 15021.0,
		"PILOT_SAN": []any{"istiod.istio-system.svc"}, "APP_CONTAINERS": strings.Repeat("container,", 50),
		"POD_PORTS": strings.Repeat(`{"name":"http","containerPort":8080,"protocol":"TCP"},`, 60), "TOO_LONG_TO_MATCH": strings.Repeat("x", 5000),
		"NAMESPACE": "shop", "SERVICE_ACCOUNT": "web", "INSTANCE_IPS": "10.0.0.1,fd00::1", "INTERCEPTION_MODE": "REDIRECT",
		"OWNER": "kubernetes://apis/apps/v1/namespaces/shop/deployments/web",
	}
	for i := range 100 {
		fields[fmt.Sprintf("A_SETTING_OF_THE_POD_%d", i)] = strings.Repeat("x", 60)
	}
	n, err := class.ParseNode(&core.Node{Id: "sidecar~10.0.0.1~web.shop~x", Metadata: metadata(t, fields)})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := n.Metadata["TOO_LONG_TO_MATCH"]; ok || n.Metadata["OWNER"] != fields["OWNER"] || len(n.Metadata) != 107 {
		t.Errorf("%d entries: %q", len(n.Metadata), n.Metadata)
	}
}

func manyAddresses() string {
	var list []string
	for i := range 100 {
		list = append(list, fmt.Sprintf("10.0.1.%d", i))
	}
	return strings.Join(list, ",")
}

func FuzzParseNode(f *testing.F) {
	f.Add("sidecar~10.0.0.1~a.b~b.svc", "NETWORK", "n")
	f.Add("router~~a.b~", "INTERCEPTION_MODE", "NONE")
	f.Fuzz(func(t *testing.T, id, key, value string) {
		n, err := class.ParseNode(&core.Node{Id: id,
			Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(value)}}})
		if err != nil {
			if !errors.Is(err, class.ErrMalformed) {
				t.Errorf("error %v", err)
			}
			return
		}
		if n.Namespace == "" || n.Name == "" || n.Type == 0 {
			t.Errorf("accepted %q as %+v", id, n)
		}
		n.Key(mesh.Empty())
	})
}

func TestKeyFollowsTheWorkload(t *testing.T) {
	node := func(sa string) *class.Node {
		n, err := class.ParseNode(&core.Node{
			Id: "sidecar~10.0.0.1~web.shop~shop.svc.cluster.local", Locality: &core.Locality{Region: "claimed"},
			Metadata: metadata(t, map[string]any{"LABELS": map[string]any{"app": "claimed", "other": "x"}, "SERVICE_ACCOUNT": sa}),
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	host := "web.shop.svc.cluster.local"
	workload := func(name string) *configv1.Resource {
		return meshtest.Workload("shop", name, "10.0.0.1", func(w *configv1.Workload) {
			w.Labels = map[string]string{"app": "web", "other": "y"}
			w.Locality = &configv1.Locality{Region: "eu"}
			w.Targets = []*configv1.ServiceTarget{{Hostname: host, Port: 80, TargetPort: 8080, Namespace: "shop"}}
		})
	}
	selects := meshtest.PeerAuthentication("shop", "p", "STRICT", func(pa *security.PeerAuthentication) {
		pa.Selector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "z"}}
	})
	sidecar := meshtest.Config(mesh.KindSidecar, "shop", "s", &networking.Sidecar{
		WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"other": "y"}},
	})
	mesh := meshtest.Mesh(&meshv1alpha1.MeshConfig{TrustDomain: "td"})
	service := meshtest.Service("shop", host, 80)
	known := &class.Key{
		Type: class.Sidecar, Namespace: "shop", Labels: map[string]string{"app": "web"}, Locality: "eu", Interception: class.Redirect,
		Targets: []class.Target{{Hostname: host, Namespace: "shop", Port: 80, TargetPort: 8080,
			Protocol: int32(configv1.Protocol_PROTOCOL_HTTP)}},
		TrustDomain: "td", DNSDomain: "shop.svc.cluster.local", Sidecar: "shop/s", Filters: usualFilters,
	}
	unknown := &class.Key{
		Type: class.Sidecar, Namespace: "shop", Labels: map[string]string{}, Interception: class.Redirect,
		TrustDomain: "td", DNSDomain: "shop.svc.cluster.local", Filters: usualFilters,
	}
	for name, tc := range map[string]struct {
		sa       string
		workload *configv1.Resource
		want     *class.Key
	}{
		"by name":                    {"default", workload("web"), known},
		"by address":                 {"default", workload("machine-entry"), known},
		"unknown":                    {"default", meshtest.Workload("other", "web", "10.0.0.1"), unknown},
		"of another service account": {"thief", workload("web"), unknown},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(tc.sa)
			before, topics := n.Key(meshtest.State(t))
			state, change := meshtest.State(t).Apply(nil, []*configv1.Resource{mesh, selects, sidecar, service, tc.workload}, nil)
			got, _ := n.Key(state)
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			hit := false
			for topic := range topics {
				hit = hit || change.Topics.Has(topic)
			}
			if got.Hash() != before.Hash() && !hit {
				t.Error("the class changed and none of its topics was touched")
			}
		})
	}
}

// TestWhereAWorkloadRuns: what a rule compares of a place is in the key, from what the mesh knows and not what the node
// says, and nothing more.
func TestWhereAWorkloadRuns(t *testing.T) {
	n, err := class.ParseNode(&core.Node{
		Id: "sidecar~10.0.0.1~web.shop~shop.svc.cluster.local", Locality: &core.Locality{Region: "said", Zone: "z"},
		Metadata: metadata(t, map[string]any{"NETWORK": "net", "CLUSTER_ID": "one", "LABELS": map[string]any{class.NetworkLabel: "label"}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	rule := meshtest.Config(mesh.KindDestinationRule, "shop", "near",
		&networking.DestinationRule{Host: "a", TrafficPolicy: &networking.TrafficPolicy{
			LoadBalancer: &networking.LoadBalancerSettings{LocalityLbSetting: &networking.LocalityLoadBalancerSetting{
				FailoverPriority: []string{class.NetworkLabel, class.RegionLabel, class.ZoneLabel, class.ClusterLabel},
			}},
		}})
	known := meshtest.Workload("shop", "web", "10.0.0.1", func(w *configv1.Workload) {
		w.Network, w.Cluster, w.Locality = "n1", "two", &configv1.Locality{Region: "known", Subzone: "s"}
	})
	for name, tc := range map[string]struct {
		resources []*configv1.Resource
		want      map[string]string
	}{
		"no selector names it": {[]*configv1.Resource{known}, map[string]string{}},
		"unknown labels":       {[]*configv1.Resource{rule}, map[string]string{}},
		"as the mesh says": {[]*configv1.Resource{rule, known},
			map[string]string{class.NetworkLabel: "n1", class.RegionLabel: "known", class.ClusterLabel: "two"}},
	} {
		t.Run(name, func(t *testing.T) {
			key, _ := n.Key(meshtest.State(t, tc.resources...))
			if d := cmp.Diff(tc.want, key.Labels); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestIdentityOfSidecars: the identity is part of the class only if a DestinationRule with a credentialName selects the
// sidecar, which then has credentials.
func TestIdentityOfSidecars(t *testing.T) {
	n, err := class.ParseNode(&core.Node{Id: "sidecar~10.0.0.1~web.shop~shop.svc.cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Authorize(spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/web")); err != nil {
		t.Fatal(err)
	}
	rule := func(namespace string, selector map[string]string, credential string) *configv1.Resource {
		spec := &networking.DestinationRule{Host: "a", Subsets: []*networking.Subset{{Name: "v1", TrafficPolicy: &networking.TrafficPolicy{
			Tls: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_MUTUAL, CredentialName: credential},
		}}}}
		if selector != nil {
			spec.WorkloadSelector = &typev1beta1.WorkloadSelector{MatchLabels: selector}
		}
		return meshtest.Config(mesh.KindDestinationRule, namespace, "r", spec)
	}
	web := map[string]string{"app": "web"}
	for name, tc := range map[string]struct {
		rule *configv1.Resource
		want bool
	}{
		"selected":             {rule("shop", web, "pair"), true},
		"others are":           {rule("shop", map[string]string{"app": "other"}, "pair"), false},
		"no selector":          {rule("shop", nil, "pair"), false},
		"from afar":            {rule("other", web, "pair"), false},
		"without a credential": {rule("shop", web, ""), false},
	} {
		t.Run(name, func(t *testing.T) {
			known := meshtest.State(t, meshtest.Workload("shop", "web", "10.0.0.1", func(w *configv1.Workload) { w.ServiceAccount = "web" }))
			_, topics := n.Key(known)
			state, change := known.Apply(nil, []*configv1.Resource{tc.rule}, nil)
			key, _ := n.Key(state)
			if (key.Identity != "") != tc.want {
				t.Errorf("identity %q", key.Identity)
			}
			if tc.want && !topics.Meets(change.Topics) {
				t.Error("none of the class's topics was touched")
			}
			if after, _ := state.Apply(nil, nil, []*configv1.ResourceKey{tc.rule.GetKey()}); after.SelectsCredential("shop", web, "") {
				t.Error("a removed rule still selects")
			}
		})
	}
}

// A proxyless gRPC server shares its class with those that have its labels: address and targets are not part of it.
func TestProxyless(t *testing.T) {
	server := func(name, address string) *class.Node {
		n, err := class.ParseNode(&core.Node{
			Id:       "sidecar~" + address + "~" + name + ".shop~shop.svc.cluster.local",
			Metadata: metadata(t, map[string]any{"GENERATOR": "grpc", "INTERCEPTION_MODE": "TPROXY", class.OnDemandMetadata: "true"}),
		})
		if err != nil {
			t.Fatal(err)
		}
		n.VirtualHosts = true
		return n
	}
	host := "web.shop.svc.cluster.local"
	workload := func(name, address string, mode configv1.TlsMode) *configv1.Resource {
		return meshtest.Workload("shop", name, address, func(w *configv1.Workload) {
			w.TlsMode = mode
			w.Targets = []*configv1.ServiceTarget{{Hostname: host, Port: 80, TargetPort: 8080, Namespace: "shop"}}
		})
	}
	state := meshtest.State(t, meshtest.Service("shop", host, 80),
		workload("a", "10.0.0.1", configv1.TlsMode_TLS_MODE_DISABLED), workload("b", "10.0.0.2", configv1.TlsMode_TLS_MODE_ISTIO))
	key, _ := server("a", "10.0.0.1").Key(state)
	want := &class.Key{
		Type: class.Proxyless, Namespace: "shop", Interception: class.None, TrustDomain: "cluster.local",
		DNSDomain: "shop.svc.cluster.local", Labels: map[string]string{},
	}
	if d := cmp.Diff(want, key); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	other, _ := server("b", "10.0.0.2").Key(state)
	want.OffersMTLS = true
	if d := cmp.Diff(want, other); d != "" {
		t.Errorf("with mTLS offered (-want +got):\n%s", d)
	}
}

func TestAuthorize(t *testing.T) {
	for name, tc := range map[string]struct {
		id, claims string
		ok         bool
	}{
		"own":               {"spiffe://cluster.local/ns/shop/sa/web", "", true},
		"own, claimed":      {"spiffe://cluster.local/ns/shop/sa/web", "web", true},
		"another account":   {"spiffe://cluster.local/ns/shop/sa/web", "admin", false},
		"another namespace": {"spiffe://cluster.local/ns/other/sa/web", "", false},
		"no workload":       {"spiffe://cluster.local/spire/agent", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := class.ParseNode(&core.Node{Id: "sidecar~10.0.0.1~a.shop~x",
				Metadata: metadata(t, map[string]any{"SERVICE_ACCOUNT": tc.claims})})
			if err != nil {
				t.Fatal(err)
			}
			err = n.Authorize(spiffeid.RequireFromString(tc.id))
			if tc.ok && (err != nil || n.ServiceAccount != "web") || !tc.ok && !errors.Is(err, class.ErrForeign) {
				t.Errorf("got %v, account %q", err, n.ServiceAccount)
			}
		})
	}
}

// TestAddressesOfBoundListeners: the addresses are part of the class only if the workload's Sidecar binds listeners
// although traffic is redirected.
func TestAddressesOfBoundListeners(t *testing.T) {
	bound := func(bind string) *networking.IstioEgressListener {
		return &networking.IstioEgressListener{
			Port: &networking.SidecarPort{Number: 80, Protocol: "HTTP", Name: "http"}, Bind: bind, CaptureMode: networking.CaptureMode_NONE,
			Hosts: []string{"*/*"},
		}
	}
	none := &networking.IstioIngressListener{Port: &networking.SidecarPort{Number: 80, Protocol: "HTTP", Name: "http"},
		CaptureMode: networking.CaptureMode_NONE}
	for name, c := range map[string]struct {
		own, inherited *networking.Sidecar
		want           bool
	}{
		"none": {},
		"captured": {own: &networking.Sidecar{Ingress: []*networking.IstioIngressListener{{}},
			Egress: []*networking.IstioEgressListener{{Bind: "0.0.0.0"}}}},
		"ingress":          {own: &networking.Sidecar{Ingress: []*networking.IstioIngressListener{none}}, want: true},
		"egress":           {own: &networking.Sidecar{Egress: []*networking.IstioEgressListener{bound("0.0.0.0")}}, want: true},
		"egress elsewhere": {own: &networking.Sidecar{Egress: []*networking.IstioEgressListener{bound("127.0.0.1"), bound("")}}},
		"inherited": {
			own: &networking.Sidecar{}, inherited: &networking.Sidecar{Egress: []*networking.IstioEgressListener{bound("0.0.0.0")}}, want: true,
		},
		"overridden": {
			own: &networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{"*/*"}}}},
			inherited: &networking.Sidecar{Egress: []*networking.IstioEgressListener{bound("0.0.0.0")},
				Ingress: []*networking.IstioIngressListener{none}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var resources []*configv1.Resource
			if c.own != nil {
				c.own.WorkloadSelector = &networking.WorkloadSelector{Labels: map[string]string{"app": "web"}}
				resources = append(resources, meshtest.Config(mesh.KindSidecar, "shop", "own", c.own))
			}
			if c.inherited != nil {
				resources = append(resources, meshtest.Config(mesh.KindSidecar, "istio-system", "mesh", c.inherited))
			}
			n := &class.Node{Namespace: "shop", Name: "web"}
			resources = append(resources, meshtest.Workload("shop", "web", "10.0.0.1"))
			key, _ := n.Key(meshtest.State(t, resources...))
			if got := len(key.Addresses) > 0; got != c.want {
				t.Errorf("addresses %v", key.Addresses)
			}
		})
	}
}
