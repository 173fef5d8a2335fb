package translate_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/testkit/protorand"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate"
)

// For a mesh of many objects, with any fields that config-watcher accepts, no translator panics or fails, every listed
// resource is built, and what is built is valid.
func FuzzObjects(f *testing.F) {
	for seed := range 150 {
		f.Add(fmt.Append(nil, seed))
	}
	f.Fuzz(buildObjects)
}

func buildObjects(t *testing.T, raw []byte) {
	w := drawObjects(t, protorand.Bytes(raw))
	r := w.reader()
	for _, translator := range translate.All() {
		names, err := plan.List(translator, w.key, w.state)
		if err != nil {
			t.Errorf("%T: %v", translator, err)
			continue
		}
		promised := len(names)
		for i, name := range slices.Concat(names, asked, askedOfGatewayAPI) {
			m, err := translator.Build(r, name)
			switch {
			case errors.Is(err, plan.ErrPending): // a credential that nobody has asked for
			case err != nil && m != nil && strings.Contains(err.Error(), "takes no datagrams"): // policies close UDP
			case err != nil:
				t.Errorf("%s %s %q: %v", w.key.Type, kindOf(translator), name, err)
			case m == nil && i < promised:
				t.Errorf("%s %s %q: promised, not built", w.key.Type, kindOf(translator), name)
			case m != nil:
				for _, problem := range faults(name, m) {
					t.Errorf("%s %s %q: %s", w.key.Type, kindOf(translator), name, problem)
				}
			}
		}
	}
}

// The real Envoy accepts what is built from such meshes, for proxies that are Envoys.
func TestEnvoyAcceptsRandomObjects(t *testing.T) {
	const meshes = 8
	for seed, tried := 0, 0; tried < meshes; seed++ {
		w := drawObjects(t, protorand.Bytes(fmt.Append(nil, "envoy", seed)))
		if w.key.Type == class.Proxyless {
			continue
		}
		tried++
		t.Run(strconv.Itoa(seed), func(t *testing.T) { validate(t, bootstrap(t, accepted(w))) })
	}
}

// asked are names that proxies request although no resource names them.
var asked = []string{
	"80", "8080", "http.80", "http.8080", "80/a.x.svc.cluster.local", "8080/nowhere.example.com", "80/shared.example.com:80",
	"outbound|80||a.x.svc.cluster.local",
	"outbound|80|v1|b.x.svc.cluster.local", "outbound_.80_._.c.y.svc.cluster.local", "ondemand|tcp|10.96.0.1|80",
	"ondemand|tcp|10.96.0.3|443|www.wild.example.com", "inbound|80||",
	"kubernetes://cred", "default", "ROOTCA", "", "|||", "https.443.a.n1.x",
}

func kindOf(translator plan.Translator) string {
	return translator.TypeURL()[strings.LastIndexByte(translator.TypeURL(), '.')+1:]
}

// objectDrawer draws resources of the normalised model.
type objectDrawer struct {
	from protorand.Source
	t    testing.TB
}

var (
	objectNamespaces = []string{"x", "y", "istio-system"}
	objectKinds      = []struct {
		name string
		spec func() proto.Message
	}{
		{mesh.KindVirtualService, func() proto.Message { return &networking.VirtualService{} }},
		{mesh.KindDestinationRule, func() proto.Message { return &networking.DestinationRule{} }},
		{mesh.KindGateway, func() proto.Message { return &networking.Gateway{} }},
		{mesh.KindSidecar, func() proto.Message { return &networking.Sidecar{} }},
		{mesh.KindPeerAuthentication, func() proto.Message { return &security.PeerAuthentication{} }},
		{mesh.KindAuthorizationPolicy, func() proto.Message { return &security.AuthorizationPolicy{} }},
		{mesh.KindRequestAuthentication, func() proto.Message { return &security.RequestAuthentication{} }},
		{mesh.KindEnvoyFilter, func() proto.Message { return &networking.EnvoyFilter{} }},
	}
)

// policyFilters are those of a complete Envoy.
const policyFilters = class.FilterChains | class.RBAC | class.ExtAuthz | class.JWT

func pick[T any](d objectDrawer, list ...T) T { return list[d.from(len(list))] }

