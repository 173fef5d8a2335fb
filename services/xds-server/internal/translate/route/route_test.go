package route

import (
	"slices"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/matcher"
)

func TestRetryConditions(t *testing.T) {
	for _, tc := range []struct {
		list, conditions string
		codes            []uint32
	}{
		{"5xx,reset", "5xx,reset", nil},
		{"503", "retriable-status-codes", []uint32{503}},
		{" 503 , reset,,504", "reset,retriable-status-codes", []uint32{503, 504}},
		{"retriable-status-codes,503", "retriable-status-codes", []uint32{503}},
		{"+503,0504", "retriable-status-codes", []uint32{503, 504}},
	} {
		conditions, codes := retryConditions(tc.list)
		if conditions != tc.conditions || !slices.Equal(codes, tc.codes) {
			t.Errorf("%q: %q %v, want %q %v", tc.list, conditions, codes, tc.conditions, tc.codes)
		}
	}
}

// A domain occurs once in a route configuration, whatever its case, and no host loses its own domain to another's short
// name.
func FuzzAssignDomains(f *testing.F) {
	f.Add("a.b a", "A.b a")
	f.Add("x", "y x z")
	f.Fuzz(func(t *testing.T, first, second string) {
		var candidates []candidate
		for i, list := range []string{first, second} {
			words := strings.Fields(list)
			if len(words) == 0 {
				continue
			}
			candidates = append(candidates, candidate{host: virtualHost(string(rune('a' + i))), own: words[:1], others: words[1:]})
		}
		seen := map[string]bool{}
		for _, host := range assignDomains(candidates) {
			for _, domain := range host.GetDomains() {
				if key := strings.ToLower(domain); seen[key] {
					t.Errorf("%q occurs twice", domain)
				} else {
					seen[key] = true
				}
			}
		}
		for _, c := range candidates {
			if !seen[strings.ToLower(c.own[0])] {
				t.Errorf("%q is lost", c.own[0])
			}
		}
	})
}

// nothing is a reader without destinations.
type nothing struct{}

func (nothing) Namespace() string                            { return "" }
func (nothing) Labels() map[string]string                    { return nil }
func (nothing) FollowExternalName(string) *configv1.Service  { return nil }
func (nothing) DestinationRule(string) *mesh.DestinationRule { return nil }

func weighted(weight int32) *networking.HTTPRouteDestination {
	return &networking.HTTPRouteDestination{Destination: &networking.Destination{Host: "a"}, Weight: weight}
}

// A delay or abort without a type does nothing and leaves the other as it is.
func TestFaultWithoutTypeDoesNothing(t *testing.T) {
	all := &networking.Percent{Value: 100}
	in := &networking.HTTPFaultInjection{
		Delay: &networking.HTTPFaultInjection_Delay{Percentage: all},
		Abort: &networking.HTTPFaultInjection_Abort{Percentage: all, ErrorType: &networking.HTTPFaultInjection_Abort_HttpStatus{HttpStatus: 503}},
	}
	out, err := fault(in)
	if err != nil || out.GetDelay() != nil || out.GetAbort().GetHttpStatus() != 503 {
		t.Errorf("%v, %v", out, err)
	}
	in.Abort.ErrorType = nil
	if out, err = fault(in); err != nil || out.GetDelay() != nil || out.GetAbort() != nil {
		t.Errorf("%v, %v", out, err)
	}
}

