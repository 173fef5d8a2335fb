package authz_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/authz/authztest"
)

// Values of random policies, which random requests have too, or nearly.
var (
	identities = []string{"td1/ns/a/sa/x", "td1/ns/ab/sa/y", "td2/ns/a/sa/x", "td3/ns/b/sa/xy", "td1/ns/b/sa/sa", "td3/ns/sa/sa/a"}
	values     = map[string][]string{
		"principals": append([]string{"*", "td1/ns/a/*", "*/sa/x", "*/ns/a/sa/x", "cluster.local/ns/a/sa/x", "td3/*", "*y"}, identities...),
		"requests": {"*", "iss/sub", "iss/*", "iss/s*", "*/sub", "*b", "is*", "other/sub",
			"https://i.io/u/sub", "*.io/u/sub", "https://i.io/u/*"},
		"namespaces":      {"*", "a", "b", "ab", "a*", "*b", "*a", "sa"},
		"serviceAccounts": {"x", "a/x", "b/xy", "ab/y", "b/sa", "foo/x"},
		"trustDomains":    {"*", "td1", "td2", "td3", "td*", "*3", "td"},
		"blocks":          {"10.0.0.0/8", "10.1.0.1", "0.0.0.0/0", "192.168.0.0/16", "::/0", "fd00::1"},
		"hosts":           {"*", "a.com", "A.com:80", "*.COM", "a.com:*", "b.com"},
		"methods":         {"GET", "POST", "*", "P*", "get"},
		"paths": {"*", "/", "/a", "/a*", "*/b", "/a/b", "/a/{*}", "/a/{**}", "/{*}/b", "/a/{**}/b", "/a/{*}/{**}",
			"/a.b", "/{*}", "/a/{*}/"},
		"ports": {"80", "443", "8080"},
		"texts": {"*", "v", "v*", "*w", "v,w", "w", "vw"},
	}
	keys = map[string]string{
		"source.ip": "blocks", "remote.ip": "blocks", "destination.ip": "blocks", "destination.port": "ports", "source.namespace": "namespaces",
		"source.principal": "principals", "source.serviceAccount": "serviceAccounts", "source.trustDomain": "trustDomains",
		"connection.sni":         "hosts",
		"request.auth.principal": "requests", "request.auth.audiences": "texts", "request.auth.presenter": "texts",
		"request.auth.claims[c]": "texts", "request.auth.claims[c][d]": "texts", "request.headers[x-h]": "texts",
	}
	keyNames = []string{"source.ip", "remote.ip", "destination.ip", "destination.port", "source.namespace", "source.principal",
		"source.serviceAccount", "source.trustDomain", "connection.sni", "request.auth.principal", "request.auth.audiences",
		"request.auth.presenter", "request.auth.claims[c]", "request.auth.claims[c][d]", "request.headers[x-h]"}
	addresses = []string{"10.1.0.1", "10.2.0.1", "192.168.1.1", "1.2.3.4", "fd00::1"}
)

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// some returns a list of values with probability 1/n, else nil.
func some(r *rand.Rand, n int, kind string) (out []string) {
	if r.IntN(n) == 0 {
		for range 1 + r.IntN(3) {
			out = append(out, pick(r, values[kind]))
		}
	}
	return out
}

func randomRule(r *rand.Rand) *security.Rule {
	rule := &security.Rule{}
	for range r.IntN(3) {
		rule.From = append(rule.From, &security.Rule_From{Source: &security.Source{
			Principals: some(r, 6, "principals"), NotPrincipals: some(r, 10, "principals"),
			RequestPrincipals: some(r, 6, "requests"), NotRequestPrincipals: some(r, 10, "requests"),
			Namespaces: some(r, 6, "namespaces"), NotNamespaces: some(r, 10, "namespaces"),
			ServiceAccounts: some(r, 10, "serviceAccounts"), NotServiceAccounts: some(r, 15, "serviceAccounts"),
			TrustDomains: some(r, 10, "trustDomains"), NotTrustDomains: some(r, 15, "trustDomains"),
			IpBlocks: some(r, 10, "blocks"), NotIpBlocks: some(r, 15, "blocks"),
			RemoteIpBlocks: some(r, 10, "blocks"), NotRemoteIpBlocks: some(r, 15, "blocks"),
		}})
	}
	for range r.IntN(3) {
		rule.To = append(rule.To, &security.Rule_To{Operation: &security.Operation{
			Hosts: some(r, 6, "hosts"), NotHosts: some(r, 10, "hosts"), Ports: some(r, 6, "ports"), NotPorts: some(r, 10, "ports"),
			Methods: some(r, 6, "methods"), NotMethods: some(r, 10, "methods"), Paths: some(r, 3, "paths"), NotPaths: some(r, 6, "paths"),
		}})
	}
	for range r.IntN(3) {
		key := pick(r, keyNames)
		w := &security.Condition{Key: key, Values: some(r, 2, keys[key]), NotValues: some(r, 3, keys[key])}
		if len(w.Values)+len(w.NotValues) > 0 {
			rule.When = append(rule.When, w)
		}
	}
	return rule
}

func randomPolicies(r *rand.Rand) (out []authz.Policy) {
	for i := range r.IntN(5) {
		spec := &security.AuthorizationPolicy{Action: security.AuthorizationPolicy_Action(r.IntN(4))}
		if spec.Action == security.AuthorizationPolicy_CUSTOM {
			provider := &security.AuthorizationPolicy_ExtensionProvider{Name: pick(r, []string{"p", "q"})}
			spec.ActionDetail = &security.AuthorizationPolicy_Provider{Provider: provider}
		}
		for range r.IntN(3) {
			spec.Rules = append(spec.Rules, randomRule(r))
		}
		out = append(out, authz.Policy{Namespace: pick(r, []string{"foo", "a"}), Name: fmt.Sprint("p", i), Spec: spec})
	}
	return out
}

