package match_test

import (
	"strings"
	"testing"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/translate/match"
)

func regex(expression string) *networking.StringMatch {
	return &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: expression}}
}

func TestRegexLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		expression string
		want       string
	}{
		"ordinary":           {"/api/v[0-9]+/(users|groups)/.*", ""},
		"not RE2":            {"(?=x)y", "RE2 syntax"},
		"unbalanced":         {"(", "RE2 syntax"},
		"too long":           {strings.Repeat("a?", 600), "the limit is"},
		"deeply nested":      {strings.Repeat("(", 500) + strings.Repeat(")", 500), ""},
		"explosive counts":   {"((a{0,50}){0,20}){0,10}", "RE2 syntax"},
		"large program":      {"(([a-z]{1,30}){1,30})", ""},
		"counts too large":   {"a{2000}", "RE2 syntax"},
		"counts that add up": {strings.Repeat("[ac]{100}", 85), "instructions"},
		"many ranges":        {"[acegikmoqsuwyACEGIKMOQSUWY02468]{1000}", "instructions"},
		"fewer of them":      {"[acegikmoqsuwyACEGIKMOQSUWY02468]{500}", ""},
		"a byte":             {`\x{ff}\xff`, ""},
		"no byte":            {`[^\x00-\x{10FFFF}]`, "is no byte"},
		"quoted":             {`\Q\x{100}\p{x}\E\\x{2}`, ""},
		"a character":        {"é[à-ü]", ""},
		"a script":           {`\p{Greek}\P{^Lu}\pN\p{Any}`, ""},
		"a long name":        {`\p{Letter}`, `\p{Letter} is not known`},
		"in lower case":      {`\pL\p{greek}`, `\p{greek} is not known`},
		"not of the proxy's": {`\p{LC}`, `\p{LC} is not known`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := match.Regex(tc.expression)
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestPresence(t *testing.T) {
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
		if got := match.IsPresence(tc.in); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestUnsetMatchIsAnError(t *testing.T) {
	if _, err := match.String(&networking.StringMatch{}); err == nil {
		t.Error("an unset match was converted")
	}
}

func TestWithoutHeader(t *testing.T) {
	m, err := match.WithoutHeader("x", regex("a+"))
	if err != nil {
		t.Fatal(err)
	}
	if !m.GetInvertMatch() || !m.GetTreatMissingHeaderAsEmpty() {
		t.Errorf("a request without the header must match: %v", m)
	}
	m, err = match.WithoutHeader("x", nil)
	if err != nil || !m.GetInvertMatch() || m.GetTreatMissingHeaderAsEmpty() {
		t.Errorf("Envoy refuses presence together with missing-as-empty: %v, %v", m, err)
	}
}

// FuzzLiteral holds exact matchers against string equality: whatever counts as a literal may match nothing else, a dot only a dot.
func FuzzLiteral(f *testing.F) {
	f.Add("a.b", "axb")
	f.Add("api.example.com", "apiXexample.com")
	f.Add("plain", "plain")
	f.Fuzz(func(t *testing.T, expression, value string) {
		if !match.IsLiteral(expression) {
			return
		}
		m, err := match.String(regex(expression))
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