func TestErrorsNameObjectAndField(t *testing.T) {
	route := []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "a"}}}
	regex := func(s string) *networking.StringMatch {
		return &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: s}}
	}
	for want, http := range map[string]*networking.HTTPRoute{
		`http[0].match[1].uri: regular expression "("`: {Match: []*networking.HTTPMatchRequest{{}, {Uri: regex("(")}}, Route: route},
		`http[0].match[0].headers["x"]:`: {
			Match: []*networking.HTTPMatchRequest{{Headers: map[string]*networking.StringMatch{"x": regex("(")}}}},
		`http[0].match[0].queryParams["q"]:`: {
			Match: []*networking.HTTPMatchRequest{{QueryParams: map[string]*networking.StringMatch{"q": regex("(")}}}},
		`http[0].headers.request.set["x"]: value "5%"`: {
			Headers: &networking.Headers{Request: &networking.Headers_HeaderOperations{Set: map[string]string{"x": "5%"}}}, Route: route},
		`http[0].headers.request.add["x"]: value "%FOO%"`: {
			Headers: &networking.Headers{Request: &networking.Headers_HeaderOperations{Add: map[string]string{"x": "%FOO%"}}}, Route: route},
		`http[0].timeout: -1s is out of range`: {Timeout: durationpb.New(-time.Second), Route: route},
		`http[0].timeout: 2562047h47m16`:       {Timeout: &durationpb.Duration{Seconds: 9223372036}, Route: route},
		`http[0].retries.perTryTimeout: -1s`: {Retries: &networking.HTTPRetry{Attempts: 1,
			PerTryTimeout: durationpb.New(-time.Second)}, Route: route},
		`http[0].route: the weights add up to 4294967296`: {Route: []*networking.HTTPRouteDestination{weighted(1 << 30), weighted(1 << 30),
			weighted(1 << 30), weighted(1 << 30)}},
		`http[0].directResponse.body: 1048577 bytes`: {DirectResponse: &networking.HTTPDirectResponse{Status: 200,
			Body: &networking.HTTPBody{Specifier: &networking.HTTPBody_String_{String_: strings.Repeat("a", 1<<20+1)}}}},
		`http[0].fault.delay.fixedDelay: 2562047h47m16`: {Route: route,
			Fault: &networking.HTTPFaultInjection{
				Delay: &networking.HTTPFaultInjection_Delay{
					HttpDelayType: &networking.HTTPFaultInjection_Delay_FixedDelay{FixedDelay: &durationpb.Duration{Seconds: 9223372036}}}}},
		`http[0].redirect.redirectCode: 200`: {Redirect: &networking.HTTPRedirect{RedirectCode: 200}},
		`http[0].rewrite.uriRegexRewrite.match: regular`: {
			Rewrite: &networking.HTTPRewrite{UriRegexRewrite: &networking.RegexRewrite{Match: "("}}, Route: route},
		`http[0].route: no destination has a weight`: {Route: append(route, route...)},
		`http[0].fault.abort.grpcStatus: "NOPE"`: {Route: route,
			Fault: &networking.HTTPFaultInjection{Abort: &networking.HTTPFaultInjection_Abort{
				ErrorType: &networking.HTTPFaultInjection_Abort_GrpcStatus{GrpcStatus: "NOPE"}}}},
		`http[0].fault: invalid HTTPFault.Abort`: {Route: route,
			Fault: &networking.HTTPFaultInjection{Abort: &networking.HTTPFaultInjection_Abort{
				ErrorType: &networking.HTTPFaultInjection_Abort_HttpStatus{HttpStatus: 42}}}},
		`http[0].corsPolicy.allowOrigins[0]: regular`: {Route: route,
			CorsPolicy: &networking.CorsPolicy{AllowOrigins: []*networking.StringMatch{regex("(")}}},
	} {
		t.Run(want, func(t *testing.T) {
			// The first match of the first case would end the list.
			if m := http.GetMatch(); len(m) == 2 {
				m[0].Method = &networking.StringMatch{MatchType: &networking.StringMatch_Exact{Exact: "GET"}}
			}
			b := &builder{reader: nothing{}, gateways: map[string]bool{contract.MeshGateway: true}, port: 80}
			vs := &mesh.VirtualService{Key: mesh.Key{Namespace: "ns", Name: "vs"},
				Spec: &networking.VirtualService{Http: []*networking.HTTPRoute{http}}}
			_, err := b.virtualService(vs)
			if err == nil || !strings.HasPrefix(err.Error(), "VirtualService ns/vs: http[0].") || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		})
	}
}

