package differential_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"pgregory.net/rapid"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/envoytest"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/proxytest"
	"fairlead.dev/services/xds-server/internal/servetest"
)

// envoyHistories is how many histories each real Envoy is sent, envoyEdits their least number of edits.
const (
	envoyHistories = 2
	envoyEdits     = 200
)

// step is one revision of a history.
type step struct {
	upserts []*configv1.Resource
	removed []*configv1.ResourceKey
}

func (s step) edits() int { return len(s.upserts) + len(s.removed) }

// history draws revisions with so many edits, of the objects that keep accepts. The same seed gives the same history.
func history(seed, edits int, keep func(*configv1.ResourceKey) bool) []step {
	return rapid.Custom(func(t *rapid.T) []step {
		held := map[string]*configv1.Resource{}
		var steps []step
		for n := 0; n < edits; {
			var s step
			s.upserts, s.removed = drawRevision(t, held)
			s.upserts = slices.DeleteFunc(s.upserts, func(r *configv1.Resource) bool { return !keep(r.GetKey()) })
			s.removed = slices.DeleteFunc(s.removed, func(k *configv1.ResourceKey) bool { return !keep(k) })
			if rapid.IntRange(0, 40).Draw(t, "settings") == 0 {
				s.upserts = append(s.upserts, settings(n))
			}
			n += s.edits()
			steps = append(steps, s)
		}
		return steps
	}).Example(seed)
}

// permanent is what the on-demand proxy calls: ports whose route configurations are never removed. Envoy drops the
// virtual hosts of a removed one and requests them again only for a request of an application, of which there are none
// here.
func permanent() []*configv1.Resource {
	return []*configv1.Resource{
		settings(0),
		meshtest.Service("x", "always.example.com", 80), meshtest.Service("x", "also.example.com", 8080),
		meshtest.Endpoints("x", "always.example.com", 80, "10.1.9.1"),
	}
}

func all(*configv1.ResourceKey) bool { return true }

// permanentPorts leaves out Sidecars that can hide the permanent services.
func permanentPorts(k *configv1.ResourceKey) bool {
	return k.GetKind() != mesh.KindSidecar || k.GetNamespace() == "y"
}

// TestRealEnvoyAgrees sends the edits to real Envoys: by delta, by sotw and on demand. Between edits their streams
// change replicas. In the end each has in use what a build from scratch returns, and has rejected nothing.
func TestRealEnvoyAgrees(t *testing.T) {
	envoytest.Binary(t)
	envoytest.NeedAlone(t)
	demands := map[string][]string{
		resource.VirtualHostType: {"80/a.x.svc.cluster.local", "80/nowhere.example.com", "8080/c.y:8080", "80/a", "80/always.example.com"},
		resource.ClusterType:     {"outbound|80||always.example.com"},
	}
	for _, test := range []struct {
		name     string
		protocol core.ApiConfigSource_ApiType
		fields   map[string]any
		demands  map[string][]string
		keep     func(*configv1.ResourceKey) bool
	}{
		{"delta", core.ApiConfigSource_DELTA_GRPC, nil, nil, all},
		{"sotw", core.ApiConfigSource_GRPC, nil, nil, all},
		{"on demand", core.ApiConfigSource_DELTA_GRPC, map[string]any{class.OnDemandMetadata: "true"}, demands, permanentPorts},
	} {
		t.Run(test.name, func(t *testing.T) {
			for seed := range envoyHistories {
				replay(t, history(seed, envoyEdits, test.keep), proxytest.Config{
					Delta: test.protocol == core.ApiConfigSource_DELTA_GRPC, Node: listing(node("sidecar", "d", "x", "10.0.1.100", test.fields), complete),
					Children: children, Extensions: extensions, Demands: test.demands,
				}, test.protocol)
			}
		})
	}
}

func replay(t *testing.T, steps []step, who proxytest.Config, protocol core.ApiConfigSource_ApiType) {
	servers := []*servetest.Server{start(t), start(t)}
	for _, s := range servers {
		t.Cleanup(s.Stop)
		s.Apply(permanent(), nil)
	}
	p := proxytest.New(who)
	if who.Demands != nil {
		// Servers remember what another stream of the workload has requested: this is what the proxy calls.
		for _, s := range servers {
			p.Connect(t, s.Conn)
			waitForAgreement(t, []*proxytest.Proxy{p}, s.Snapshot)
			p.Disconnect()
		}
	}
	gate := startGate(t, servers[0].Conn.Target())
	e := envoytest.Start(t, envoytest.Bootstrap(t, who.Node, protocol, envoytest.Secrets(t, testkit.PKI(t), "x", "default"), gate.socket),
		envoytest.Alone)
	e.Ready()
	edits := 0
	for i, s := range steps {
		edits += s.edits()
		for _, server := range servers {
			server.Apply(s.upserts, s.removed)
		}
		if (i+1)%10 == 0 || i == len(steps)-1 {
			waitForEnvoy(t, e, buildFromScratch(t, p, servers[0].Snapshot, who.Demands), edits)
		}
		if (i+1)%20 == 0 {
			gate.move(servers[i/20%2].Conn.Target())
		}
	}
	t.Logf("%d random edits", edits)
}

// waitForEnvoy waits until Envoy has in use what the resources make.
func waitForEnvoy(t *testing.T, e *envoytest.Process, resources map[string]map[string]string, edits int) {
	t.Helper()
	want, err := expected(resources)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		got, err := inUse(e)
		if err != nil {
			return err
		}
		if d := want.diff(got); d != "" {
			return fmt.Errorf("after %d edits Envoy has not in use what a build from scratch gives:\n%s", edits, d)
		}
		return nil
	})
	for name, n := range e.Stats("update_rejected") {
		if n != 0 && !strings.Contains(name, "secret") {
			t.Errorf("after %d edits %s is %d", edits, name, n)
		}
	}
}
