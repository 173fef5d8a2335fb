package authzdiff_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/services/installer/internal/authzdiff"
)

// many are 100 policies of 10 rules; extra changes the last one.
func many(extra string) *authz.Set {
	var list []authz.Policy
	for i := range 100 {
		spec := &security.AuthorizationPolicy{}
		for j := range 10 {
			path := fmt.Sprintf("/api/%d/%d/*", i, j)
			if i == 99 && j == 9 {
				path += extra
			}
			spec.Rules = append(spec.Rules, &security.Rule{
				From: []*security.Rule_From{{Source: &security.Source{Principals: []string{fmt.Sprintf("td/ns/team-%d/sa/app-%d", i, j), fmt.Sprintf("td/ns/%d/*", i)}}}},
				To:   []*security.Rule_To{{Operation: &security.Operation{Methods: []string{"GET", "POST"}, Paths: []string{path}}}},
			})
		}
		list = append(list, authz.Policy{Namespace: "shop", Name: fmt.Sprint("p", i), Spec: spec})
	}
	return authz.Compile(list, authz.Options{TrustDomain: "td"})
}

func BenchmarkCompareOfAThousandRules(b *testing.B) {
	before, after := many(""), many("x")
	for b.Loop() {
		if r := authzdiff.Compare(b.Context(), before, after, authzdiff.Options{}); len(r.Changes) == 0 || len(r.Bounded) > 0 {
			b.Fatalf("%d changes, %v", len(r.Changes), r.Bounded)
		}
	}
}

func TestCompareEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := authzdiff.Compare(ctx, many(""), many("x"), authzdiff.Options{}); len(r.Changes) > 0 ||
		!slices.Contains(r.Bounded, "the comparison was interrupted") {
		t.Errorf("%d changes, %v", len(r.Changes), r.Bounded)
	}
}
