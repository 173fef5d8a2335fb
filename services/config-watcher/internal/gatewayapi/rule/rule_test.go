package rule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/routerank"
	"fairlead.dev/services/config-watcher/internal/gatewayapi/rule"
)

// backends resolves all backends but those named "gone".
func backends(ref *gatewayv1.BackendObjectReference) (string, uint32, bool) {
	if ref.Name == "gone" {
		return "", 0, false
	}
	return string(ref.Name) + ".host", uint32(*ref.Port), true
}

// text writes a rule as JSON without spaces, with its body unpacked.
func text(t *testing.T, r *configv1.AttachedRule) (matches, body string) {
	t.Helper()
	for _, m := range r.GetMatches() {
		request := &networking.HTTPMatchRequest{}
		if m.GetMatch() != nil {
			if err := m.GetMatch().UnmarshalTo(request); err != nil {
				t.Fatal(err)
			}
		}
		raw, err := protojson.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		matches += string(raw)
		if m.GetPathElements() {
			matches += "elements"
		}
	}
	http := &networking.HTTPRoute{}
	if err := r.GetHttp().UnmarshalTo(http); err != nil {
		t.Fatal(err)
	}
	raw, err := protojson.Marshal(http)
	if err != nil {
		t.Fatal(err)
	}
	body = string(raw)
	if r.PrefixRedirect != nil {
		body += " prefixRedirect=" + r.GetPrefixRedirect()
	}
	if r.PrefixRewrite != nil {
		body += " prefixRewrite=" + r.GetPrefixRewrite()
	}
	return strings.ReplaceAll(matches, " ", ""), strings.ReplaceAll(body, " ", "")
}

