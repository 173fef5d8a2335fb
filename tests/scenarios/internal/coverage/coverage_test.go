package coverage

import (
	"slices"
	"strings"
	"testing"

	"fairlead.dev/tests/scenarios/internal/format"
)

func TestTable(t *testing.T) {
	table, err := New(Evidence{Scenarios: []*format.Scenario{
		{Name: "b", Covers: []string{"VirtualService.http.match.headers.exact", "Gateway.servers.tls.SIMPLE", "protocol.grpc-web"}},
		{Name: "c", Steps: []format.Step{
			{Apply: "kind: VirtualService\nspec: {http: [{match: [{uri: {exact: /}, headers: {x: {exact: y}}}]}]}\n---\nkind: Gateway\nspec: " +
				"{servers: [{name: s}]}"},
			{Reject: &format.Reject{YAML: "kind: Gateway\nspec: {selector: {a: b}}"}},
			{Eventually: &format.Eventually{Steps: []format.Step{{ApplyNoWait: "kind: ServiceEntry\nspec: {endpoints: [{address: 10.0.0.1}]}"}}}},
		}},
		{Name: "a", Covers: []string{"VirtualService.http.match.headers", "PeerAuthentication.mtls.mode.STRICT",
			"VirtualService.spec.http.timeout"}},
		{Name: "d", Covers: []string{"AuthorizationPolicy.rules.when.request.auth.claims", "AuthorizationPolicy.action.DENY"}},
		{Name: "e", Steps: []format.Step{{Apply: "kind: AuthorizationPolicy\nspec: {rules: [{when: [{key: source.ip, values: [10.0.0.1]}]}]}"}}},
	},
		Goldens: map[string]string{"g": "mesh: {connectTimeout: 1s}\nobjects: [{kind: VirtualService, spec: {http: [{match: [{uri: {}, " +
			"method: {exact: GET}}]}]}}]"},
		Refused:     []string{"VirtualService.http.fault.abort.http2Error", "EnvoyFilter.configPatches.match.context.WAYPOINT", "MeshConfig.ca"},
		Ineffective: []string{"MeshConfig.defaultConfig.tracing"},
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]*Row{}
	for _, s := range table.Sections {
		for _, row := range s.Rows {
			if rows[row.Path] != nil {
				t.Errorf("%s stands twice", row.Path)
			}
			rows[row.Path] = row
		}
	}
	for path, want := range map[string][]string{
		"VirtualService.http.match.headers":   {"a", "b"},
		"VirtualService.http.match.uri":       nil,
		"VirtualService.http.timeout":         {"a"},
		"Gateway.servers.tls.mode.SIMPLE":     {"b"},
		"Gateway.servers.tls.mode":            {"b"},
		"PeerAuthentication.mtls.mode.STRICT": {"a"},
	} {
		if row := rows[path]; row == nil || !slices.Equal(row.Scenarios, want) {
			t.Errorf("%s: %+v, want scenarios %v", path, row, want)
		}
	}
	for path, want := range map[string]State{
		"VirtualService.http.fault.abort.http2Error":       Refused,
		"EnvoyFilter.configPatches.match.context.WAYPOINT": Refused,
		"MeshConfig.ca.tlsSettings.mode":                   Refused,
		"MeshConfig.defaultConfig.tracing":                 NoEffect,
		"MeshConfig.defaultConfig.tracing.zipkin.address":  NoEffect,
		"MeshConfig.defaultConfig.proxyMetadata":           Supported,
		"MeshConfig.extensionProviders":                    Supported,
	} {
		if row := rows[path]; row == nil || row.State != want {
			t.Errorf("%s: %+v, want %s", path, row, want)
		}
	}
	for name, as := range elsewhere {
		if rows[name] == nil && !strings.HasPrefix(name, "istio.") {
			t.Errorf("rows.txt: there is no field %s", name)
		}
		if as != "" && rows[as] == nil && as != "WorkloadEntry" {
			t.Errorf("rows.txt: %s: there is no field %s", name, as)
		}
	}
	page := string(table.Markdown(Traffic))
	if strings.Contains(page, "AuthorizationPolicy") {
		t.Error("the page of the traffic API has the other one's kinds")
	}
	other := string(table.Markdown(Security))
	for _, want := range []string{
		"`request.auth.claims` | supported | d |", "`source.ip` | supported | set by e |", "`action` | supported | d |",
		"`DENY` | supported | d |", "`forwardOriginalToken` | supported | no scenario |",
	} {
		if !strings.Contains(other, want) {
			t.Errorf("the page of the security API lacks %q", want)
		}
	}
	for _, want := range []string{
		"`uri` | supported | set by c |", "`headers` | supported | a, b |", "| protocol.grpc-web | b |", "`http2Error` | refused |",
		"`method` | supported | golden g |", "`connectTimeout` | supported | golden g |", "`scheme` | supported | no scenario |",
		"`endpoints` | supported | as WorkloadEntry |", "`selector` | supported | no scenario |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
