package authz_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"gopkg.in/yaml.v3"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
)

// options are those of a mesh whose trust domain has an alias.
var options = authz.Options{TrustDomain: "td1", Aliases: []string{"td2"}}

// policy reads the spec of an AuthorizationPolicy in YAML.
func policy(t testing.TB, name, spec string) authz.Policy {
	t.Helper()
	p := &security.AuthorizationPolicy{}
	read(t, spec, p)
	return authz.Policy{Namespace: "foo", Name: name, Spec: p}
}

func read(t testing.TB, spec string, into proto.Message) {
	t.Helper()
	var decoded any
	err := yaml.Unmarshal([]byte(spec), &decoded)
	if err == nil {
		var data []byte
		if data, err = json.Marshal(decoded); err == nil {
			err = protojson.Unmarshal(data, into)
		}
	}
	if err != nil {
		t.Fatalf("%v in\n%s", err, spec)
	}
}

// base is a request that the tables change.
func base() authz.Request {
	return authz.Request{
		Principal: "spiffe://td1/ns/bar/sa/client", SourceIP: netip.MustParseAddr("10.1.2.3"), RemoteIP: netip.MustParseAddr("203.0.113.4"),
		DestinationIP: netip.MustParseAddr("10.9.9.9"), Port: 8080, SNI: "www.example.com", Host: "Example.com:8080", Method: "GET",
		Path: "/users/7?x=/admin", Headers: map[string][]string{"X-Id": {"a", "b"}, "x-empty": {""}},
		Claims: authz.SplitClaims(map[string]any{
			"iss": "https://issuer.example.com", "sub": "alice", "aud": []any{"shop", "web"}, "azp": "presenter", "scope": "read write",
			"realm": map[string]any{"roles": []any{"admin"}}, "n": 1.0, "a[0]": "odd",
		}),
		Metadata: map[string]map[string]any{"envoy.filters.http.x": {"k": "v", "l": []any{"i"}}},
	}
}

