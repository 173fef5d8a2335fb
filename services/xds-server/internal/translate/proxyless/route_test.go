package proxyless

import (
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
)

// routeConfig is the name of the route configuration that a client's listener requests.
func routeConfig(t *testing.T, l *listenerv3.Listener) string {
	t.Helper()
	manager := &managerv3.HttpConnectionManager{}
	if err := l.GetApiListener().GetApiListener().UnmarshalTo(manager); err != nil {
		t.Fatal(err)
	}
	return manager.GetRds().GetRouteConfigName()
}

func exact(value string) *networking.StringMatch {
	return &networking.StringMatch{MatchType: &networking.StringMatch_Exact{Exact: value}}
}

// built returns the routes of reviews, whose VirtualService has these HTTP routes.
func built(t *testing.T, in ...*networking.HTTPRoute) []*routev3.Route {
	t.Helper()
	r := grpcClient(t, meshtest.Service("shop", reviews, 9080, grpcPort), virtualService(reviews, in...))
	out, err := routes(r, "outbound|9080||"+reviews)
	valid(t, out, err)
	if hosts := out.GetVirtualHosts(); len(hosts) != 1 || len(hosts[0].GetDomains()) != 1 || hosts[0].GetDomains()[0] != "*" {
		t.Fatalf("virtual hosts %v", hosts)
	}
	return out.GetVirtualHosts()[0].GetRoutes()
}