func TestHTTP(t *testing.T) {
	const to = "backendRefs: [{name: a, port: 80}]\n"
	const route = `"route":[{"destination":{"host":"a.host","port":{"number":80}},"weight":1}]`
	for name, c := range map[string]struct {
		rule, matches, body, problem string
		incompatible                 bool
	}{
		"nothing":    {rule: "", matches: "{}", body: `{"directResponse":{"status":500}}`},
		"backend":    {rule: to, matches: "{}", body: "{" + route + "}"},
		"name":       {rule: "name: x\n" + to, matches: "{}", body: `{"name":"x",` + route + "}"},
		"every path": {rule: `matches: [{path: {type: PathPrefix, value: /}}]` + "\n" + to, matches: "{}", body: "{" + route + "}"},
		"prefix": {rule: `matches: [{path: {type: PathPrefix, value: /a/}}]` + "\n" + to,
			matches: `{"uri":{"prefix":"/a"}}elements`, body: "{" + route + "}"},
		"exact": {rule: `matches: [{path: {type: Exact, value: /a/}}]` + "\n" + to, matches: `{"uri":{"exact":"/a/"}}`,
			body: "{" + route + "}"},
		"regex": {rule: `matches: [{path: {type: RegularExpression, value: /a.*}}]` + "\n" + to,
			matches: `{"uri":{"regex":"/a.*"}}`, body: "{" + route + "}"},
		"header and query": {rule: `matches: [{method: GET, headers: [{name: X-A, value: b}, {name: x-a, value: c}], queryParams: [{name: Q, value: "1", type: RegularExpression}]}]` + "\n" + to, matches: `{"method":{"exact":"GET"},"headers":{"x-a":{"exact":"b"}},"queryParams":{"Q":{"regex":"1"}}}`, body: "{" + route + "}"},
		"bad regex": {rule: `matches: [{path: {type: RegularExpression, value: "("}}, {path: {value: /b}}]` + "\n" + to,
			matches: `{"uri":{"prefix":"/b"}}elements`, body: `{"directResponse":{"status":500}}`, problem: "path: "},
		"weights": {rule: "backendRefs: [{name: a, port: 80, weight: 9}, {name: gone, port: 80}, {name: b, port: 81, weight: 0}]",
			matches: "{}", body: `{"route":[{"destination":{"host":"a.host","port":{"number":80}},"weight":9},{"destination":{"host":"unresolved.invalid"},"weight":1}]}`},
		"all gone":  {rule: "backendRefs: [{name: gone, port: 80}]", matches: "{}", body: `{"directResponse":{"status":500}}`},
		"no weight": {rule: "backendRefs: [{name: a, port: 80, weight: 0}]", matches: "{}", body: `{"directResponse":{"status":500}}`},
		"headers": {
			rule: "filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: A, value: b}], add: [{name: C, value: d}], " +
				"remove: [E]}}, {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: F, value: g}]}}]\n" + to,
			body:    `{` + route + `,"headers":{"request":{"set":{"A":"b"},"add":{"C":"d"},"remove":["E"]},"response":{"set":{"F":"g"}}}}`,
			matches: "{}",
		},
		"headers of a backend": {
			rule: "backendRefs: [{name: a, port: 80, filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: A, value: " +
				"b}]}}]}]", matches: "{}",
			body: `{"route":[{"destination":{"host":"a.host","port":{"number":80}},"weight":1,"headers":{"request":{"set":{"A":"b"}}}}]}`,
		},
		"rewrite of the only backend": {
			rule:    "backendRefs: [{name: a, port: 80, filters: [{type: URLRewrite, urlRewrite: {hostname: x.com}}]}]",
			matches: "{}", body: `{` + route + `,"rewrite":{"authority":"x.com"}}`,
		},
		"rewrite of a backend": {
			rule: "backendRefs: [{name: b, port: 81}, {name: a, port: 80, filters: [{type: URLRewrite, urlRewrite: {hostname: x}}]}]", matches: "{}",
			body: `{"route":[{"destination":{"host":"b.host","port":{"number":81}},"weight":1},{"destination":{"host":"a.host","port":{"number":80}},"weight":1}]}`,
		},
		"rewrite of a backend and of the rule": {
			rule: "filters: [{type: URLRewrite, urlRewrite: {hostname: y}}]\nbackendRefs: [{name: b, port: 81}, {name: a, port: 80, " +
				"filters: [{type: URLRewrite, urlRewrite: {hostname: x}}]}]", matches: "{}",
			body: `{"directResponse":{"status":500}}`, problem: "where the rule has one; remove one of them",
		},
		"redirect with a rewrite of a backend": {
			rule: "filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]\nbackendRefs: [{name: b, port: 81}, {name: a, " +
				"port: 80, filters: [{type: URLRewrite, urlRewrite: {hostname: x}}]}]", matches: "{}",
			body: `{"redirect":{"derivePort":"FROM_PROTOCOL_DEFAULT","scheme":"https","redirectCode":302}}`,
		},
		"redirect": {
			rule: "filters: [{type: RequestRedirect, requestRedirect: {hostname: x.com, statusCode: 301}}]", matches: "{}",
			body: `{"redirect":{"authority":"x.com","derivePort":"FROM_REQUEST_PORT","redirectCode":301}}`,
		},
		"redirect of scheme": {
			rule: "filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]", matches: "{}",
			body: `{"redirect":{"derivePort":"FROM_PROTOCOL_DEFAULT","scheme":"https","redirectCode":302}}`,
		},
		"redirect of port and path": {
			rule:    "filters: [{type: RequestRedirect, requestRedirect: {port: 8443, path: {type: ReplaceFullPath, replaceFullPath: /p}}}]",
			matches: "{}",
			body:    `{"redirect":{"uri":"/p","port":8443,"redirectCode":302}}`,
		},
		"redirect of prefix": {
			rule: "matches: [{path: {value: /a}}]\nfilters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, " +
				"replacePrefixMatch: /p}, statusCode: 308}}]", matches: `{"uri":{"prefix":"/a"}}elements`,
			body: `{"redirect":{"derivePort":"FROM_REQUEST_PORT","redirectCode":308}}prefixRedirect=/p`,
		},
		"redirect with another status": {rule: "filters: [{type: RequestRedirect, requestRedirect: {statusCode: 300}}]", matches: "{}",
			body: `{"directResponse":{"status":500}}`, problem: "requestRedirect.statusCode: 300"},
		"rewrite": {
			rule:    "filters: [{type: URLRewrite, urlRewrite: {hostname: x.com, path: {type: ReplaceFullPath, replaceFullPath: /p}}}]\n" + to,
			matches: "{}",
			body:    `{` + route + `,"rewrite":{"authority":"x.com","uriRegexRewrite":{"match":"/.*","rewrite":"/p"}}}`,
		},
		"rewrite of prefix": {
			rule: "matches: [{path: {value: /a}}]\nfilters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, " +
				"replacePrefixMatch: /}}}]\n" + to, matches: `{"uri":{"prefix":"/a"}}elements`,
			body: `{` + route + `,"rewrite":{}}prefixRewrite=/`,
		},
		"redirect and rewrite": {
			rule:    "filters: [{type: URLRewrite, urlRewrite: {hostname: a}}, {type: RequestRedirect, requestRedirect: {scheme: https}}]",
			matches: "{}",
			body:    `{"directResponse":{"status":500}}`, problem: "exclude each other", incompatible: true,
		},
		"mirrors": {
			rule: "filters: [{type: RequestMirror, requestMirror: {backendRef: {name: m, port: 1}, percent: 20}}, {type: RequestMirror, " +
				"requestMirror: {backendRef: {name: k, port: 2}, fraction: {numerator: 1, denominator: 8}}}, {type: RequestMirror, requestMirror: " +
				"{backendRef: {name: gone, port: 2}}}]\n" + to,
			body: `{` + route + `,"mirrors":[{"destination":{"host":"m.host","port":{"number":1}},"percentage":{"value":20}},{"destination":{"host":"k.host","port":{"number":2}},"percentage":{"value":12.5}}]}`, matches: "{}",
		},
		"cors": {
			rule: "filters: [{type: CORS, cors: {allowOrigins: [\"https://a.com\", \"https://*.b.com\"], allowMethods: [GET], allowHeaders: " +
				"[x], exposeHeaders: [z], allowCredentials: true}}]\n" + to,
			body: `{` + route + `,"corsPolicy":{"allowOrigins":[{"exact":"https://a.com"},{"regex":"https://.*\\.b\\.com"}],"allowMethods":["GET"],"allowHeaders":["x"],"exposeHeaders":["z"],"maxAge":"5s","allowCredentials":true,"unmatchedPreflights":"IGNORE"}}`, matches: "{}",
		},
		"unknown filter": {rule: "filters: [{type: ExtensionRef, extensionRef: {group: g, kind: k, name: n}}]\n" + to, matches: "{}",
			body: `{"directResponse":{"status":500}}`, problem: "filter ExtensionRef is not supported here"},
		"timeouts": {rule: "timeouts: {request: 2s, backendRequest: 500ms}\n" + to, matches: "{}",
			body: `{` + route + `,"timeout":"0.500s"}`},
		"request timeout": {rule: "timeouts: {request: 2s, backendRequest: 0s}\n" + to, matches: "{}", body: `{` + route + `,"timeout":"2s"}`},
		"retry": {
			rule: "timeouts: {request: 2s, backendRequest: 500ms}\nretry: {codes: [503, 504], attempts: 3, backoff: 10ms}\n" + to, matches: "{}",
			body: `{` + route + `,"timeout":"2s","retries":{"attempts":3,"perTryTimeout":"0.500s","retryOn":"connect-failure,refused-stream,reset,503,504","backoff":"0.010s"}}`,
		},
		"retry once": {rule: "retry: {codes: [503]}\n" + to, matches: "{}",
			body: `{` + route + `,"retries":{"attempts":1,"retryOn":"connect-failure,refused-stream,reset,503"}}`},
		"no retry": {rule: "retry: {codes: [503], attempts: 0}\n" + to, matches: "{}", body: `{` + route + `,"retries":{}}`},
		"bad duration": {rule: "timeouts: {request: soon}\n" + to, matches: "{}", body: `{"directResponse":{"status":500}}`,
			problem: "timeouts.request"},
	} {
		t.Run(name, func(t *testing.T) {
			in := &gatewayv1.HTTPRouteRule{}
			if err := yaml.UnmarshalStrict([]byte(c.rule), in); err != nil {
				t.Fatal(err)
			}
			got, problem := rule.HTTP(&routerank.Route{Kind: "HTTPRoute"}, 0, in, backends)
			check(t, got, problem, c.matches, c.body, c.problem)
			if problem != nil && problem.Incompatible != c.incompatible {
				t.Errorf("incompatible: %v", problem.Incompatible)
			}
		})
	}
}