func TestMatch(t *testing.T) {
	long := "spiffe://td1/x/ns/bar/sa/client/more"
	for _, tc := range []struct {
		name, rule string
		change     func(*authz.Request)
		http, tcp  bool
	}{
		{"principal", `{from: [{source: {principals: [td1/ns/bar/sa/client]}}]}`, nil, true, true},
		{"principal of an alias", `{from: [{source: {principals: [td2/ns/bar/sa/client]}}]}`, nil, true, true},
		{"principal of the local trust domain", `{from: [{source: {principals: [cluster.local/ns/bar/sa/client]}}]}`, nil, true, true},
		{"principal of a foreign trust domain", `{from: [{source: {principals: [td3/ns/bar/sa/client]}}]}`, nil, false, false},
		{"principal by prefix", `{from: [{source: {principals: [td1/ns/bar/*]}}]}`, nil, true, true},
		{"principal by suffix", `{from: [{source: {principals: ["*/sa/client"]}}]}`, nil, true, true},
		{"principal by pattern of the trust domain", `{from: [{source: {principals: ["*1/ns/bar/sa/client"]}}]}`, nil, true, true},
		{"a pattern of the trust domain stays one", `{from: [{source: {principals: ["*1/ns/bar/sa/client"]}}]}`,
			func(r *authz.Request) { r.Principal = "spiffe://x1/ns/bar/sa/client" }, true, true},
		{"suffix that is the scheme's", `{from: [{source: {principals: ["*://td1/ns/bar/sa/client"]}}]}`, nil, false, false},
		{"a dot is a dot", `{from: [{source: {principals: ["*/ns.bar/sa/client"]}}]}`, nil, false, false},
		{"any principal", `{from: [{source: {principals: ["*"]}}]}`, nil, true, true},
		{"no certificate", `{from: [{source: {principals: ["*"]}}]}`, noCertificate, false, false},
		{"no certificate, not", `{from: [{source: {notPrincipals: [td1/ns/bar/sa/client]}}]}`, noCertificate, true, true},
		{"not principal", `{from: [{source: {notPrincipals: [td1/ns/bar/sa/client]}}]}`, nil, false, false},
		{"namespace", `{from: [{source: {namespaces: [bar]}}]}`, nil, true, true},
		{"namespace that begins so", `{from: [{source: {namespaces: [ba]}}]}`, nil, false, false},
		{"namespace by prefix", `{from: [{source: {namespaces: ["ba*"]}}]}`, nil, true, true},
		{"namespace by suffix", `{from: [{source: {namespaces: ["*ar"]}}]}`, nil, true, true},
		{"the suffix is the namespace's, not of /sa/", `{from: [{source: {namespaces: ["*sa"]}}]}`, nil, false, false},
		{"not namespace", `{from: [{source: {notNamespaces: [bar]}}]}`, nil, false, false},
		{"service account", `{from: [{source: {serviceAccounts: [bar/client]}}]}`, nil, true, true},
		{"service account of the policy's namespace", `{from: [{source: {serviceAccounts: [client]}}]}`, nil, false, false},
		{"service account in a long identity", `{from: [{source: {serviceAccounts: [bar/client]}}]}`,
			func(r *authz.Request) { r.Principal = long }, true, true},
		{"service account that begins so", `{from: [{source: {serviceAccounts: [bar/clie]}}]}`, nil, false, false},
		{"trust domain", `{from: [{source: {trustDomains: [td1]}}]}`, nil, true, true},
		{"trust domain by alias", `{from: [{source: {trustDomains: [td2]}}]}`, nil, true, true},
		{"trust domain that begins so", `{from: [{source: {trustDomains: [td]}}]}`, nil, false, false},
		{"trust domain by prefix", `{from: [{source: {trustDomains: ["t*"]}}]}`, nil, true, true},
		{"foreign trust domain", `{from: [{source: {trustDomains: [td3]}}]}`, nil, false, false},
		{"any trust domain", `{from: [{source: {notTrustDomains: ["*"]}}]}`, nil, false, false},
		{"block", `{from: [{source: {ipBlocks: [10.1.0.0/16]}}]}`, nil, true, true},
		{"address in the form of IPv6", `{from: [{source: {ipBlocks: ["::ffff:10.1.2.3"]}}]}`, nil, true, true},
		{"remote block", `{from: [{source: {remoteIpBlocks: [203.0.113.4]}}]}`, nil, true, true},
		{"not block", `{from: [{source: {notIpBlocks: [10.1.2.3]}}]}`, nil, false, false},
		{"request principal", `{from: [{source: {requestPrincipals: ["https://issuer.example.com/alice"]}}]}`, nil, true, false},
		{"request principal, any subject", `{from: [{source: {requestPrincipals: ["https://issuer.example.com/*"]}}]}`, nil, true, false},
		{"request principal, subject by prefix", `{from: [{source: {requestPrincipals: ["https://issuer.example.com/al*"]}}]}`, nil, true, false},
		{"request principal, issuer by suffix", `{from: [{source: {requestPrincipals: ["*example.com/alice"]}}]}`, nil, true, false},
		{"request principal, any issuer", `{from: [{source: {requestPrincipals: ["*/alice"]}}]}`, nil, true, false},
		{"request principal, subject by suffix", `{from: [{source: {requestPrincipals: ["*ce"]}}]}`, nil, true, false},
		{"request principal without a subject", `{from: [{source: {requestPrincipals: ["https:"]}}]}`, nil, false, false},
		{"any request principal", `{from: [{source: {requestPrincipals: ["*"]}}]}`, nil, true, false},
		{"no token", `{from: [{source: {requestPrincipals: ["*"]}}]}`, noToken, false, false},
		{"no token, not", `{from: [{source: {notRequestPrincipals: ["*"]}}]}`, noToken, true, false},
		{"host without case", `{to: [{operation: {hosts: ["example.COM:8080"]}}]}`, nil, true, false},
		{"host without its port", `{to: [{operation: {hosts: ["example.com"]}}]}`, nil, false, false},
		{"host by prefix", `{to: [{operation: {hosts: ["example.com:*"]}}]}`, nil, true, false},
		{"host by suffix", `{to: [{operation: {hosts: ["*.COM:8080"]}}]}`, nil, true, false},
		{"method", `{to: [{operation: {methods: [GET]}}]}`, nil, true, false},
		{"method in another case", `{to: [{operation: {methods: [get]}}]}`, nil, false, false},
		{"path without query", `{to: [{operation: {paths: [/users/7]}}]}`, nil, true, false},
		{"path with query", `{to: [{operation: {paths: ["/users/7?x=/admin"]}}]}`, nil, false, false},
		{"path without fragment", `{to: [{operation: {paths: [/users/7]}}]}`, func(r *authz.Request) { r.Path = "/users/7#x" }, true, false},
		{"path by suffix", `{to: [{operation: {paths: ["*/admin"]}}]}`, nil, false, false},
		{"path in another case", `{to: [{operation: {paths: ["/Users/*"]}}]}`, nil, false, false},
		{"path by template", `{to: [{operation: {paths: ["/users/{*}"]}}]}`, nil, true, false},
		{"a template is for the whole path", `{to: [{operation: {paths: ["/{*}"]}}]}`, nil, false, false},
		{"a template's rest", `{to: [{operation: {paths: ["/users/{*}/{**}"]}}]}`, nil, false, false},
		{"a template's empty rest", `{to: [{operation: {paths: ["/users/{*}/{**}"]}}]}`,
			func(r *authz.Request) { r.Path = "/users/7/" }, true, false},
		{"a template's dot is a dot", `{to: [{operation: {paths: ["/u.ers/{*}"]}}]}`, nil, false, false},
		{"not path", `{to: [{operation: {notPaths: [/users/7]}}]}`, nil, false, false},
		{"port", `{to: [{operation: {ports: ["8080"]}}]}`, nil, true, true},
		{"not port", `{to: [{operation: {notPorts: ["8080"]}}]}`, nil, false, false},
		{"port and method", `{to: [{operation: {ports: ["8080"], methods: [POST]}}]}`, nil, false, false},
		{"one source of two", `{from: [{source: {namespaces: [x]}}, {source: {namespaces: [bar]}}]}`, nil, true, true},
		{"one field of two", `{from: [{source: {namespaces: [x], ipBlocks: [10.1.2.3]}}]}`, nil, false, false},
		{"value and not", `{to: [{operation: {paths: ["/users/*"], notPaths: ["*/7"]}}]}`, nil, false, false},
		{"empty rule", `{}`, nil, true, true},
		{"header joined", `{when: [{key: "request.headers[x-id]", values: ["a,b"]}]}`, nil, true, false},
		{"one of a header's lines", `{when: [{key: "request.headers[X-ID]", values: [a, b]}]}`, nil, false, false},
		{"a second header dodges no not", `{when: [{key: "request.headers[x-id]", notValues: [a]}]}`, nil, true, false},
		{"empty header", `{when: [{key: "request.headers[x-empty]", values: ["*"]}]}`, nil, true, false},
		{"missing header", `{when: [{key: "request.headers[x-no]", values: ["*"]}]}`, nil, false, false},
		{"missing header, not", `{when: [{key: "request.headers[x-no]", notValues: [a]}]}`, nil, true, false},
		{"header host", `{when: [{key: "request.headers[Host]", values: ["Example.com:8080"]}]}`, nil, true, false},
		{"header path has the query", `{when: [{key: "request.headers[:path]", values: ["*/admin"]}]}`, nil, true, false},
		{"when source.ip", `{when: [{key: source.ip, values: [10.1.2.3]}]}`, nil, true, true},
		{"when remote.ip", `{when: [{key: remote.ip, values: [203.0.113.0/24]}]}`, nil, true, true},
		{"when destination.ip", `{when: [{key: destination.ip, values: [10.9.9.9]}]}`, nil, true, true},
		{"when destination.port", `{when: [{key: destination.port, notValues: ["8080"]}]}`, nil, false, false},
		{"when source.namespace", `{when: [{key: source.namespace, values: [bar]}]}`, nil, true, true},
		{"when source.principal", `{when: [{key: source.principal, values: [td2/ns/bar/sa/client]}]}`, nil, true, true},
		{"when source.serviceAccount", `{when: [{key: source.serviceAccount, values: [bar/client]}]}`, nil, true, true},
		{"when source.trustDomain", `{when: [{key: source.trustDomain, values: [td2]}]}`, nil, true, true},
		{"when connection.sni", `{when: [{key: connection.sni, values: ["*.example.com"]}]}`, nil, true, true},
		{"when request.auth.principal", `{when: [{key: request.auth.principal, values: ["*"]}]}`, nil, true, false},
		{"when request.auth.audiences", `{when: [{key: request.auth.audiences, values: [web]}]}`, nil, true, false},
		{"when request.auth.presenter", `{when: [{key: request.auth.presenter, values: ["pre*"]}]}`, nil, true, false},
		{"nested claim", `{when: [{key: "request.auth.claims[realm][roles]", values: [admin]}]}`, nil, true, false},
		{"claim with a bracket", `{when: [{key: "request.auth.claims[a[0]]", values: [odd]}]}`, nil, true, false},
		{"claim of words", `{when: [{key: "request.auth.claims[scope]", values: [write]}]}`, nil, true, false},
		{"claim that is a number", `{when: [{key: "request.auth.claims[n]", values: ["1"]}]}`, nil, false, false},
		{"metadata", `{when: [{key: "experimental.envoy.filters.http.x[k]", values: [v]}]}`, nil, true, true},
		{"metadata in a list", `{when: [{key: "experimental.envoy.filters.http.x[l]", values: ["[i]"]}]}`, nil, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := base()
			if tc.change != nil {
				tc.change(&r)
			}
			spec := "{action: ALLOW, rules: [" + tc.rule + "]}"
			allow := policy(t, "p", spec)
			set := authz.Compile([]authz.Policy{allow}, options)
			for _, tcp := range []bool{false, true} {
				r.TCP = tcp
				want := tc.http
				if tcp {
					want = tc.tcp
				}
				if got := set.Decide(r); (got.Outcome == authz.Allowed) != want {
					t.Errorf("with TCP %v: %v, want %v; %+v", tcp, got.Outcome, want, set.Explain(r))
				}
				if found := set.Explain(r); len(found) != 1 || found[0].Matches != want || found[0].Matches == (found[0].Why != "") {
					t.Errorf("with TCP %v, Explain: %+v", tcp, found)
				}
			}
		})
	}
}

