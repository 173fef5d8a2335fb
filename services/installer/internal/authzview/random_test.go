package authzview_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/services/installer/internal/authzview"
)

// TestCheckIsDecide compares answers about random policies with what package authz decides by those of the workload.
func TestCheckIsDecide(t *testing.T) {
	of := func(r *rand.Rand, list ...string) []string {
		if r.IntN(2) == 0 {
			return nil
		}
		return []string{list[r.IntN(len(list))]}
	}
	seen := map[string]int{}
	for seed := range 60 {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		var text strings.Builder
		text.WriteString("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'trustDomain: td'}\n")
		for _, name := range []string{"a", "b"} {
			fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %[1]s, namespace: shop, labels: {app: %[1]s}}\nspec: "+
				"{serviceAccountName: %[1]s}\n", name)
		}
		var policies []authz.Policy
		for i := range 1 + r.IntN(5) {
			spec := &security.AuthorizationPolicy{Action: security.AuthorizationPolicy_Action(r.IntN(2))}
			if r.IntN(2) == 0 {
				spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "b"}}
			}
			for range 1 + r.IntN(2) {
				rule := &security.Rule{}
				source := &security.Source{Principals: of(r, "td/ns/shop/sa/a", "td/*", "*/sa/c"), Namespaces: of(r, "shop")}
				if source.Principals != nil || source.Namespaces != nil {
					rule.From = []*security.Rule_From{{Source: source}}
				}
				rule.To = []*security.Rule_To{{Operation: &security.Operation{Paths: []string{"/x*"}, NotMethods: of(r, "GET", "POST")}}}
				if v := of(r, "1", "*"); v != nil {
					rule.When = []*security.Condition{{Key: "request.headers[x]", Values: v}}
				}
				spec.Rules = append(spec.Rules, rule)
			}
			p := authz.Policy{Namespace: []string{"shop", "istio-system", "other"}[r.IntN(3)], Name: fmt.Sprint("p", i), Spec: spec}
			policies = append(policies, p)
			js, err := protojson.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&text, "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: %s, namespace: %s}\nspec: %s\n",
				p.Name, p.Namespace, js)
		}
		m := load(t, text.String())
		for range 40 {
			to := []string{"a", "b"}[r.IntN(2)]
			from, principal := "outside", ""
			if r.IntN(3) > 0 {
				account := []string{"a", "c"}[r.IntN(2)]
				from, principal = "sa/"+account+".shop", "spiffe://td/ns/shop/sa/"+account
			}
			said := authzview.Request{Method: []string{"GET", "PUT"}[r.IntN(2)], Path: []string{"/x/1", "/y"}[r.IntN(2)]}
			if r.IntN(2) == 0 {
				said.Headers = map[string][]string{"X": {"1"}}
			}
			var mine []authz.Policy
			for _, p := range policies {
				if p.Namespace != "other" && (p.Spec.GetSelector() == nil || to == "b") {
					mine = append(mine, p)
				}
			}
			want := authz.Compile(mine, authz.Options{TrustDomain: "td"}).Decide(authz.Request{
				Principal: principal, Method: said.Method, Path: said.Path, Headers: said.Headers,
			})
			got := check(t, m, from, to, said).Results[0]
			rule := ""
			if want.Rule != nil {
				rule = want.Rule.Name
			}
			if got.Outcome != want.Outcome.String() || got.Action != want.Action || got.RuleName != rule {
				t.Fatalf("seed %d: %+v, want %+v:\n%s", seed, got, want, text.String())
			}
			seen[got.Outcome+" "+got.Action]++
		}
	}
	for _, outcome := range []string{"allowed ", "allowed ALLOW", "denied ALLOW", "denied DENY"} {
		if seen[outcome] < 20 {
			t.Errorf("too few requests are %s: %v", outcome, seen)
		}
	}
}