// drawObjects draws a mesh and a proxy of it.
func drawObjects(t testing.TB, from protorand.Source) fixture {
	d := objectDrawer{from, t}
	var resources []*configv1.Resource
	seen := map[string]bool{}
	add := func(r *configv1.Resource) {
		if !seen[r.GetKey().String()] {
			seen[r.GetKey().String()] = true
			resources = append(resources, r)
		}
	}
	if d.from(2) == 0 {
		settings := &meshv1alpha1.MeshConfig{}
		d.fill("MeshConfig", settings)
		if settings.RootNamespace == "" {
			settings.RootNamespace = "istio-system"
		}
		settings.ExtensionProviders = d.providers()
		add(meshtest.Mesh(settings))
	}
	for range 1 + from(8) {
		svc := d.service()
		add(svc)
		if s := svc.GetService(); s.GetExternalName() == "" {
			for _, p := range s.GetPorts() {
				add(d.endpoints(s, p))
			}
		}
	}
	for range 1 + from(10) {
		kind := pick(d, objectKinds...)
		spec := kind.spec()
		d.fill(kind.name, spec)
		ns := pick(d, objectNamespaces...)
		to := []string{"*"}
		if kind.name != mesh.KindGateway && ns != "istio-system" {
			to = pick(d, []string{"*"}, []string{ns})
		}
		add(meshtest.Config(kind.name, ns, pick(d, "n1", "n2", "n3"), spec, meshtest.ExportedTo(to...), meshtest.Aged(time.Duration(from(3)))))
	}
	for range from(10) {
		add(d.gatewayAPI())
	}
	add(meshtest.Workload("x", "d", "10.0.1.100", d.workload))
	state, err := mesh.FromResources(resources)
	if err != nil {
		t.Fatal(err)
	}
	node := &class.Node{
		Type: pick(d, class.Sidecar, class.Sidecar, class.Sidecar, class.Router, class.Router, class.Proxyless), Namespace: "x",
		Interception: pick(d, class.Redirect, class.Redirect, class.TProxy, class.None),
		Addresses:    pick(d, []string{"10.0.1.100"}, []string{"fd00::100"}, []string{"10.0.1.100", "fd00::100"}),
		Identity:     "spiffe://cluster.local/ns/x/sa/default", ServiceAccount: "default",
		DNSCapture: from(2) == 0, VirtualHosts: from(2) == 0, OnDemand: pick(d, "", "true"), Name: "d",
		Filters: pick(d, policyFilters, policyFilters, policyFilters&^class.FilterChains),
	}
	key, _ := node.Key(state)
	return fixture{key: key, state: state}
}

// providers draws the provider that AuthorizationPolicies ask: of either type, or none.
func (d objectDrawer) providers() []*meshv1alpha1.MeshConfig_ExtensionProvider {
	host, out := pick(d, protorand.NormalisedHosts[:4]...), &meshv1alpha1.MeshConfig_ExtensionProvider{Name: "opa"}
	switch d.from(3) {
	case 0:
		return nil
	case 1:
		out.Provider = &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExtAuthzHttp{
			EnvoyExtAuthzHttp: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider{
				Service: host, Port: 80, PathPrefix: pick(d, "", "/check"), StatusOnError: pick(d, "", "503"),
				HeadersToUpstreamOnAllow: pick(d, nil, []string{"x-a", "x-*", "*"}),
			},
		}
	case 2:
		out.Provider = &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{
			EnvoyExtAuthzGrpc: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider{
				Service: host, Port: 80, FailOpen: d.from(2) == 0,
			},
		}
	}
	return []*meshv1alpha1.MeshConfig_ExtensionProvider{out}
}

// fill draws a spec that validation accepts.
func (d objectDrawer) fill(kind string, spec proto.Message) {
	protorand.Normalised.FillSeeded(pick(d, protorand.Accepted(kind)...), spec)
}

func (d objectDrawer) workload(w *configv1.Workload) {
	w.Labels = pick(d, map[string]string{"app": "server", "istio": "ingressgateway"},
		map[string]string{"app": "client", "version": "v1", "istio": "ingressgateway"})
	w.Locality = &configv1.Locality{Region: pick(d, "", "region1"), Zone: pick(d, "", "zone1")}
	for i, host := range protorand.NormalisedHosts[:d.from(3)] {
		w.Targets = append(w.Targets, &configv1.ServiceTarget{Hostname: host, Namespace: pick(d, "x", "y"), Port: 80,
			TargetPort: pick(d, uint32(80), 8080, 8080+uint32(i))}) //nolint:gosec // small
	}
}