// The rewrite of each of several backends is told apart from that of the rule; a backend without weight has none.
func TestRewritesOfBackends(t *testing.T) {
	in := &gatewayv1.HTTPRouteRule{}
	if err := yaml.UnmarshalStrict([]byte(`
backendRefs:
- {name: a, port: 80, weight: 0, filters: [{type: URLRewrite, urlRewrite: {hostname: never}}]}
- {name: b, port: 81}
- {name: a, port: 80, filters: [{type: URLRewrite, urlRewrite: {hostname: x, path: {type: ReplacePrefixMatch, replacePrefixMatch: /p}}}]}
- {name: gone, port: 80, filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /f}}}]}
`), in); err != nil {
		t.Fatal(err)
	}
	got, problem := rule.HTTP(&routerank.Route{Kind: "HTTPRoute"}, 0, in, backends)
	if problem != nil {
		t.Fatal(problem.Message)
	}
	var all []string
	for _, own := range got.GetBackendRewrites() {
		rewrite := &networking.HTTPRewrite{}
		if err := own.GetRewrite().UnmarshalTo(rewrite); err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%d: %s %s %s", own.GetDestination(), rewrite.GetAuthority(), rewrite.GetUriRegexRewrite().GetRewrite(),
			own.GetPrefixRewrite()))
	}
	if want := []string{"1: x  /p", "2:  /f "}; !slices.Equal(all, want) || got.PrefixRewrite != nil {
		t.Errorf("got %q, want %q", all, want)
	}
}

