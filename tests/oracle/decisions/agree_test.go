package decisions

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	api "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/authz/authztest"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/gate"
	"fairlead.dev/tests/internal/policygen"
)

// TestEnvoyDecidesAsAuthzAndTheReference asks Envoy, package authz, by which `fairlead authz` answers, and a reference
// about random requests to random policies. Tokens are good ones here, or there is none.
func TestEnvoyDecidesAsAuthzAndTheReference(t *testing.T) {
	b := newOwn(t)
	m := Mesh{TrustDomain: policygen.TrustDomain, Aliases: []string{policygen.OldDomain}, Providers: drawnProviders}
	paths := policygen.Set{Name: "paths", Namespace: "paths", Address: policygen.AddressOf(5000), Labels: map[string]string{"set": "paths"}}
	m.Sets = append(m.Sets, paths)
	for n := range *drawn {
		m.Sets = append(m.Sets, withoutTokens(policygen.Draw(*seed, n, b.keys), b.keys, t))
	}
	b.serveProviders(t, m)
	ours := startFairlead(t, b.programs, m)
	sides := [gate.Sides]side{ours.beside, ours.within}

	// The path that filters see is asked for where there is no policy.
	seen := map[string]string{}
	plain := func(path string) policygen.Request {
		return policygen.Request{Connection: policygen.Connection{Source: "127.0.0.2", Remote: "192.0.2.1", Port: httpPort}, Method: "GET",
			Host: "host", Path: path}
	}
	requests := func(s policygen.Set) []policygen.Request {
		return slices.DeleteFunc(s.Requests(b.seed, b.perSet), func(r policygen.Request) bool { return !usual(r) })
	}
	b.ask(t, m.Sets[:1], sides, func(policygen.Set) (out []policygen.Request) {
		for _, s := range m.Sets[1:] {
			for _, r := range requests(s) {
				if !r.TCP {
					out = append(out, plain(r.Path))
				}
			}
		}
		return out
	}, func(a Answered) {
		if path, ok := strings.CutPrefix(strings.Split(a.Answers[0].Seen, " ")[0], "path="); ok {
			seen[a.Request.Path] = path
		}
	})

	options := authz.Options{TrustDomain: m.TrustDomain, Aliases: m.Aliases}
	outcomes, referred := map[string]int{}, 0
	b.ask(t, m.Sets[1:], sides, requests, func(a Answered) {
		path, known := seen[a.Request.Path]
		if !a.Request.TCP && !known {
			return // Envoy refuses such a path
		}
		r, err := requestOf(a.Set, a.Request, path)
		testkit.NoError(t, err)
		policies := enforced(a.Set)
		want := authz.Compile(policies, options).Decide(r).Outcome.String()
		for _, got := range a.Answers {
			said := map[int]string{200: "allowed", 403: "denied", gate.Connected: "allowed", gate.Refused: "denied"}[got.Status]
			if said != want {
				t.Errorf("%s: %+v: Envoy answers %s, authz %s\n%+v\n%v", a.Set.Name, a.Request, got, want, r, a.Set.Objects)
			}
		}
		outcomes[want]++
		if !plainText(policies, r) {
			return
		}
		referred++
		if got := (authztest.Reference{Policies: policies, Options: options}).Decide(r); got != want {
			t.Errorf("%s: %+v: authz %s, the reference %s\n%v", a.Set.Name, r, want, got, a.Set.Objects)
		}
	})
	if t.Logf("%v, %d of them also by the reference", outcomes, referred); outcomes["allowed"] < *drawn || outcomes["denied"] < *drawn ||
		referred < 2**drawn {
		t.Error("too few to say anything")
	}
}

// withoutTokens is a set whose workload takes good tokens of all issuers, whatever was drawn about tokens.
func withoutTokens(s policygen.Set, keys *policygen.Keys, t *testing.T) policygen.Set {
	t.Helper()
	s.Objects = slices.DeleteFunc(slices.Clone(s.Objects), func(o policygen.Object) bool { return o.Authentication() != nil })
	all := &api.RequestAuthentication{}
	for _, issuer := range []string{"https://issuer-a.example", "https://issuer-b.example/realm", "issuer-c"} {
		jwks := testkit.Must(keys.JWKS(issuer))(t)
		all.JwtRules = append(all.JwtRules, &api.JWTRule{Issuer: issuer, Jwks: jwks, ForwardOriginalToken: true})
	}
	s.Objects = append(s.Objects, policygen.Object{Kind: policygen.RequestAuthentication, Namespace: s.Namespace, Name: "all", Spec: all})
	return s
}

