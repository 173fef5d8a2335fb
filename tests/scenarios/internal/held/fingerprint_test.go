package held

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestExtensionConfigs: a proxy whose filters have another configuration beside their listeners holds something else; a
// configuration for which there is no listener any more does not count.
func TestExtensionConfigs(t *testing.T) {
	const listener = `{"dynamic_listeners":[{"name":"in","active_state":{"version_info":"1","listener":{"filters":[{"name": "slot"}]}}}]}`
	configs, kept := "", ""
	p := &Proxy{Name: "server", Get: func(_ context.Context, path string) ([]byte, error) {
		switch {
		case strings.Contains(path, "resource=ecds_filters") && configs == "":
			return nil, errors.New("404 Not Found: ecds_filters not found in config dump")
		case strings.Contains(path, "resource=ecds_filters"):
			return []byte(`{"configs":[` + configs + `]}`), nil
		case strings.Contains(path, "resource="):
			return []byte(`{}`), nil
		}
		return []byte(`{"configs":[` + kept + `,{"ecds_filters":[` + configs + `]}]}`), nil
	}}
	const closed, open, gone = `{"ecds_filter":{"name":"slot","closed":true}}`, `{"ecds_filter":{"name":"slot","closed":false}}`,
		`{"ecds_filter":{"name":"old"}}`
	kept, configs = listener, open
	known, err := p.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ configs, want string }{
		{open, ""}, {closed, "another extension config slot.closed: was false, is true"}, {open + "," + gone, ""},
		{"", "no extension config slot any more"},
	} {
		configs = step.configs
		diff, err := p.Compare(t.Context(), &known, false, nil, nil)
		if got := strings.Join(diff, "; "); err != nil || !strings.Contains(got, step.want) || step.want == "" && got != "" {
			t.Errorf("%q: %q, %v, want %q", step.configs, got, err, step.want)
		}
	}
}