func randomRequest(r *rand.Rand) authz.Request {
	address := func() netip.Addr { return netip.MustParseAddr(pick(r, addresses)) }
	req := authz.Request{
		TCP: r.IntN(4) == 0, SourceIP: address(), RemoteIP: address(), DestinationIP: address(), Port: pick(r, []uint32{80, 443, 9}),
		SNI: pick(r, []string{"", "a.com", "b.com"}), Host: pick(r, []string{"a.com", "A.COM:80", "x.com", "a.com:81"}),
		Method:  pick(r, []string{"GET", "POST", "PUT"}),
		Path:    pick(r, []string{"/", "/a", "/a/b", "/a/b/c", "/a/", "/a//b", "/x/b", "/a.b", "/aXb", "/a?x=/b", "/x/y/b", "/a/b/"}),
		Headers: map[string][]string{}, Answers: map[string]authz.Answer{},
	}
	if r.IntN(4) > 0 {
		req.Principal = "spiffe://" + pick(r, identities)
	}
	if r.IntN(3) > 0 {
		req.Headers["x-h"] = pick(r, [][]string{{"v"}, {"w"}, {"v", "w"}, {"v,w"}, {""}, {"x"}})
	}
	if r.IntN(3) > 0 {
		anything := func() any {
			return pick(r, []any{"v", "w", []any{"v", "x"}, []any{}, 1.0, map[string]any{"d": "v"}, map[string]any{"d": []any{"w"}}, nil})
		}
		req.Claims = map[string]any{"iss": pick(r, []string{"iss", "https://i.io/u", "o"}), "aud": anything(), "azp": anything(), "c": anything()}
		if r.IntN(5) > 0 {
			req.Claims["sub"] = pick(r, []string{"sub", "s", "x"})
		}
	}
	for _, p := range []string{"p", "q"} {
		req.Answers[p] = pick(r, []authz.Answer{authz.Unknown, authz.Allows, authz.Refuses})
	}
	return req
}

func TestDecideAsTheReference(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 25))
		policies := randomPolicies(r)
		set := authz.Compile(policies, options)
		for range 40 {
			req := randomRequest(r)
			got, want := set.Decide(req), (authztest.Reference{Policies: policies, Options: options}).Decide(req)
			if outcomes[want]++; got.Outcome.String() != want {
				t.Fatalf("seed %d: %s, the reference says %s\n%+v\n%+v\n%v", seed, say(got), want, req, set.Explain(req), policies)
			}
		}
	}
	for _, o := range []string{"allowed", "denied", "asks"} {
		if outcomes[o] < 1000 {
			t.Errorf("%s: only %d requests", o, outcomes[o])
		}
	}
}

func TestExplainAsDecide(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 26))
		policies := randomPolicies(r)
		set, req := authz.Compile(policies, options), randomRequest(r)
		decided := set.Decide(req)
		for _, f := range set.Explain(req) {
			if f.Rule != nil && f.Matches != f.Rule.Matches(req) || f.Matches == (f.Why != "") ||
				f.Rule == decided.Rule && f.Rule != nil && !f.Matches {
				t.Fatalf("seed %d: %+v, %s", seed, f, say(decided))
			}
		}
	}
}

// TestConnectionsDecidesAsTheSet: of connections, and it does not change where a policy changes in what exists in HTTP
// alone. Sets that are equal decide alike.
func TestConnectionsDecidesAsTheSet(t *testing.T) {
	equal := 0
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 27))
		policies := randomPolicies(r)
		set := authz.Compile(policies, options)
		connections, other := set.Connections(), authz.Compile(randomPolicies(r), options).Connections()
		if !connections.Equal(authz.Compile(policies, options).Connections()) || !set.Equal(authz.Compile(policies, options)) {
			t.Fatalf("seed %d: rules of the same policies are not equal\n%v", seed, policies)
		}
		same := connections.Equal(other)
		if same {
			equal++
		}
		for range 20 {
			req := randomRequest(r)
			req.TCP = true
			got := connections.Decide(req)
			if want := set.Decide(req); say(got) != say(want) {
				t.Fatalf("seed %d: %s, want %s\n%+v\n%v", seed, say(got), say(want), req, policies)
			}
			if same && say(got) != say(other.Decide(req)) {
				t.Fatalf("seed %d: sets that are equal decide otherwise of %+v", seed, req)
			}
		}
	}
	if equal == 0 {
		t.Error("no two sets were equal")
	}
	rule := &security.Rule{To: []*security.Rule_To{{Operation: &security.Operation{Paths: []string{"/a"}, Ports: []string{"80"}}}}}
	policy := []authz.Policy{{Namespace: "a", Name: "p", Spec: &security.AuthorizationPolicy{
		Action: security.AuthorizationPolicy_DENY, Rules: []*security.Rule{rule},
	}}}
	before := authz.Compile(policy, options)
	rule.To[0].Operation.Paths = []string{"/b"}
	if after := authz.Compile(policy, options); before.Equal(after) || !before.Connections().Equal(after.Connections()) {
		t.Error("another path changes the rules for connections, or not those for requests")
	}
	rule.To[0].Operation.Ports = []string{"81"}
	if before.Connections().Equal(authz.Compile(policy, options).Connections()) {
		t.Error("another port does not change the rules for connections")
	}
}