// usual reports whether a request has at most one token, a good one where tokens usually are, names the answer of
// providers at most once, and comes by nobody who is no address.
func usual(r policygen.Request) bool {
	asked := 0
	for _, h := range r.Headers {
		if h.Name == askHeader {
			asked++
		}
		if _, err := netip.ParseAddr(h.Value); h.Name == "x-forwarded-for" && err != nil {
			return false
		}
	}
	return asked < 2 && (len(r.Tokens) == 0 || len(r.Tokens) == 1 && r.Tokens[0].Fault == "" && r.Tokens[0].Header == "Authorization")
}

// enforced are the policies of a set that apply to its workload and are not only tried.
func enforced(s policygen.Set) (out []authz.Policy) {
	w := authz.Workload{Namespace: s.Namespace, Labels: s.Labels, RootNamespace: policygen.RootNamespace}
	for _, o := range s.Objects {
		if p := o.Policy(); p != nil && !o.DryRun() && w.Applies(o.Namespace, p) {
			out = append(out, authz.Policy{Namespace: o.Namespace, Name: o.Name, Spec: p})
		}
	}
	return out
}

// requestOf is the request as the filters of the set's workload see it, with the path that they see.
func requestOf(s policygen.Set, q policygen.Request, path string) (authz.Request, error) {
	r := authz.Request{
		TCP: q.TCP, SourceIP: netip.MustParseAddr(q.Source), RemoteIP: netip.MustParseAddr(q.Remote), DestinationIP: s.Address,
		Port: uint32(q.Port), Answers: map[string]authz.Answer{policygen.Missing: authz.Refuses},
	}
	if q.Caller != "" {
		r.Principal, r.SNI = "spiffe://"+q.Caller, strings.ToLower(q.SNI) // as Envoy reads it
	}
	answer := authz.Refuses
	if q.TCP {
		if q.Port%2 == 0 {
			answer = authz.Allows
		}
		r.Answers[policygen.GRPCProvider], r.Answers[policygen.LongerProvider] = answer, answer
		r.Answers[policygen.HTTPProvider] = authz.Allows // it is not asked
		return r, nil
	}
	r.Method, r.Host, r.Path, r.Headers = q.Method, q.Host, path, map[string][]string{}
	for _, h := range q.Headers {
		if h.Name == "x-forwarded-for" && !s.Gateway { // gateways know the caller themselves
			r.RemoteIP = netip.MustParseAddr(h.Value)
		}
		if h.Name == askHeader && h.Value == "allow" {
			answer = authz.Allows
		}
		r.Headers[h.Name] = append(r.Headers[h.Name], strings.TrimSpace(h.Value))
	}
	for _, p := range drawnProviders {
		r.Answers[p.Name] = answer
	}
	for _, token := range q.Tokens {
		raw, err := json.Marshal(token.Claims)
		if err == nil {
			err = json.Unmarshal(raw, &r.Claims)
		}
		if err != nil {
			return r, err
		}
		r.Claims = authz.SplitClaims(r.Claims)
	}
	return r, nil
}

// plainText reports whether the API's text says what the policies mean for the request: it speaks of identities of
// Istio's form alone, of issuers and subjects on both sides of a slash, of wildcards at an end, and of no metadata.
func plainText(policies []authz.Policy, r authz.Request) bool {
	if parts := strings.Split(r.Principal, "/"); r.Principal != "" && len(parts) != 7 {
		return false
	}
	clear := func(list ...[]string) bool {
		return !slices.ContainsFunc(slices.Concat(list...), func(v string) bool {
			return v != "*" && (!strings.Contains(v, "/") || strings.HasPrefix(v, "spiffe://"))
		})
	}
	ends := func(list ...[]string) bool {
		return !slices.ContainsFunc(slices.Concat(list...), func(v string) bool {
			return strings.Contains(strings.TrimSuffix(strings.TrimPrefix(v, "*"), "*"), "*")
		})
	}
	for _, p := range policies {
		for _, rule := range p.Spec.GetRules() {
			for _, f := range rule.GetFrom() {
				s := f.GetSource()
				if !clear(s.GetPrincipals(), s.GetNotPrincipals(), s.GetRequestPrincipals(), s.GetNotRequestPrincipals()) ||
					!ends(s.GetNamespaces(), s.GetNotNamespaces()) {
					return false
				}
			}
			for _, w := range rule.GetWhen() {
				if strings.HasPrefix(w.GetKey(), "experimental.") || w.GetKey() == "source.namespace" && !ends(w.Values, w.NotValues) ||
					strings.HasSuffix(w.GetKey(), ".principal") && !clear(w.Values, w.NotValues) {
					return false
				}
			}
		}
	}
	return true
}
