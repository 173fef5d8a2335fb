package proxytext_test

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/proxytext"
)

func TestRegex(t *testing.T) {
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
			err := proxytext.Regex(tc.expression)
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}
