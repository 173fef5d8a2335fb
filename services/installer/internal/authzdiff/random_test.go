package authzdiff_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/services/installer/internal/authzdiff"
)

// draw makes random policies and requests of a few values, so that they meet.
type draw struct{ *rand.Rand }

func (d draw) of(list ...string) string { return list[d.IntN(len(list))] }

func (d draw) some(chance float64, list ...string) (out []string) {
	if d.Float64() > chance {
		return nil
	}
	for range 1 + d.IntN(3) {
		out = append(out, d.of(list...))
	}
	return out
}

var (
	accounts = []string{"a", "b", "web", "webby", "ops"}
	spaces   = []string{"shop", "ops", "shop-dev", "x"}
	domains  = []string{"td", "old", "other"}
)

func (d draw) identity() string {
	return fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", d.of(domains...), d.of(spaces...), d.of(accounts...))
}

func (d draw) policy(name string) authz.Policy {
	spec := &security.AuthorizationPolicy{Action: security.AuthorizationPolicy_Action(d.IntN(2))}
	switch d.IntN(10) {
	case 0:
		spec.Action = security.AuthorizationPolicy_CUSTOM
		spec.ActionDetail = &security.AuthorizationPolicy_Provider{
			Provider: &security.AuthorizationPolicy_ExtensionProvider{Name: d.of("opa", "ext")},
		}
	case 1:
		spec.Action = security.AuthorizationPolicy_AUDIT
	}
	for range d.IntN(4) {
		spec.Rules = append(spec.Rules, d.rule())
	}
	return authz.Policy{Namespace: d.of("shop", "root"), Name: name, Spec: spec, DryRun: d.IntN(12) == 0, Closed: d.IntN(40) == 0}
}

