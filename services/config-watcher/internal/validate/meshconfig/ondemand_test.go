package meshconfig

import (
	"regexp"
	"testing"

	"fairlead.dev/services/config-watcher/internal/object"
)

func TestOnDemandInMeshConfig(t *testing.T) {
	for _, c := range []struct{ name, yaml, want, problem string }{
		{"on", "defaultConfig: {onDemand: true}", "true", ""},
		{"off", "defaultConfig: {onDemand: false}", "false", ""},
		{"unsaid", "defaultConfig: {drainDuration: 1s}", "", ""},
		{"null", "defaultConfig: {onDemand: null}", "", ""},
		{"as metadata", `defaultConfig: {proxyMetadata: {FAIRLEAD_ON_DEMAND: "true"}}`, "true", ""},
		{"both", `defaultConfig: {onDemand: true, proxyMetadata: {FAIRLEAD_ON_DEMAND: "1", A: b}}`, "true", ""},
		{"text", "defaultConfig:\n  onDemand: \"yes\"", "",
			`^m.yaml:2: MeshConfig: defaultConfig.onDemand: "yes": expected true or false, found a string; write true or false without quotes$`},
		{"bad metadata", "defaultConfig: {proxyMetadata: {FAIRLEAD_ON_DEMAND: perhaps}}", "",
			`proxyMetadata.FAIRLEAD_ON_DEMAND: "perhaps": neither true nor false; write "true" or "false"`},
		{"contradiction", `defaultConfig: {onDemand: true, proxyMetadata: {FAIRLEAD_ON_DEMAND: "false"}}`, "",
			`defaultConfig.onDemand: true: contradicts defaultConfig.proxyMetadata.FAIRLEAD_ON_DEMAND; keep one of them`},
		{"metadata of a wrong type", "defaultConfig: {onDemand: true, proxyMetadata: [a]}", "",
			`defaultConfig.proxyMetadata: .*expected a map, found a list`},
		{"misspelt", "defaultConfig: {ondemnd: true}", "", `unknown field "ondemnd"; did you mean "onDemand"\?`},
		{"misplaced", "onDemand: true", "", `unknown field "onDemand"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, _, problems := Parse("m.yaml", []byte(c.yaml))
			if c.problem != "" {
				if got := problems.Error(); !regexp.MustCompile(c.problem).MatchString(got) {
					t.Errorf("got  %s\nwant %s", got, c.problem)
				}
				return
			}
			if err := problems.Err(); err != nil {
				t.Fatal(err)
			}
			if got := m.DefaultConfig.ProxyMetadata[object.OnDemandMetadata]; got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if m.DefaultConfig.StatusPort != 15020 {
				t.Error("the defaults are lost")
			}
		})
	}
}
