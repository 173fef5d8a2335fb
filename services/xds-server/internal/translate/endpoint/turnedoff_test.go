package endpoint_test

import (
	"testing"

	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/endpoint"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

func TestTurnedOffByPeerAuthentication(t *testing.T) {
	const host = "a.default.svc.cluster.local"
	selecting := func(version string) func(*security.PeerAuthentication) {
		return func(p *security.PeerAuthentication) {
			p.Selector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"version": version}}
		}
	}
	for name, tc := range map[string]struct {
		policies []*configv1.Resource
		second   configv1.TlsMode
		want     string
	}{
		"no policy": {nil, configv1.TlsMode_TLS_MODE_ISTIO, ""},
		"strict": {[]*configv1.Resource{meshtest.PeerAuthentication("default", "p", "STRICT")}, configv1.TlsMode_TLS_MODE_ISTIO,
			""},
		"a namespace": {[]*configv1.Resource{meshtest.PeerAuthentication("default", "p", "DISABLE")}, configv1.TlsMode_TLS_MODE_ISTIO,
			"all"},
		"one of two workloads": {[]*configv1.Resource{meshtest.PeerAuthentication("default", "p", "DISABLE", selecting("v1"))},
			configv1.TlsMode_TLS_MODE_ISTIO, "some"},
		"the only one of a proxy": {[]*configv1.Resource{meshtest.PeerAuthentication("default", "p", "DISABLE", selecting("v1"))},
			configv1.TlsMode_TLS_MODE_DISABLED, "all"},
		"one without a proxy": {[]*configv1.Resource{meshtest.PeerAuthentication("default", "p", "DISABLE", selecting("v2"))},
			configv1.TlsMode_TLS_MODE_DISABLED, ""},
	} {
		t.Run(name, func(t *testing.T) {
			endpoints := meshtest.Endpoints("default", host, 80, "10.0.0.1", "10.0.0.2")
			set := endpoints.GetEndpointSet()
			set.LabelSets = []*configv1.LabelSet{{Labels: map[string]string{"version": "v1"}}, {Labels: map[string]string{"version": "v2"}}}
			set.GetEndpoints()[0].TlsMode = configv1.TlsMode_TLS_MODE_ISTIO
			set.GetEndpoints()[1].LabelSet, set.GetEndpoints()[1].TlsMode = 1, tc.second
			state := meshtest.State(t, append(tc.policies, meshtest.Service("default", host, 80), endpoints)...)
			r := input.NewView(&class.Key{Type: class.Sidecar, Namespace: "client"}, state).Reader()
			c, ok := discovery.Resolve(r, resourcename.Cluster{Direction: resourcename.DirectionOutbound, Port: 80, Hostname: host})
			if !ok {
				t.Fatal("no such cluster")
			}
			if got := endpoint.MTLSTurnedOff(r, c); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
