package held

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestDifferenceOnDemand: what a sidecar asks for may come and go, and must be what it was; all else must be as before.
func TestDifferenceOnDemand(t *testing.T) {
	table := func(hosts ...string) map[string]json.RawMessage {
		return map[string]json.RawMessage{"80": json.RawMessage(`{"name":"80","virtual_hosts":[` + strings.Join(hosts, ",") + `]}`)}
	}
	const fixed, inbound, asked = `{"name":"BlackHoleCluster","type":"STATIC"}`, `{"name":"inbound|80||"}`,
		`{"name":"outbound|80||a","type":"EDS","version":1}`
	set := func(clustersNow map[string]string, hosts ...string) Holdings {
		h := Holdings{clusters: {}, listeners: {}, routes: table(hosts...), endpoints: {}}
		for name, text := range clustersNow {
			h[clusters][name] = json.RawMessage(text)
		}
		return h.apart()
	}
	start := map[string]string{"BlackHoleCluster": fixed, "inbound|80||": inbound}
	with := func(name, text string) map[string]string {
		out := map[string]string{name: text}
		for k, v := range start {
			if k != name {
				out[k] = v
			}
		}
		return out
	}
	before := set(start, `{"name":"80/any"}`)
	for _, step := range []struct {
		name string
		now  Holdings
		want string
	}{
		{"nothing", set(start, `{"name":"80/any"}`), ""},
		{"asked for", set(with("outbound|80||a", asked), `{"name":"80/any"}`, `{"name":"80/a:80","routes":[1]}`), ""},
		{"gone", set(start), ""},
		{"there again", set(with("outbound|80||a", asked), `{"name":"80/a:80","routes":[1]}`), ""},
		{"another cluster", set(with("outbound|80||a", `{"name":"outbound|80||a","type":"EDS","version":2}`)), "another cluster"},
		{"another virtual host", set(start, `{"name":"80/a:80","routes":[2]}`), "another virtual host"},
		{"a fixed one is new", set(with("inbound|81||", inbound)), "new cluster inbound|81||"},
		{"a fixed one is gone", set(map[string]string{"BlackHoleCluster": fixed}), "no cluster inbound|80||"},
		{"a fixed one differs", set(with("inbound|80||", asked)), "another cluster inbound|80||"},
	} {
		got := strings.Join(differenceOnDemand("client", before, step.now), "; ")
		if step.want == "" && got != "" || !strings.Contains(got, step.want) {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
	if !leadsNowhere(json.RawMessage(`{"name":"x","connect_timeout":"1s"}`)) || leadsNowhere(json.RawMessage(asked)) {
		t.Error("what leads nowhere")
	}
}
