package matcher_test

import (
	"testing"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/translate/matcher"
)

func regex(expression string) *networking.StringMatch {
	return &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: expression}}
}

func TestEmptyMatchTestsPresence(t *testing.T) {
	for name, tc := range map[string]struct {
		in   *networking.StringMatch
		want bool
	}{
		"nil":          {nil, true},
		"empty":        {&networking.StringMatch{}, true},
		"star":         {regex("*"), true},
		"empty prefix": {&networking.StringMatch{MatchType: &networking.StringMatch_Prefix{}}, true},
		"empty exact":  {&networking.StringMatch{MatchType: &networking.StringMatch_Exact{}}, false},
		"dot star":     {regex(".*"), false},
	} {
		if got := matcher.IsPresence(tc.in); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestUnsetMatchIsAnError(t *testing.T) {
	if _, err := matcher.String(&networking.StringMatch{}); err == nil {
		t.Error("an unset match was converted")
	}
}

func TestWithoutHeader(t *testing.T) {
	m, err := matcher.WithoutHeader("x", regex("a+"))
	if err != nil {
		t.Fatal(err)
	}
	if !m.GetInvertMatch() || !m.GetTreatMissingHeaderAsEmpty() {
		t.Errorf("a request without the header must match: %v", m)
	}
	m, err = matcher.WithoutHeader("x", nil)
	if err != nil || !m.GetInvertMatch() || m.GetTreatMissingHeaderAsEmpty() {
		t.Errorf("Envoy refuses presence together with missing-as-empty: %v, %v", m, err)
	}
}

// A regular expression that counts as a literal matches only itself: a dot matches only a dot.
func FuzzLiteral(f *testing.F) {
	f.Add("a.b", "axb")
	f.Add("api.example.com", "apiXexample.com")
	f.Add("plain", "plain")
	f.Fuzz(func(t *testing.T, expression, value string) {
		if !matcher.IsLiteral(expression) {
			return
		}
		m, err := matcher.String(regex(expression))
		if err != nil {
			t.Fatal(err)
		}
		exact, ok := m.GetMatchPattern().(*matcherv3.StringMatcher_Exact)
		if !ok {
			t.Fatalf("%q is a literal, but became %v", expression, m)
		}
		if (exact.Exact == value) != (expression == value) {
			t.Errorf("%q matches %q", expression, value)
		}
	})
}