// Matches that no gRPC request can have are left out; "not this value" also matches without a value.
func TestRouteMatches(t *testing.T) {
	match := func(m *networking.HTTPMatchRequest) *networking.HTTPRoute {
		return &networking.HTTPRoute{Match: []*networking.HTTPMatchRequest{m}, Route: toReviews()}
	}
	for name, tc := range map[string]struct {
		match *networking.HTTPMatchRequest
		// want has the headers of each route match; nil if there is none.
		want [][]string
	}{
		"path":           {&networking.HTTPMatchRequest{Uri: exact("/a.B/C")}, [][]string{{}}},
		"header":         {&networking.HTTPMatchRequest{Headers: map[string]*networking.StringMatch{"x": exact("1")}}, [][]string{{"x"}}},
		"query":          {&networking.HTTPMatchRequest{QueryParams: map[string]*networking.StringMatch{"q": exact("1")}}, nil},
		"method of gRPC": {&networking.HTTPMatchRequest{Method: exact("POST")}, [][]string{{}}},
		"another method": {&networking.HTTPMatchRequest{Method: exact("GET")}, nil},
		"without a value": {&networking.HTTPMatchRequest{WithoutHeaders: map[string]*networking.StringMatch{"x": exact("1")}},
			[][]string{{"x"}, {"!x"}}},
		"without a header": {&networking.HTTPMatchRequest{WithoutHeaders: map[string]*networking.StringMatch{"x": {}}}, [][]string{{"!x"}}},
		"without two values": {&networking.HTTPMatchRequest{WithoutHeaders: map[string]*networking.StringMatch{"x": exact("1"), "y": exact("1")}},
			[][]string{{"x", "y"}, {"!x", "y"}, {"x", "!y"}, {"!x", "!y"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := built(t, match(tc.match), &networking.HTTPRoute{Name: "rest", Route: toReviews()})
			if len(got) != len(tc.want)+1 || got[len(got)-1].GetName() != "rest" {
				t.Fatalf("%d routes, want %d and the rest: %v", len(got), len(tc.want), got)
			}
			for i, want := range tc.want {
				headers := got[i].GetMatch().GetHeaders()
				if len(headers) != len(want) {
					t.Fatalf("alternative %d looks at %v, want %q", i, headers, want)
				}
				for j, h := range headers {
					name := h.GetName()
					if h.GetInvertMatch() && h.GetPresentMatch() {
						name = "!" + name
					}
					if name != want[j] || h.GetTreatMissingHeaderAsEmpty() {
						t.Errorf("alternative %d looks at %v, want %q", i, headers, want)
					}
				}
			}
		})
	}
}

func TestRouteActions(t *testing.T) {
	got := built(t, &networking.HTTPRoute{
		Match: []*networking.HTTPMatchRequest{{Uri: exact("/limited")}}, Timeout: durationpb.New(3 * time.Second),
		Rewrite: &networking.HTTPRewrite{Authority: "x"},
		Retries: &networking.HTTPRetry{Attempts: 4, RetryOn: "unavailable"}, CorsPolicy: &networking.CorsPolicy{},
		Mirror: toReviews()[0].GetDestination(),
		Route: []*networking.HTTPRouteDestination{{Destination: toReviews()[0].GetDestination(), Weight: 90},
			{Destination: toReviews()[0].GetDestination(), Weight: 10}},
	}, &networking.HTTPRoute{
		Match: []*networking.HTTPMatchRequest{{Uri: exact("/faulty")}}, Route: toReviews(),
		Fault: &networking.HTTPFaultInjection{Abort: &networking.HTTPFaultInjection_Abort{
			ErrorType: &networking.HTTPFaultInjection_Abort_GrpcStatus{GrpcStatus: "NOT_FOUND"}, Percentage: &networking.Percent{Value: 50},
		}},
	}, &networking.HTTPRoute{DirectResponse: &networking.HTTPDirectResponse{Status: 403}})
	if len(got) != 3 {
		t.Fatalf("routes %v", got)
	}
	limited := got[0].GetRoute()
	if limited.GetMaxStreamDuration().GetMaxStreamDuration().AsDuration() != 3*time.Second ||
		limited.GetRetryPolicy().GetNumRetries().GetValue() != 4 ||
		len(limited.GetWeightedClusters().GetClusters()) != 2 {
		t.Errorf("got %v", limited)
	}
	if limited.GetHostRewriteSpecifier() != nil || len(limited.GetRequestMirrorPolicies()) > 0 || len(got[0].GetTypedPerFilterConfig()) > 0 {
		t.Errorf("has what gRPC does not do: %v", got[0])
	}
	for i, want := range map[int]uint32{1: 5, 2: 403} {
		fault := &faultv3.HTTPFault{}
		if err := got[i].GetTypedPerFilterConfig()[hcm.FaultFilter].UnmarshalTo(fault); err != nil {
			t.Fatal(err)
		}
		if status := fault.GetAbort().GetGrpcStatus() + fault.GetAbort().GetHttpStatus(); status != want || fault.ValidateAll() != nil {
			t.Errorf("route %d aborts with %v", i, fault)
		}
		if got[i].GetRoute().GetCluster() != "outbound|9080||"+reviews {
			t.Errorf("route %d goes to %v: gRPC knows no other action", i, got[i].GetAction())
		}
	}
}

func TestSourceIPHashBecomesChannelID(t *testing.T) {
	rule := meshtest.Config(mesh.KindDestinationRule, "shop", "r", &networking.DestinationRule{
		Host: reviews, TrafficPolicy: &networking.TrafficPolicy{LoadBalancer: hash(&networking.LoadBalancerSettings_ConsistentHashLB{
			HashKey: &networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp{UseSourceIp: true},
		})},
	})
	out, err := routes(grpcClient(t, meshtest.Service("shop", reviews, 9080, grpcPort), rule), "outbound|9080||"+reviews)
	valid(t, out, err)
	if key := out.GetVirtualHosts()[0].GetRoutes()[0].GetRoute().GetHashPolicy()[0].GetFilterState().GetKey(); key != channelID {
		t.Errorf("hashes %q", key)
	}
}

// There is a server listener for every address; PeerAuthentication decides its TLS.
func TestServerListeners(t *testing.T) {
	strict := meshtest.PeerAuthentication("shop", "pa", "STRICT")
	disable := meshtest.PeerAuthentication("shop", "pa", "DISABLE")
	for name, tc := range map[string]struct {
		address string
		offers  bool
		policy  []*configv1.Resource
		want    string
	}{
		"no policy":             {"10.0.0.1:7070", false, nil, "plaintext"},
		"no policy, mTLS said":  {"10.0.0.1:7070", true, nil, "mtls"},
		"disabled, mTLS said":   {"10.0.0.1:7070", true, []*configv1.Resource{disable}, "plaintext"},
		"strict":                {"10.0.0.1:7070", false, []*configv1.Resource{strict}, "mtls"},
		"all addresses":         {"0.0.0.0:7070", false, []*configv1.Resource{strict}, "mtls"},
		"all addresses of IPv6": {"[::]:7070", false, []*configv1.Resource{strict}, "mtls"},
		"no port":               {"0.0.0.0", false, nil, ""},
		"port 0":                {"0.0.0.0:0", false, nil, ""},
		"a name":                {"localhost:7070", false, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := listener(grpcClientWithKey(t, &class.Key{OffersMTLS: tc.offers}, tc.policy...), inboundPrefix+tc.address)
			if tc.want == "" {
				if out != nil || err != nil {
					t.Errorf("got %v, %v", out, err)
				}
				return
			}
			valid(t, out, err)
			chain := out.GetFilterChains()[0]
			if chain.GetName() != tc.want || len(out.GetFilterChains()) != 1 || len(out.GetListenerFilters()) > 0 {
				t.Errorf("got %v", out)
			}
			if chain.GetTransportSocket() == nil {
				return
			}
			tls := &tlsv3.DownstreamTlsContext{}
			if err := chain.GetTransportSocket().GetTypedConfig().UnmarshalTo(tls); err != nil {
				t.Fatal(err)
			}
			if common := valid(t, tls, nil).GetCommonTlsContext(); !tls.GetRequireClientCertificate().GetValue() ||
				common.GetTlsCertificateProviderInstance().GetInstanceName() != provider ||
				common.GetValidationContext().GetCaCertificateProviderInstance().GetInstanceName() != provider || common.GetTlsParams() != nil {
				t.Errorf("got %v", tls)
			}
		})
	}
}
