package listener

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/serviceaddress"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

var (
	meshPorts     = []uint32{80, 443, 3306, 8080}
	meshAddresses = []string{"240.240.0.1", "2001:2::1", "10.0.0.1", "10.0.0.2", "10.1.0.1", "10.1.0.2", "fd00::1"}
)

// drawMesh draws a few services whose names, addresses and ports collide, and objects about some of them.
func drawMesh(t *rapid.T) (*class.Key, *mesh.Snapshot) {
	namespace := rapid.SampledFrom([]string{"a", "b"})
	host := rapid.SampledFrom([]string{"one.a.svc", "two.a.svc", "three.b.svc", "www.example.com", "*.example.com"})
	port := rapid.SampledFrom(meshPorts)
	var resources []*configv1.Resource
	for i := range rapid.IntRange(0, 6).Draw(t, "services") {
		own := namespace.Draw(t, "namespace")
		svc := meshtest.Service(own, host.Draw(t, "host"), 0, func(s *configv1.Service) {
			s.Ports = nil
			for range rapid.IntRange(1, 3).Draw(t, "ports") {
				s.Ports = append(s.Ports, &configv1.ServicePort{
					Number: port.Draw(t, "port"), Protocol: configv1.Protocol(rapid.IntRange(0, 12).Draw(t, "protocol")),
				})
			}
			s.Addresses = rapid.SliceOfN(rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "0.0.0.0", "10.0.0.0/8", "fd00:0::1", "10.0.0.2/32"}),
				0, 2).Draw(t, "addresses")
			s.AutoAddresses = rapid.SampledFrom([][]string{nil, {"240.240.0.1", "2001:2::1"}}).Draw(t, "allocated")
			s.Headless = rapid.Bool().Draw(t, "headless")
			s.ExportedTo = rapid.SampledFrom([][]string{{"*"}, {"*"}, {"a"}, {"b"}, {"a", "b"}}).Draw(t, "exported to")
			s.CreationTime = timestamppb.New(meshtest.Epoch.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "age")) * time.Hour))
		})
		resources = append(resources, svc)
		pods := rapid.SliceOfN(rapid.SampledFrom([]string{"10.1.0.1", "10.1.0.2", "not-an-address"}), 0, 3).Draw(t, "pods")
		s := svc.GetService()
		resources = append(resources, meshtest.Endpoints(own, s.GetHostname(), s.GetPorts()[0].GetNumber(), pods...))
		if rapid.Bool().Draw(t, "routes") {
			to := []*networking.RouteDestination{{Destination: &networking.Destination{Host: host.Draw(t, "to")}}}
			vs := &networking.VirtualService{Hosts: []string{host.Draw(t, "of")}}
			if rapid.Bool().Draw(t, "tcp") {
				vs.Tcp = []*networking.TCPRoute{{Route: to}}
			} else {
				vs.Tls = []*networking.TLSRoute{{Route: to, Match: []*networking.TLSMatchAttributes{{SniHosts: vs.GetHosts()}}}}
			}
			resources = append(resources, meshtest.Config(mesh.KindVirtualService, own, fmt.Sprint("vs-", i), vs))
		}
		if rapid.IntRange(0, 3).Draw(t, "rule") == 0 {
			rule := &networking.DestinationRule{Host: host.Draw(t, "rule's host"), TrafficPolicy: &networking.TrafficPolicy{
				ConnectionPool: &networking.ConnectionPoolSettings{Tcp: &networking.ConnectionPoolSettings_TCPSettings{
					IdleTimeout: durationpb.New(time.Minute),
				}},
			}}
			resources = append(resources, meshtest.Config(mesh.KindDestinationRule, own, fmt.Sprint("dr-", i), rule))
		}
	}
	if rapid.Bool().Draw(t, "sidecar") {
		spec := &networking.Sidecar{}
		for range rapid.IntRange(0, 3).Draw(t, "egress") {
			l := &networking.IstioEgressListener{
				Hosts: rapid.SliceOfN(rapid.SampledFrom([]string{"*/*", "./*", "a/*", "b/www.example.com", "*/*.example.com", "~/*"}), 0, 2).Draw(t,
					"hosts"),
			}
			if rapid.Bool().Draw(t, "explicit") {
				l.Port = &networking.SidecarPort{Number: port.Draw(t, "port"), Protocol: rapid.SampledFrom([]string{"HTTP", "TCP"}).Draw(t, "speaks")}
			}
			spec.Egress = append(spec.Egress, l)
		}
		resources = append(resources, meshtest.Config(mesh.KindSidecar, "a", "s", spec))
	}
	if rapid.Bool().Draw(t, "proxy port") {
		resources = append(resources, meshtest.Mesh(&meshv1alpha1.MeshConfig{ProxyHttpPort: 8080}))
	}
	// Later resources of one key replace earlier ones.
	byKey := map[string]*configv1.Resource{}
	for _, r := range resources {
		byKey[r.GetKey().String()] = r
	}
	resources = nil
	for _, k := range slices.Sorted(maps.Keys(byKey)) {
		resources = append(resources, byKey[k])
	}
	state, err := mesh.FromResources(resources)
	if err != nil {
		t.Fatal(err)
	}
	key := &class.Key{
		Type: class.Sidecar, Namespace: "a", TrustDomain: "cluster.local", DNSDomain: "a.svc.cluster.local",
		DNSCapture:   rapid.Bool().Draw(t, "DNS capture"),
		Interception: rapid.SampledFrom([]class.Interception{class.Redirect, class.TProxy, class.None}).Draw(t, "interception"),
		Targets: rapid.SampledFrom(
			[][]class.Target{nil, {{Hostname: "web.a.svc.cluster.local", Namespace: "a", Port: 80, TargetPort: 8080}}}).Draw(t, "targets"),
	}
	return key.WithSidecar(state, nil), state
}