func noCertificate(r *authz.Request) { r.Principal = "" }

func noToken(r *authz.Request) { r.Claims = nil }

func TestDecide(t *testing.T) {
	get := `{to: [{operation: {methods: [GET]}}]}`
	type named map[string]string
	for _, tc := range []struct {
		name     string
		policies named
		change   func(*authz.Request)
		want     string
	}{
		{"no policy", nil, nil, "allowed"},
		{"ALLOW without rules", named{"a": "{}"}, nil, "denied ALLOW"},
		{"DENY without rules", named{"a": "{action: DENY}"}, nil, "allowed"},
		{"a rule allows", named{"a": "{rules: [{}]}"}, nil, "allowed ALLOW ns[foo]-policy[a]-rule[0]"},
		{"the second rule allows", named{"a": "{rules: [{to: [{operation: {methods: [PUT]}}]}, " + get + "]}"}, nil,
			"allowed ALLOW ns[foo]-policy[a]-rule[1]"},
		{"DENY comes first", named{"a": "{rules: [{}]}", "b": "{action: DENY, rules: [" + get + "]}"}, nil,
			"denied DENY ns[foo]-policy[b]-rule[0]"},
		{"DENY of HTTP denies TCP", named{"b": "{action: DENY, rules: [{to: [{operation: {methods: [PUT]}}]}]}"}, tcp,
			"denied DENY ns[foo]-policy[b]-rule[0]"},
		{"DENY of a port leaves other TCP", named{"b": `{action: DENY, rules: [{to: [{operation: {methods: [PUT], ports: ["1"]}}]}]}`}, tcp,
			"allowed"},
		{"ALLOW of HTTP allows no TCP", named{"a": "{rules: [" + get + "]}"}, tcp, "denied ALLOW"},
		{"one field of HTTP is enough",
			named{"a": `{rules: [{from: [{source: {ipBlocks: [10.1.2.3]}}], to: [{operation: {notMethods: [PUT]}}]}]}`}, tcp,
			"denied ALLOW"},
		{"a provider is asked", named{"c": "{action: CUSTOM, provider: {name: p}, rules: [{}]}"}, nil,
			"asks CUSTOM ns[foo]-policy[c]-rule[0] [p]"},
		{"a provider refuses", named{"c": "{action: CUSTOM, provider: {name: p}, rules: [{}]}"}, answers("p", authz.Refuses),
			"denied CUSTOM ns[foo]-policy[c]-rule[0] p"},
		{"a provider allows, DENY does not", named{"c": "{action: CUSTOM, provider: {name: p}, rules: [{}]}", "d": "{action: DENY, rules: [{}]}"},
			answers("p", authz.Allows), "denied DENY ns[foo]-policy[d]-rule[0]"},
		{"a provider is asked in vain", named{"c": "{action: CUSTOM, provider: {name: p}, rules: [{}]}", "d": "{action: DENY, rules: [{}]}"}, nil,
			"denied DENY ns[foo]-policy[d]-rule[0]"},
		{"one of two providers refuses",
			named{"c": "{action: CUSTOM, provider: {name: p}, rules: [{}]}", "d": "{action: CUSTOM, provider: {name: q}, rules: [{}]}"},
			answers("q", authz.Refuses), "denied CUSTOM ns[foo]-policy[d]-rule[0] q"},
		{"AUDIT denies nothing", named{"a": "{action: AUDIT, rules: [{}]}"}, nil, "allowed audit ns[foo]-policy[a]-rule[0]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := base()
			if tc.change != nil {
				tc.change(&r)
			}
			var policies []authz.Policy
			for name, spec := range tc.policies {
				policies = append(policies, policy(t, name, spec))
			}
			if got := say(authz.Compile(policies, options).Decide(r)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func tcp(r *authz.Request) { r.TCP = true }

func answers(name string, a authz.Answer) func(*authz.Request) {
	return func(r *authz.Request) { r.Answers = map[string]authz.Answer{name: a} }
}

func say(d authz.Decision) string {
	s := d.Outcome.String()
	if d.Action != "" {
		s += " " + d.Action
	}
	if d.Rule != nil {
		s += " " + d.Rule.Name
	}
	if d.Provider != "" {
		s += " " + d.Provider
	}
	if len(d.Providers) > 0 {
		s += " [" + d.Providers[0] + "]"
	}
	if d.Audit != nil {
		s += " audit " + d.Audit.Name
	}
	return s
}

func TestDryRunDeniesNothing(t *testing.T) {
	for _, action := range []string{"DENY", "ALLOW", "CUSTOM"} {
		p := policy(t, "p", "{action: "+action+", rules: [{to: [{operation: {methods: [GET]}}]}]}")
		p.DryRun = true
		got := authz.Compile([]authz.Policy{p}, options).Decide(base())
		if got.Outcome != authz.Allowed || (got.DryRunDeny != nil) != (action == "DENY") || (got.DryRunAllow != nil) != (action == "ALLOW") {
			t.Errorf("%s: %+v", action, got)
		}
	}
}

// TestNothingBrokenOpens compiles what config-watcher refuses.
func TestNothingBrokenOpens(t *testing.T) {
	for _, rule := range []string{
		`{from: [{source: {ipBlocks: [x]}}]}`, `{from: [{source: {ipBlocks: ["fe80::1%eth0"]}}]}`, `{to: [{operation: {ports: ["99999"]}}]}`,
		`{to: [{operation: {paths: ["/{**}/{*}"]}}]}`, `{to: [{operation: {paths: ["/{*}x"]}}]}`,
		`{when: [{key: destination.user, values: [x]}]}`,
		`{when: [{key: "request.auth.claims", values: [x]}]}`, `{when: [{}]}`,
	} {
		for action, want := range map[string]authz.Outcome{"ALLOW": authz.Denied, "DENY": authz.Denied, "CUSTOM": authz.Asks} {
			p := policy(t, "p", "{action: "+action+", rules: ["+rule+"]}")
			for _, tcp := range []bool{false, true} {
				r := base()
				r.TCP = tcp
				if got := authz.Compile([]authz.Policy{p}, options).Decide(r); got.Outcome != want {
					t.Errorf("%s %s, TCP %v: %v", action, rule, tcp, got.Outcome)
				}
			}
		}
	}
	closed := authz.Policy{Namespace: "foo", Name: "p", Closed: true}
	unknown := authz.Policy{Namespace: "foo", Name: "p", Spec: &security.AuthorizationPolicy{Action: 9, Rules: []*security.Rule{{}}}}
	null := authz.Policy{Namespace: "foo", Name: "p", Spec: &security.AuthorizationPolicy{Rules: []*security.Rule{nil}}}
	for _, p := range []authz.Policy{closed, unknown, null} {
		if got := authz.Compile([]authz.Policy{p}, options).Decide(base()); got.Outcome != authz.Denied {
			t.Errorf("%+v: %v", p, got.Outcome)
		}
	}
}

func TestExplain(t *testing.T) {
	set := authz.Compile([]authz.Policy{policy(t, "p", `{action: DENY, rules: [
		{from: [{source: {namespaces: [x, "y*"]}}]},
		{from: [{source: {namespaces: [bar], notIpBlocks: [10.1.2.3]}}, {source: {requestPrincipals: [a/b]}}]},
		{to: [{operation: {paths: [/admin]}}]},
		{when: [{key: "request.headers[x-no]", values: [v]}]}]}`)}, options)
	want := []string{
		`namespaces: "spiffe://td1/ns/bar/sa/client" is not "x" or "y*"`,
		`none of from matches: from[0]: ipBlocks: 10.1.2.3 is "10.1.2.3"; ` +
			`from[1]: requestPrincipals: "https://issuer.example.com/alice" is not "a/b"`,
		`paths: "/users/7" is not "/admin"`,
		`request.headers[x-no]: the request, without it, is not "v"`,
	}
	for i, f := range set.Explain(base()) {
		if f.Matches || f.Why != want[i] || f.Action != authz.Deny {
			t.Errorf("rule %d: %+v, want %s", i, f, want[i])
		}
	}
}

func TestApplies(t *testing.T) {
	gateway := map[string]string{authz.GatewayLabel: "gw", "app": "a"}
	target := `targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]`
	for _, tc := range []struct {
		namespace, spec string
		labels          map[string]string
		want            bool
	}{
		{"foo", "{}", nil, true},
		{"root", "{}", nil, true},
		{"bar", "{}", nil, false},
		{"foo", "{selector: {matchLabels: {app: a}}}", map[string]string{"app": "a", "v": "1"}, true},
		{"root", "{selector: {matchLabels: {app: a}}}", map[string]string{"app": "b"}, false},
		{"foo", "{selector: {matchLabels: {app: \"\"}}}", nil, false},
		{"foo", "{" + target + "}", gateway, true},
		{"root", "{" + target + "}", gateway, false},
		{"foo", "{" + target + "}", map[string]string{"app": "a"}, false},
		{"foo", "{targetRefs: [{kind: Service, name: gw}]}", gateway, false},
		{"foo", "{selector: {matchLabels: {app: a}}}", gateway, true},
	} {
		w := authz.Workload{Namespace: "foo", Labels: tc.labels, RootNamespace: "root"}
		if got := w.Applies(tc.namespace, policy(t, "p", tc.spec).Spec); got != tc.want {
			t.Errorf("%s %s to %v: %v", tc.namespace, tc.spec, tc.labels, got)
		}
	}
}

// TestHeadersThatDifferInCase: they are one header, of which the values have an order.
func TestHeadersThatDifferInCase(t *testing.T) {
	m := authz.Match{Field: authz.Header, Key: []string{"x-a"}, Values: []authz.Value{{String: authz.StringMatch{Text: "1,2,3"}}}}
	for range 50 {
		if !m.Matches(&authz.Request{Headers: map[string][]string{"X-A": {"1"}, "X-a": {"2"}, "x-a": {"3"}}}) {
			t.Fatal("the values are joined in another order")
		}
	}
}
