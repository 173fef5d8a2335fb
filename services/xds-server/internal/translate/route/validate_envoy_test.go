package route

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/proxytext"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/envoytest"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/matcher"
)

// envoyErrors gives the routes to the real Envoy and returns its errors.
func envoyErrors(t *testing.T, routes ...*routev3.Route) string {
	t.Helper()
	table := newConfiguration("test")
	table.VirtualHosts = []*routev3.VirtualHost{{Name: "test", Domains: []string{"*"}, Routes: routes}}
	manager, err := hcm.Build(hcm.Options{Role: hcm.SidecarOutbound, StatPrefix: "test", Routes: table, Mesh: &meshv1alpha1.MeshConfig{}})
	if err != nil {
		t.Fatal(err)
	}
	return envoytest.Validate(t, &bootstrapv3.Bootstrap{
		LayeredRuntime: &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
			Name: "static",
			LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: map[string]*structpb.Value{
				"re2.max_program_size.error_level": structpb.NewNumberValue(32768),
			}}},
		}}},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Listeners: []*listenerv3.Listener{{
			Name: "test", FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{manager}}},
			Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: filepath.Join(t.TempDir(), "http.sock")}}},
		}}},
	})
}

// translated returns the first route of an HTTP route, or the error.
func translated(t *testing.T, in *networking.HTTPRoute) (*routev3.Route, error) {
	t.Helper()
	r := emptyReader(t, "default", "default.svc.cluster.local")
	if in.GetRoute() == nil && in.GetDirectResponse() == nil {
		in.Route = []*networking.HTTPRouteDestination{weighted(1)}
	}
	vs := &mesh.VirtualService{Spec: &networking.VirtualService{Http: []*networking.HTTPRoute{in}}}
	routes, err := newBuilder(r, 80, contract.MeshGateway).virtualService(vs)
	if err != nil {
		return nil, err
	}
	return routes[0], nil
}

func setHeader(value string) *networking.HTTPRoute {
	return &networking.HTTPRoute{
		Headers: &networking.Headers{Request: &networking.Headers_HeaderOperations{Set: map[string]string{"x": value}}}}
}

func uriRegex(expression string) *networking.HTTPRoute {
	return &networking.HTTPRoute{Match: []*networking.HTTPMatchRequest{{
		Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: expression}},
	}}}
}

// The real Envoy accepts, all at once, routes at the limits of what validate accepts.
func TestEnvoyAcceptsValidRoutes(t *testing.T) {
	var all []*networking.HTTPRoute
	var formats []string
	arguments := []string{
		"", "()", "(%s.%3f)", "(%Y)", "(x [y]{z})", "(a)", "(:method)", "(X-A?:PATH):10", "(a:b:c)", `(["a", "b"])`, "(a:b):9",
		"(a.b)", "(a:PLAIN)", "(a:TYPED):3", "(a:FIELD:b)", "(ROUTE:a:b):4", "(UPSTREAM_HOST:a)", "(ALLOW_WHITESPACES)", "(NUMBER)",
		"(SNAKE_STRING)", "(CAMEL_STRING)",
	}
	for _, name := range proxytext.Commands() {
		for _, argument := range arguments {
			switch value := "a %" + name + argument + "% 5%% b"; {
			case proxytext.HeaderValue(value) == nil:
				all = append(all, setHeader(value))
			case proxytext.Format(value) == nil: // of access logs, which have the same commands and more
				formats = append(formats, value)
			}
		}
	}
	for _, tables := range []map[string]*unicode.RangeTable{unicode.Categories, unicode.Scripts} {
		for name := range tables {
			if _, err := matcher.Regex(`\p{` + name + `}`); err == nil {
				all = append(all, uriRegex(`\p{`+name+`}`), uriRegex(`\P{^`+name+`}`))
			}
		}
	}
	for _, expression := range []string{
		`\x{ff}\xff`, `\Q\x{100}\E.*`, "é+[à-ü]",
		`[acegikmoqsuwyACEGIKMOQSUWY02468]{500}`, `(?i)[a-z]{900}`, `(?i)ks{900}`, `\pL{100}`, `[^é]{400}`, `(\w{30}){33}`,
		`(?P<name>a|b)*`, `a{1000}`, `\pN+?`, `[[:word:]]\z`, strings.Repeat("(", 400) + "a" + strings.Repeat(")?", 200) +
			strings.Repeat(")", 200),
	} {
		all = append(all, uriRegex(expression))
	}
	all = append(all,
		&networking.HTTPRoute{Timeout: &durationpb.Duration{Seconds: maxDuration / int64(time.Second)}},
		&networking.HTTPRoute{Route: []*networking.HTTPRouteDestination{weighted(1 << 30), weighted(1 << 30), weighted(1 << 30),
			weighted(1<<30 - 1)}},
		&networking.HTTPRoute{DirectResponse: &networking.HTTPDirectResponse{Status: 200, Body: &networking.HTTPBody{
			Specifier: &networking.HTTPBody_String_{String_: strings.Repeat("a", maxDirectResponseBody)}}}},
	)
	var routes []*routev3.Route
	for _, in := range all {
		route, err := translated(t, in)
		if err != nil {
			t.Errorf("refused: %v", err)
			continue
		}
		routes = append(routes, route)
	}
	for _, value := range formats {
		route := proto.CloneOf(routes[0])
		route.RequestHeadersToAdd = header(value)
		routes = append(routes, route)
	}
	if reason := envoyErrors(t, routes...); reason != "" {
		t.Errorf("Envoy refuses: %s", reason)
	}
}