// walkAllServices computes the same as package serviceaddress in a simple way: it goes through all services.
func walkAllServices(r *input.Reader) map[string]*addressChains {
	out := map[string]*addressChains{}
	at := func(address string, port uint32) *addressChains {
		name := resourcename.Listener(address, port)
		if out[name] == nil {
			out[name] = &addressChains{EndpointAddress: serviceaddress.EndpointAddress{Address: address, Port: port}}
		}
		return out[name]
	}
	oldest := func(s *addressChains, m servicePort) {
		if s.TCP == nil || m.Service.GetCreationTime().AsTime().Before(s.TCP.Service.GetCreationTime().AsTime()) {
			s.TCP = &m
		}
	}
	for _, m := range servicePorts(r) {
		number, p := m.Port.GetNumber(), m.Port.GetProtocol()
		switch {
		case r.Class().Interception == class.None:
			taken := slices.ContainsFunc(r.Targets(), func(t class.Target) bool { return t.TargetPort == number })
			if protocol.MayBeHTTP(p) && number >= 1024 && !taken {
				at("127.0.0.1", number).bound = true
			}
		case contract.IsHTTP(p):
			at("0.0.0.0", number).HTTP = true
		default:
			for _, address := range addressesOf(r, m) {
				s := at(address, number)
				switch {
				case address == "0.0.0.0" && hasCIDR(m):
					s.HTTP = s.HTTP || protocol.IsSniffed(p)
					s.CIDRs = append(s.CIDRs, m)
				case protocol.IsSniffed(p) && address != "0.0.0.0":
					s.Sniffed = &m
				case protocol.IsSniffed(p):
					s.HTTP = true
					oldest(s, m)
				case contract.IsTLS(p) && address == "0.0.0.0":
					s.TLS = append(s.TLS, m)
				default:
					oldest(s, m)
				}
			}
		}
	}
	return out
}

// servicePorts lists the service ports that listeners of addresses may serve, by hostname.
func servicePorts(r *input.Reader) []servicePort {
	egress, ok := sidecarscope.ImplicitEgress(r)
	if !ok {
		return nil
	}
	var out []servicePort
	for _, svc := range r.Services() {
		for _, port := range svc.GetPorts() {
			if port.GetProtocol() != configv1.Protocol_PROTOCOL_UDP && (egress == nil || r.Admits(egress, svc)) {
				out = append(out, servicePort{Service: svc, Port: port})
			}
		}
	}
	return out
}

// addressesOf lists the addresses of a service port that is not declared to be HTTP.
func addressesOf(r *input.Reader, m servicePort) []string {
	out := map[string]bool{}
	add := func(address string) {
		if ip, err := netip.ParseAddr(address); err == nil && !ip.IsUnspecified() {
			out[ip.String()] = true
		}
	}
	for _, address := range m.Service.GetAddresses() {
		add(strings.TrimSuffix(address, "/32"))
	}
	if len(m.Service.GetAddresses()) == 0 && r.Class().DNSCapture && len(m.Service.GetAutoAddresses()) > 0 {
		add("240.240.0.1")
	} else if hasCIDR(m) {
		out["0.0.0.0"] = true
	} else if len(out) == 0 && m.Service.GetHeadless() && !contract.IsTLS(m.Port.GetProtocol()) {
		for _, set := range r.Endpoints(m.Service, m.Port.GetNumber()) {
			for _, e := range set.GetEndpoints() {
				add(e.GetAddress())
			}
		}
	} else if len(out) == 0 {
		add("0.0.0.0")
		out["0.0.0.0"] = true
	}
	return slices.Sorted(maps.Keys(out))
}

