package matcher_test

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/translate/matcher"
)

func TestHeadersThatStandForClaims(t *testing.T) {
	for header, want := range map[string][]string{
		"@request.auth.claims.group":    {"group"},
		"@request.auth.claims.a.b":      {"a", "b"},
		"@Request.Auth.Claims[a][b.c]":  {"a", "b.c"},
		"@request.auth.claims":          nil,
		"@request.auth.claims.":         nil,
		"@request.auth.claims[]":        nil,
		"@request.auth.claims-group":    nil,
		"request.auth.claims.group":     nil,
		"x-@request.auth.claims.groups": nil,
	} {
		got, ok := matcher.ClaimOf(header)
		if !slices.Equal(got, want) || ok != (want != nil) {
			t.Errorf("%s: %q, %v", header, got, ok)
		}
	}
}

func TestClaimsThatMustBeAbsent(t *testing.T) {
	for _, in := range []*networking.StringMatch{{}, {MatchType: &networking.StringMatch_Exact{Exact: "a"}}} {
		for _, not := range []bool{false, true} {
			m, err := matcher.ClaimMatch([]string{"groups"}, in, not)
			if err != nil || m.GetInvert() != not || m.GetFilter() != matcher.JWTFilter || len(m.GetPath()) != 2 {
				t.Errorf("%v, not %v: %v, %v", in, not, m, err)
			}
		}
	}
}