func check(t *testing.T, got *configv1.AttachedRule, problem *rule.Problem, matches, body, message string) {
	t.Helper()
	gotMatches, gotBody := text(t, got)
	if gotMatches != matches {
		t.Errorf("matches %s, want %s", gotMatches, matches)
	}
	if gotBody != body {
		t.Errorf("body %s, want %s", gotBody, body)
	}
	if (problem != nil) != (message != "") || problem != nil && !strings.Contains(problem.Message, message) {
		t.Errorf("problem %v, want %q", problem, message)
	}
}

func TestGRPC(t *testing.T) {
	const to = "backendRefs: [{name: a, port: 80}]\n"
	const body = `{"route":[{"destination":{"host":"a.host","port":{"number":80}},"weight":1}]}`
	const typed = `"headers":{"content-type":{"prefix":"application/grpc"}}`
	const all = "{" + typed + "}"
	for name, c := range map[string]struct{ rule, matches, body, problem string }{
		"everything":         {to, all, body, ""},
		"service and method": {"matches: [{method: {service: a.B, method: C}}]\n" + to, `{"uri":{"exact":"/a.B/C"},` + typed + "}", body, ""},
		"service":            {"matches: [{method: {service: a.B}}]\n" + to, `{"uri":{"prefix":"/a.B/"},` + typed + "}", body, ""},
		"method":             {"matches: [{method: {method: C.}}]\n" + to, `{"uri":{"regex":"/[^/]+/C\\."},` + typed + "}", body, ""},
		"expressions": {"matches: [{method: {type: RegularExpression, service: a.*}}]\n" + to, `{"uri":{"regex":"/a.*/[^/]+"},` + typed + "}",
			body, ""},
		"headers": {"matches: [{headers: [{name: A, value: b}]}]\n" + to,
			`{"headers":{"a":{"exact":"b"},"content-type":{"prefix":"application/grpc"}}}`, body, ""},
		"own content type": {"matches: [{headers: [{name: Content-Type, value: application/grpc+proto}]}]\n" + to,
			`{"headers":{"content-type":{"exact":"application/grpc+proto"}}}`, body, ""},
		"neither":    {"matches: [{method: {}}, {}]\n" + to, all, `{"directResponse":{"status":503}}`, "neither service nor method"},
		"no backend": {"", all, `{"directResponse":{"status":503}}`, ""},
		"mirror": {
			"filters: [{type: RequestMirror, requestMirror: {backendRef: {name: m, port: 1}}}]\n" + to, all,
			strings.TrimSuffix(body, "}") + `,"mirrors":[{"destination":{"host":"m.host","port":{"number":1}}}]}`, "",
		},
		"headers of a backend": {
			"backendRefs: [{name: a, port: 80, filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [A]}}]}]", all,
			`{"route":[{"destination":{"host":"a.host","port":{"number":80}},"weight":1,"headers":{"response":{"remove":["A"]}}}]}`, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := &gatewayv1.GRPCRouteRule{}
			if err := yaml.UnmarshalStrict([]byte(c.rule), in); err != nil {
				t.Fatal(err)
			}
			got, problem := rule.GRPC(&routerank.Route{Kind: "GRPCRoute"}, 0, in, backends)
			check(t, got, problem, c.matches, c.body, c.problem)
		})
	}
}

// TestNothingMatches checks that a rule none of whose matches can be understood is left out.
func TestNothingMatches(t *testing.T) {
	in := &gatewayv1.HTTPRouteRule{}
	if err := yaml.Unmarshal([]byte(`matches: [{path: {type: RegularExpression, value: "("}}]`), in); err != nil {
		t.Fatal(err)
	}
	if got, problem := rule.HTTP(&routerank.Route{}, 0, in, backends); got != nil || problem == nil {
		t.Errorf("%v, %v", got, problem)
	}
}