func (d objectDrawer) service() *configv1.Resource {
	host := pick(d, protorand.NormalisedHosts...)
	ns, kind := pick(d, objectNamespaces...), "ServiceEntry"
	if parts := strings.Split(host, "."); strings.HasSuffix(host, ".svc.cluster.local") {
		ns, kind = parts[1], pick(d, "Service", "Service", "ServiceEntry")
	}
	s := &configv1.Service{
		Hostname: host, Name: host, Namespace: ns, Source: &configv1.SourceRef{Kind: kind}, ExportedTo: pick(d, []string{"*"}, []string{ns}),
		CreationTime: timestamppb.New(meshtest.Epoch.Add(time.Duration(d.from(3)))), Resolution: configv1.Resolution_RESOLUTION_STATIC,
		SessionAffinityClientIp: d.from(6) == 0, PublishNotReadyAddresses: d.from(4) == 0, NodeLocal: d.from(8) == 0,
		TrafficDistribution: pick(d, "", "", "PreferClose", "PreferSameNode"), MeshExternal: d.from(4) == 0,
	}
	number := 1 + d.from(3)
	for i := range number {
		s.Ports = append(s.Ports, &configv1.ServicePort{
			Name: fmt.Sprint("p", i), Number: []uint32{80, 8080, 443, 3306, 9090}[(d.from(5)+i)%5], TargetPort: pick(d, uint32(80), 8080, 9090),
			Protocol: configv1.Protocol(d.from(len(configv1.Protocol_name))), //nolint:gosec // small
		})
		for _, p := range s.GetPorts()[:i] {
			if p.GetNumber() == s.GetPorts()[i].GetNumber() {
				s.Ports = s.GetPorts()[:i]
				break
			}
		}
		if len(s.GetPorts()) <= i {
			break
		}
	}
	if kind == "Service" {
		d.kubernetes(s)
	} else {
		s.Resolution = configv1.Resolution(1 + d.from(5)) //nolint:gosec // small
		s.Addresses = pick(d, nil, []string{"10.96.0.3"}, []string{"10.96.0.4", "10.97.0.0/24"}, []string{"fd01::3"})
		if len(s.Addresses) == 0 && d.from(2) == 0 {
			s.AutoAddresses = []string{"240.240.0.7", "2001:2::7"}
		}
		if strings.HasPrefix(host, "*") {
			s.Resolution = pick(d, configv1.Resolution_RESOLUTION_PASSTHROUGH, configv1.Resolution_RESOLUTION_DYNAMIC_DNS,
				configv1.Resolution_RESOLUTION_STATIC)
			s.AutoAddresses = nil
		}
		s.SubjectAltNames = pick(d, nil, []string{"spiffe://cluster.local/ns/x/sa/a"})
	}
	return meshtest.Resource(mesh.KindService, ns, host, &configv1.Resource{Body: &configv1.Resource_Service{Service: s}})
}

func (d objectDrawer) kubernetes(s *configv1.Service) {
	s.Selector = map[string]string{"app": "server"}
	switch d.from(6) {
	case 0:
		s.Headless, s.Resolution = true, configv1.Resolution_RESOLUTION_PASSTHROUGH
	case 1:
		s.ExternalName, s.Ports, s.Selector, s.MeshExternal = pick(d, protorand.NormalisedHosts[:4]...), nil, nil, true
		s.Resolution = configv1.Resolution_RESOLUTION_DNS
	default:
		s.Addresses = pick(d, []string{"10.96.0.1"}, []string{"10.96.0.2"}, []string{"10.96.0.1", "fd01::1"})
	}
}

func (d objectDrawer) endpoints(s *configv1.Service, p *configv1.ServicePort) *configv1.Resource {
	addresses := []string{"10.1.0.1", "10.1.0.2", "fd00::1", "10.0.1.100"}
	switch s.GetResolution() {
	case configv1.Resolution_RESOLUTION_DNS, configv1.Resolution_RESOLUTION_DNS_ROUND_ROBIN:
		addresses = []string{"www.example.org", "10.1.0.1", "api.example.org"}
	case configv1.Resolution_RESOLUTION_STATIC:
		if s.GetSource().GetKind() == "ServiceEntry" {
			addresses = append(addresses, "/tmp/socket", "@abstract")
		}
	}
	set := &configv1.EndpointSet{
		Hostname: s.GetHostname(), Port: p.GetNumber(), Cluster: "test",
		LabelSets: []*configv1.LabelSet{{}, {Labels: map[string]string{"version": "v1", "app": "server"}},
			{Labels: map[string]string{"version": "v2"}}},
		Localities: []*configv1.Locality{{}, {Region: "region1", Zone: "zone1"}, {Region: "region2"}},
	}
	for range d.from(4) {
		e := &configv1.Endpoint{
			Address: pick(d, addresses...), Port: p.GetTargetPort(), LabelSet: uint32(d.from(3)), Locality: uint32(d.from(3)),
			Network: pick(d, "", "net1"), //nolint:gosec // small
			Health:  configv1.Health(1 + d.from(3)), TlsMode: configv1.TlsMode(1 + d.from(2)),
			Identity: pick(d, "", "spiffe://cluster.local/ns/x/sa/a"), //nolint:gosec // small
			Weight:   pick(d, uint32(0), 1, 100), Workload: pick(d, "", "x/d"), Hostname: pick(d, "", "db-0"),
		}
		if e.GetAddress()[0] == '/' || e.GetAddress()[0] == '@' {
			e.Port = 0
		} else if e.GetAddress() == "10.1.0.1" && d.from(3) == 0 {
			e.AdditionalAddresses = []string{"fd00::7"}
		}
		set.Endpoints = append(set.Endpoints, e)
	}
	return meshtest.Resource(mesh.KindEndpointSet, s.GetNamespace(), fmt.Sprintf("%s:%d/test", s.GetHostname(), p.GetNumber()),
		&configv1.Resource{Body: &configv1.Resource_EndpointSet{EndpointSet: set}})
}