func hasCIDR(m servicePort) bool {
	return !m.Service.GetHeadless() && slices.Contains(m.Service.GetAddresses(), "10.0.0.0/8")
}

// listed returns Names and the HostNames of all services.
func listed(t *rapid.T, r *input.Reader, state *mesh.Snapshot) map[string]bool {
	all, err := Translator{}.Names(r)
	if err != nil {
		t.Fatal(err)
	}
	state.Hosts("mesh", func(host string) {
		found, err := Translator{}.HostNames(r, host)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	})
	out := map[string]bool{}
	for _, name := range all {
		out[name] = true
	}
	return out
}

func possible() []string {
	out := []string{resourcename.VirtualInbound, resourcename.VirtualOutbound}
	for _, port := range append(meshPorts, 1) {
		for _, address := range append(meshAddresses, "0.0.0.0", "127.0.0.1", "fd00:0::1") {
			out = append(out, resourcename.Listener(address, port))
		}
	}
	return out
}

func built(t *rapid.T, r *input.Reader, name string) *listenerv3.Listener {
	m, err := Translator{}.Build(r, name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if m == nil {
		return nil
	}
	if err := m.(*listenerv3.Listener).ValidateAll(); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return m.(*listenerv3.Listener)
}

// Every listed listener can be built, and building from one address gives the same as going through all services.
func TestListedListenersCanBeBuilt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, state := drawMesh(t)
		r := input.NewView(key, state).Reader()
		promised, plain := listed(t, r, state), walkAllServices(r)
		own, err := Translator{}.Names(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range possible() {
			got := built(t, input.NewView(key, state).Reader(), name)
			if (got != nil) != promised[name] {
				t.Errorf("%s: listed %v, built %v", name, promised[name], got != nil)
			}
			if slices.Contains(own, name) {
				continue
			}
			var want *listenerv3.Listener
			if s := plain[name]; s != nil {
				if want, err = outbound(r, s); err != nil {
					t.Fatal(err)
				}
			}
			if !proto.Equal(got, want) {
				t.Errorf("%s:\n%v\nwant\n%v", name, got, want)
			}
		}
	})
}

func TestOnDemandListenersExistOnlyWhereNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, state := drawMesh(t)
		key.VirtualHosts, key.OnDemand = true, true
		r := input.NewView(key, state).Reader()
		want := map[string]bool{}
		own, err := Translator{}.Names(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range own {
			want[name] = true
		}
		plain := walkAllServices(r)
		// ports have a listener at the wildcard address.
		ports := map[uint32]bool{}
		for _, m := range servicePorts(r) {
			number := m.Port.GetNumber()
			if protocol.MayBeHTTP(m.Port.GetProtocol()) || contract.IsTLS(m.Port.GetProtocol()) && slices.Contains(addressesOf(r, m), "0.0.0.0") &&
				!hasCIDR(m) {
				ports[number] = true
			}
			if s := plain[resourcename.Listener("0.0.0.0", number)]; s != nil &&
				(s.TCP != nil && hasListenerPolicy(r, *s.TCP) ||
					slices.ContainsFunc(s.CIDRs, func(m servicePort) bool { return hasListenerPolicy(r, m) })) {
				ports[number] = true
			}
		}
		for name, s := range plain {
			address, port, _ := resourcename.ParseListener(name)
			switch {
			case key.Interception == class.None:
				want[name] = true
			case address != "0.0.0.0":
				for _, m := range servicePorts(r) {
					p := m.Port.GetProtocol()
					if m.Port.GetNumber() != port || contract.IsHTTP(p) || !slices.Contains(addressesOf(r, m), address) {
						continue
					}
					serverMaySpeakFirst := !contract.IsTLS(p) && !protocol.IsSniffed(p)
					// Only the service port that receives the connections counts.
					if s.TCP != nil && *s.TCP == m || s.Sniffed != nil && *s.Sniffed == m {
						want[name] = want[name] || hasListenerPolicy(r, m) || serverMaySpeakFirst && ports[port]
					}
				}
			}
		}
		if key.Interception != class.None {
			for port := range ports {
				want[resourcename.Listener("0.0.0.0", port)] = true
			}
		}
		promised := listed(t, r, state)
		for _, name := range possible() {
			got := built(t, input.NewView(key, state).Reader(), name)
			if (got != nil) != want[name] || promised[name] != want[name] {
				t.Errorf("%s: listed %v, built %v, want %v", name, promised[name], got != nil, want[name])
			}
			if got != nil && strings.HasPrefix(name, "0.0.0.0_") && !want[name] {
				t.Errorf("%s: %v", name, got)
			}
		}
	})
}
