package input_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// TestSpeaks: only services that the class may address count, not those that another of their name hides.
func TestSpeaks(t *testing.T) {
	const http, tls, tcp = configv1.Protocol_PROTOCOL_HTTP, configv1.Protocol_PROTOCOL_TLS, configv1.Protocol_PROTOCOL_TCP
	speaking := func(p configv1.Protocol, addresses ...string) func(*configv1.Service) {
		return func(s *configv1.Service) { s.Ports[0].Protocol, s.Addresses = p, addresses }
	}
	young := func(s *configv1.Service) { s.CreationTime = timestamppb.New(meshtest.Epoch.Add(time.Hour)) }
	r := client(t,
		meshtest.Service("a", "web", 80, speaking(http, "10.0.0.1")),
		meshtest.Service("a", "twice", 81, speaking(http)),
		meshtest.Service("b", "twice", 82, speaking(http), young),
		meshtest.Service("a", "private", 83, speaking(http), meshtest.Visible("a")),
		meshtest.Service("a", "tls", 443, speaking(tls)),
		meshtest.Service("a", "placed", 444, speaking(tls, "10.0.0.2")),
		meshtest.Service("a", "tcp", 443, speaking(tcp)),
	)
	for _, tc := range []struct {
		port                          uint32
		protocols                     []configv1.Protocol
		somewhere, unplaced, narrowed bool
	}{
		{80, []configv1.Protocol{http}, true, false, false},
		{80, []configv1.Protocol{tls, tcp}, false, false, false},
		{81, []configv1.Protocol{tls, http}, true, true, false},
		{82, []configv1.Protocol{http}, false, false, false},
		{83, []configv1.Protocol{http}, false, false, false},
		{443, []configv1.Protocol{tls}, true, true, true},
		{444, []configv1.Protocol{tls}, true, false, false},
	} {
		if got := r.Speaks(nil, tc.port, tc.protocols...); got != tc.somewhere {
			t.Errorf("%v on %d: %v", tc.protocols, tc.port, got)
		}
		if got := r.SpeaksUnplaced(nil, tc.port, tc.protocols...); got != tc.unplaced {
			t.Errorf("%v on %d without an address: %v", tc.protocols, tc.port, got)
		}
		if got := r.Speaks(&networking.IstioEgressListener{Hosts: []string{"a/tls"}}, tc.port, tc.protocols...); got != tc.narrowed {
			t.Errorf("%v on %d through an egress listener: %v", tc.protocols, tc.port, got)
		}
	}
	if got := r.ServicesAt(443, "", tls); len(got) != 1 || got[0].GetHostname() != "tls" {
		t.Errorf("TLS without an address: %v", got)
	}
	if got := r.ServicesAt(443, ""); len(got) != 2 {
		t.Errorf("everything without an address: %v", got)
	}
}

func TestOpaqueRoutes(t *testing.T) {
	route := func(name string, change func(*networking.VirtualService)) *configv1.Resource {
		vs := &networking.VirtualService{Hosts: []string{name}}
		change(vs)
		return meshtest.Config(mesh.KindVirtualService, "client", name, vs)
	}
	r := client(t,
		route("http", func(vs *networking.VirtualService) { vs.Http = []*networking.HTTPRoute{{}} }),
		route("tcp", func(vs *networking.VirtualService) { vs.Tcp = []*networking.TCPRoute{{}} }),
		route("tls", func(vs *networking.VirtualService) { vs.Tls = []*networking.TLSRoute{{}} }),
		route("gateway", func(vs *networking.VirtualService) {
			vs.Tcp, vs.Gateways = []*networking.TCPRoute{{}}, []string{"client/gw"}
		}),
	)
	var got string
	for _, vs := range r.OpaqueRoutes() {
		got += vs.Key.Name + " "
	}
	if got != "tcp tls " {
		t.Errorf("got %q", got)
	}
}