func TestRoutesEndAtTheFirstCatchAll(t *testing.T) {
	prefix := func(p string) []*networking.HTTPMatchRequest {
		return []*networking.HTTPMatchRequest{{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: p}}}}
	}
	answer := &networking.HTTPDirectResponse{Status: 200}
	b := &builder{reader: nothing{}, gateways: map[string]bool{contract.MeshGateway: true}, port: 80}
	routes, err := b.virtualService(&mesh.VirtualService{Spec: &networking.VirtualService{Http: []*networking.HTTPRoute{
		{Name: "one", Match: prefix("/one"), DirectResponse: answer},
		{Name: "all", Match: prefix("/"), DirectResponse: answer},
		{Name: "never", DirectResponse: answer},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range routes {
		names = append(names, r.GetName())
	}
	if got := strings.Join(names, " "); got != "one all" {
		t.Errorf("got %q, want the order kept and nothing behind what matches everything", got)
	}
}

func TestRedirectPort(t *testing.T) {
	for _, tc := range []struct {
		name   string
		in     *networking.HTTPRedirect
		port   uint32
		secure bool
		want   uint32
	}{
		{"explicit", &networking.HTTPRedirect{RedirectPort: &networking.HTTPRedirect_Port{Port: 8443}}, 80, false, 8443},
		{"http's own is left out", &networking.HTTPRedirect{RedirectPort: &networking.HTTPRedirect_Port{Port: 80}}, 8080, false, 0},
		{"80 on https is not", &networking.HTTPRedirect{Scheme: "https", RedirectPort: &networking.HTTPRedirect_Port{Port: 80}}, 8080, false, 80},
		{"443 on https is left out", &networking.HTTPRedirect{RedirectPort: &networking.HTTPRedirect_Port{Port: 443}}, 443, true, 0},
		{
			"from the request", &networking.HTTPRedirect{
				RedirectPort: &networking.HTTPRedirect_DerivePort{DerivePort: networking.HTTPRedirect_FROM_REQUEST_PORT}}, 8080, false, 8080},
		{"from the protocol", &networking.HTTPRedirect{RedirectPort: &networking.HTTPRedirect_DerivePort{}}, 8080, false, 80},
		{"from the new protocol", &networking.HTTPRedirect{Scheme: "https", RedirectPort: &networking.HTTPRedirect_DerivePort{}}, 8080, false,
			443},
		{"from the protocol, on its own port", &networking.HTTPRedirect{Scheme: "https", RedirectPort: &networking.HTTPRedirect_DerivePort{}}, 80,
			false, 0},
		{"from the protocol, elsewhere", &networking.HTTPRedirect{Authority: "a", RedirectPort: &networking.HTTPRedirect_DerivePort{}}, 8080,
			false, 0},
		{"left alone", &networking.HTTPRedirect{Scheme: "https"}, 8080, false, 0},
	} {
		b := &builder{port: tc.port, secure: tc.secure, gateways: map[string]bool{contract.MeshGateway: true}}
		got, err := b.redirect(tc.in)
		if err != nil || got.GetPortRedirect() != tc.want {
			t.Errorf("%s: %d (%v), want %d", tc.name, got.GetPortRedirect(), err, tc.want)
		}
	}
}

func TestMatchesEverything(t *testing.T) {
	all := anyPath()
	if !matchesEverything(all) {
		t.Error("/ matches everything")
	}
	for name, condition := range map[string]func(*routev3.RouteMatch){
		"a header":          func(m *routev3.RouteMatch) { m.Headers = []*routev3.HeaderMatcher{{Name: "x"}} },
		"a query parameter": func(m *routev3.RouteMatch) { m.QueryParameters = []*routev3.QueryParameterMatcher{{Name: "x"}} },
		"a claim": func(m *routev3.RouteMatch) {
			m.DynamicMetadata = []*matcherv3.MetadataMatcher{matcher.Claim([]string{"sub"}, &matcherv3.StringMatcher{})}
		},
	} {
		some := anyPath()
		condition(some)
		if matchesEverything(some) {
			t.Error(name + " is a condition")
		}
	}
}