// A check for something that Envoy accepts would take it from users.
func TestEnvoyRejectsInvalidRoutes(t *testing.T) {
	oddBytes := "["
	for b := 0x81; b <= 0xff; b += 2 {
		oddBytes += fmt.Sprintf(`\x%x`, b)
	}
	oddBytes += "]"
	for name, tc := range map[string]struct {
		refused *networking.HTTPRoute
		route   func(*routev3.Route)
	}{
		"unknown command": {setHeader("%FOO%"), func(r *routev3.Route) { r.RequestHeadersToAdd = header("%FOO%") }},
		"argument":        {setHeader("%PROTOCOL(a)%"), func(r *routev3.Route) { r.RequestHeadersToAdd = header("%PROTOCOL(a)%") }},
		"no argument":     {setHeader("%REQ%"), func(r *routev3.Route) { r.RequestHeadersToAdd = header("%REQ%") }},
		"length": {setHeader("%CLUSTER_METADATA(a):3%"),
			func(r *routev3.Route) { r.RequestHeadersToAdd = header("%CLUSTER_METADATA(a):3%") }},
		"header name":         {setHeader("%REQ(a b)%"), func(r *routev3.Route) { r.RequestHeadersToAdd = header("%REQ(a b)%") }},
		"no byte":             {uriRegex(`\x{100}`), pattern(`\x{100}`)},
		"long class name":     {uriRegex(`\p{Letter}`), pattern(`\p{Letter}`)},
		"class in lower case": {uriRegex(`\p{greek}`), pattern(`\p{greek}`)},
		"many ranges":         {uriRegex(oddBytes + "{1000}"), pattern(oddBytes + "{1000}")},
		"negative timeout": {&networking.HTTPRoute{Timeout: durationpb.New(-1)},
			func(r *routev3.Route) { r.GetRoute().Timeout = durationpb.New(-1) }},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := translated(t, tc.refused); err == nil {
				t.Error("passes")
			}
			route := defaultRoute("test", "test", nil, nil)
			tc.route(route)
			if envoyErrors(t, route) == "" {
				t.Error("Envoy takes it")
			}
		})
	}
}

func header(value string) []*corev3.HeaderValueOption {
	return []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x", Value: value}}}
}

func pattern(expression string) func(*routev3.Route) {
	return func(r *routev3.Route) {
		r.Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: expression}}
	}
}
