package harness

import "testing"

// TestNames: a deprecated field is the scenario's own if one of its EnvoyFilters names it, in either spelling.
func TestNames(t *testing.T) {
	const option = "envoy.config.route.v3.RouteAction.max_grpc_timeout"
	for filters, want := range map[string]bool{
		"":                                       false,
		"value: {route: {max_grpc_timeout: 1s}}": true,
		`{"route":{"maxGrpcTimeout":"1s"}}`:      true,
		"value: {route: {max_grpc_timeouts: 1}}": false,
		"value: {route: {grpc_timeout: 1s}}":     false,
	} {
		if got := names(filters, option); got != want {
			t.Errorf("%s: %v", filters, got)
		}
	}
}
