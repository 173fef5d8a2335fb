package class_test

import (
	"errors"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// TestGatewayTopology: a router's own ProxyConfig comes before the mesh's, and is part of the class only if it is set.
func TestGatewayTopology(t *testing.T) {
	mesh := &meshv1alpha1.Topology{NumTrustedProxies: 1, ForwardClientCertDetails: meshv1alpha1.ForwardClientCertDetails_SANITIZE}
	for name, tc := range map[string]struct {
		node   string
		config map[string]any
		key    class.GatewayTopology
		want   *meshv1alpha1.Topology
	}{
		"nothing":      {"router", map[string]any{"concurrency": 2.0}, "", mesh},
		"empty":        {"router", map[string]any{"gatewayTopology": map[string]any{}}, "", mesh},
		"no object":    {"router", map[string]any{"gatewayTopology": "x"}, "", mesh},
		"of a sidecar": {"sidecar", map[string]any{"gatewayTopology": map[string]any{"numTrustedProxies": 2.0}}, "", mesh},
		"some settings": {
			"router", map[string]any{"gatewayTopology": map[string]any{"proxyProtocol": map[string]any{}, "numTrustedProxies": 2.0}},
			`{"numTrustedProxies":2,"proxyProtocol":{}}`,
			&meshv1alpha1.Topology{
				NumTrustedProxies: 2, ForwardClientCertDetails: meshv1alpha1.ForwardClientCertDetails_SANITIZE,
				ProxyProtocol: &meshv1alpha1.Topology_ProxyProtocolConfiguration{},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := class.ParseNode(&core.Node{Id: tc.node + "~10.0.0.1~a.shop~x",
				Metadata: metadata(t, map[string]any{"PROXY_CONFIG": tc.config})})
			if err != nil {
				t.Fatal(err)
			}
			key, _ := n.Key(meshtest.State(t))
			if key.GatewayTopology != tc.key {
				t.Errorf("key has %q, want %q", key.GatewayTopology, tc.key)
			}
			if got := key.GatewayTopology.WithDefaults(mesh); !proto.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
	for name, bad := range map[string]any{
		"not of its type": map[string]any{"numTrustedProxies": "many"},
		"too large":       map[string]any{"x": strings.Repeat("x", 10_000)},
	} {
		n, err := class.ParseNode(&core.Node{Id: "router~10.0.0.1~a.shop~x",
			Metadata: metadata(t, map[string]any{"PROXY_CONFIG": map[string]any{"gatewayTopology": bad}})})
		if !errors.Is(err, class.ErrMalformed) {
			t.Errorf("%s: got %v, %v", name, n, err)
		}
	}
}