func (d draw) rule() *security.Rule {
	r := &security.Rule{}
	names := []string{"td/ns/shop/sa/web", "cluster.local/ns/ops/sa/ops", "*/sa/web", "*b", "td/ns/shop*", "*", "old/ns/x/sa/a", "td/ns/*"}
	tokens := []string{"https://i/alice", "https://i/*", "*/bob", "*", "https://i*", "*li*ce", "https://j/alice"}
	blocks := []string{"10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "fd00::/8", "0.0.0.0/0"}
	for range d.IntN(3) {
		r.From = append(r.From, &security.Rule_From{Source: &security.Source{
			Principals: d.some(.4, names...), NotPrincipals: d.some(.1, names...),
			RequestPrincipals: d.some(.2, tokens...), NotRequestPrincipals: d.some(.1, tokens...),
			Namespaces: d.some(.2, "shop", "shop*", "*op*", "x"), NotNamespaces: d.some(.1, "ops", "shop-*"),
			ServiceAccounts: d.some(.1, "web", "ops/a"), TrustDomains: d.some(.1, "td", "other", "*"),
			IpBlocks: d.some(.1, blocks...), NotIpBlocks: d.some(.1, blocks...), RemoteIpBlocks: d.some(.1, blocks...),
		}})
	}
	paths := []string{"/", "/a", "/a/*", "*/b", "/a/{*}/b", "/a/{**}", "/{*}/b", "/a*", "*b"}
	hosts := []string{"a.com", "*.com", "A.com:80", "a.*", "*"}
	for range d.IntN(3) {
		r.To = append(r.To, &security.Rule_To{Operation: &security.Operation{
			Hosts: d.some(.2, hosts...), NotHosts: d.some(.1, hosts...), Methods: d.some(.3, "GET", "P*", "*T", "DELETE"),
			NotMethods: d.some(.1, "GET"), Paths: d.some(.4, paths...), NotPaths: d.some(.2, paths...), Ports: d.some(.2, "80", "8080"),
			NotPorts: d.some(.1, "80"),
		}})
	}
	for range d.IntN(3) {
		key := d.of("request.headers[x]", "request.headers[y]", "request.auth.claims[groups]", "request.auth.claims[a][b]", "connection.sni",
			"request.auth.audiences", "source.namespace", "destination.port", "experimental.envoy.filters.f[k]", "request.headers[:path]",
			"request.auth.claims[iss]", "request.headers[host]")
		values := map[string][]string{"source.namespace": {"shop", "x*"}, "destination.port": {"80", "443"}}[key]
		if values == nil {
			values = []string{"one", "two", "o*", "*o", "*", "/a?*", "[one]", "https://i", "a.com"}
		}
		r.When = append(r.When, &security.Condition{Key: key, Values: d.some(.8, values...), NotValues: d.some(.3, values...)})
	}
	return r
}

func (d draw) claim() any {
	text := func() string { return d.of("one", "two", "three", "o", "", "https://i", "zoo") }
	switch d.IntN(3) {
	case 0:
		return text()
	case 1:
		return []any{text(), text()}
	}
	return []any{text()}
}

func (d draw) request() authz.Request {
	r := authz.Request{
		TCP: d.IntN(6) == 0, SNI: d.of("", "one", "a.com", "oo"), Port: []uint32{80, 8080, 443, 9}[d.IntN(4)],
		SourceIP: netip.MustParseAddr(d.of("10.1.2.3", "10.1.9.9", "10.9.9.9", "11.0.0.1", "fd00::1", "2001:db8::1")),
		RemoteIP: netip.MustParseAddr(d.of("10.1.2.3", "10.1.9.9", "10.9.9.9", "11.0.0.1", "fd00::1", "2001:db8::1")),
		Method:   "GET",
	}
	if d.IntN(5) > 0 {
		r.Principal = d.identity()
	}
	if r.TCP {
		return r
	}
	r.Method, r.Host = d.of("GET", "POST", "PUT", "DELETE", "PATCH"), d.of("a.com", "A.COM:80", "b.com", "a.org", "a.com:80", "")
	r.Path = d.of("/", "/a", "/a/b", "/a/x/b", "/a/x/y/b", "/b", "/a/b?q=1", "/a?x", "/x/b", "/ab", "/a/#b")
	r.Headers, r.Metadata = map[string][]string{}, map[string]map[string]any{"envoy.filters.f": {}}
	for _, name := range []string{"x", "Y"} {
		if d.IntN(3) > 0 {
			r.Headers[name] = d.some(.9, "one", "two", "o", "", "zoo")
		}
	}
	if d.IntN(3) > 0 {
		r.Metadata["envoy.filters.f"]["k"] = d.claim()
	}
	if d.IntN(3) > 0 {
		r.Claims = map[string]any{"iss": d.of("https://i", "https://j", "one"), "sub": d.of("alice", "bob", ""), "aud": d.claim()}
		if d.IntN(2) > 0 {
			r.Claims["groups"] = d.claim()
		}
		if d.IntN(2) > 0 {
			r.Claims["a"] = map[string]any{"b": d.claim()}
		}
	}
	return r
}

// sets returns a set and one that is some steps away from it.
func (d draw) sets() (before, after *authz.Set) {
	var list []authz.Policy
	for i := range 1 + d.IntN(4) {
		list = append(list, d.policy(fmt.Sprint("p", i)))
	}
	o := authz.Options{TrustDomain: "td", Aliases: []string{"old"}}
	before = authz.Compile(list, o)
	for range 1 + d.IntN(2) {
		switch i := d.IntN(len(list)); d.IntN(4) {
		case 0:
			list = append(list[:i:i], list[i+1:]...)
		case 1:
			list = append(list[:len(list):len(list)], d.policy("new"))
		default:
			list = append(append(list[:i:i], d.policy(list[i].Name)), list[i+1:]...)
		}
		if len(list) == 0 {
			break
		}
	}
	return before, authz.Compile(list, o)
}

// TestNoChangeIsMissed compares 10,000 random requests of each pair of random sets with what Compare says.
func TestNoChangeIsMissed(t *testing.T) {
	const rounds = 60
	changed, pairs := 0, 0
	for seed := range rounds {
		d := draw{rand.New(rand.NewPCG(uint64(seed), 25))}
		before, after := d.sets()
		identities := []string{d.identity(), d.identity(), d.identity()}
		type verdict struct {
			anybody bool
			callers map[string]bool
			others  bool
		}
		found := map[string]verdict{}
		for _, tcp := range []bool{false, true} {
			result := authzdiff.Compare(t.Context(), before, after, authzdiff.Options{TCP: tcp, Identities: identities})
			if len(result.Bounded) > 0 {
				t.Fatalf("seed %d: %v", seed, result.Bounded)
			}
			for _, c := range result.Changes {
				if a, b := before.Decide(c.Request), after.Decide(c.Request); !authzdiff.Differ(a, b) {
					t.Fatalf("seed %d: no change of %+v", seed, c)
				}
				k := fmt.Sprint(tcp, authzdiff.Key(c.Old), " > ", authzdiff.Key(c.New))
				v, ok := found[k]
				if !ok {
					v.callers = map[string]bool{}
				}
				v.anybody, v.others = v.anybody || c.Anybody, v.others || c.Others != ""
				for _, who := range c.Callers {
					v.callers[who] = true
					r := c.Request
					r.Principal = who
					if a, b := before.Decide(r), after.Decide(r); k != fmt.Sprint(tcp, authzdiff.Key(a), " > ", authzdiff.Key(b)) {
						t.Fatalf("seed %d: the request does not represent those of %q: %+v", seed, who, c)
					}
				}
				found[k] = v
				pairs++
			}
		}
		for range 10_000 {
			r := d.request()
			if d.IntN(3) == 0 {
				r.Principal = identities[d.IntN(3)]
			}
			a, b := before.Decide(r), after.Decide(r)
			if !authzdiff.Differ(a, b) {
				continue
			}
			changed++
			k := fmt.Sprint(r.TCP, authzdiff.Key(a), " > ", authzdiff.Key(b))
			v, ok := found[k]
			known := r.Principal == "" || strings.Contains(strings.Join(identities, " ")+" ", r.Principal+" ")
			switch {
			case !ok:
				t.Fatalf("seed %d: a change is missed: %s: %+v", seed, k, r)
			case v.anybody || v.callers[r.Principal] || !known && (v.others || len(v.callers) > 0):
			default:
				t.Fatalf("seed %d: %s is missing among the callers of %s: %+v", seed, r.Principal, k, v)
			}
		}
	}
	if changed < 100 || pairs < rounds {
		t.Errorf("%d changed requests and %d changes are too few to say anything", changed, pairs)
	}
}
