package contract_test

import (
	"testing"

	"fairlead.dev/proto/fairlead/contract"
)

func TestRevisionOf(t *testing.T) {
	rev := func(name string) map[string]string { return map[string]string{contract.RevisionLabel: name} }
	both := map[string]string{contract.RevisionLabel: "canary", contract.InjectionLabel: "enabled"}
	for name, c := range map[string]struct {
		labels, namespace, tags map[string]string
		want                    string
	}{
		"nothing":                       {want: "default"},
		"its own":                       {labels: rev("canary"), namespace: rev("other"), want: "canary"},
		"its namespace's":               {namespace: rev("canary"), want: "canary"},
		"injection before the revision": {namespace: both, want: "default"},
		"its own before injection":      {labels: rev("canary"), namespace: both, want: "canary"},
		"a tag":                         {namespace: rev("prod"), tags: map[string]string{"prod": "v1"}, want: "v1"},
		"the tag default":               {tags: map[string]string{"default": "v1"}, want: "v1"},
		"a tag that is not there":       {labels: rev("prod"), tags: map[string]string{"default": "v1"}, want: "prod"},
	} {
		if got := contract.RevisionOf(c.labels, c.namespace, c.tags); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
