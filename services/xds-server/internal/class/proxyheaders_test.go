package class_test

import (
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// TestProxyHeaders: a proxy's own ProxyConfig comes before the mesh's, and is part of the class only if it differs.
func TestProxyHeaders(t *testing.T) {
	disabled := &meshv1alpha1.ProxyConfig_ProxyHeaders_RequestId{Disabled: wrapperspb.Bool(true)}
	mesh := &meshv1alpha1.ProxyConfig_ProxyHeaders{RequestId: disabled}
	for name, tc := range map[string]struct {
		own  any
		key  class.ProxyHeaders
		want *meshv1alpha1.ProxyConfig_ProxyHeaders
	}{
		"nothing":   {nil, "", mesh},
		"no object": {"x", "", mesh},
		"something": {
			map[string]any{"server": map[string]any{"value": "own"}}, `{"server":{"value":"own"}}`,
			&meshv1alpha1.ProxyConfig_ProxyHeaders{RequestId: disabled, Server: &meshv1alpha1.ProxyConfig_ProxyHeaders_Server{Value: "own"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := class.ParseNode(&core.Node{Id: "sidecar~10.0.0.1~a.shop~x",
				Metadata: metadata(t, map[string]any{"PROXY_CONFIG": map[string]any{"proxyHeaders": tc.own}})})
			if err != nil {
				t.Fatal(err)
			}
			key, _ := n.Key(meshtest.State(t))
			if key.ProxyHeaders != tc.key {
				t.Errorf("key has %q, want %q", key.ProxyHeaders, tc.key)
			}
			if got := key.ProxyHeaders.WithDefaults(mesh); !proto.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
