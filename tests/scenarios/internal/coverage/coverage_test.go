package coverage

import (
	"slices"
	"strings"
	"testing"

	"fairlead.dev/tests/scenarios/internal/format"
)

func TestTable(t *testing.T) {
	table := New([]*format.Scenario{
		{Name: "b", Covers: []string{"VirtualService.http.match.headers.exact", "Gateway.servers.tls.SIMPLE", "protocol.grpc-web"}},
		{Name: "a", Covers: []string{"VirtualService.http.match.headers", "PeerAuthentication.mtls.mode.STRICT", "VirtualService.spec.http.timeout"}},
	}, []string{"VirtualService.http.fault.abort.http2Error", "EnvoyFilter.configPatches.applyTo.BOOTSTRAP"})
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
	for _, path := range []string{"VirtualService.http.fault.abort.http2Error", "EnvoyFilter.configPatches.applyTo.BOOTSTRAP"} {
		if row := rows[path]; row == nil || !row.Refused {
			t.Errorf("%s is not said to be refused: %+v", path, row)
		}
	}
	page := string(table.Markdown())
	for _, want := range []string{"`uri` | supported, no scenario |", "| protocol.grpc-web | b |", "`http2Error` | refused |"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
