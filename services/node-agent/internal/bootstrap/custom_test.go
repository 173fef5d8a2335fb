package bootstrap

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTemplateKeepsWhatTiesEnvoyToItsAgent(t *testing.T) {
	in := inputs()["full"]
	b, err := Build(in)
	if err != nil {
		t.Fatal(err)
	}
	own, err := JSON(b)
	if err != nil {
		t.Fatal(err)
	}
	out, err := FromTemplate(`{"node": {"id": "x"}, "static_resources": {"clusters": [{"name": "xds-grpc", "mine": true}, {"name": "own"}]}, "stats_flush_interval": "{{ .zone }}1s"}`, own, in, nil)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(out, &tree); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range clustersOf(tree) {
		names = append(names, nameOf(c))
		if c.(map[string]any)["mine"] != nil {
			t.Error("the template's cluster for xDS stays")
		}
	}
	if got := strings.Join(names, " "); got != "own xds-grpc sds-grpc agent prometheus_stats" {
		t.Errorf("clusters %s", got)
	}
	if tree["node"].(map[string]any)["id"] != in.Node.GetId() || tree["stats_flush_interval"] != "1s" {
		t.Errorf("%v", tree)
	}
}

// FuzzCustom: whatever files for the bootstrap say, nothing panics, and what is accepted is JSON that keeps the agent's
// node and admin interface.
func FuzzCustom(f *testing.F) {
	in := inputs()["plain"]
	b, err := Build(in)
	if err != nil {
		f.Fatal(err)
	}
	own, err := JSON(b)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("static_resources: {clusters: [{name: agent}, 7]}", "fd00::1")
	f.Add(`{"admin": {"address": {}}, "x": "[$(HOST_IP)]:1"}`, "192.0.2.1")
	f.Add(`{{ range $k, $v := . }}{{ $k }}: {{ toJSON $v }}
{{ end }}`, "")
	f.Fuzz(func(t *testing.T, text, host string) {
		if js, err := Override([]byte(text), host); err == nil && !json.Valid([]byte(js)) {
			t.Errorf("no JSON: %s", js)
		}
		out, err := FromTemplate(text, own, in, map[string]any{"statusPort": 1})
		if err != nil {
			return
		}
		var tree map[string]any
		if err := json.Unmarshal(out, &tree); err != nil || tree["node"] == nil || tree["admin"] == nil || len(clustersOf(tree)) < 4 {
			t.Errorf("%v: %s", err, out)
		}
	})
}
