package differential_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
	"fairlead.dev/services/xds-server/internal/translate"
)

// member is a proxy without a stream: its class, and the names that it asks for.
type member struct {
	node  *class.Node
	class *plan.Class
	asks  map[string][]string
}

// Changed implements plan.Watcher.
func (*member) Changed(plan.Changes, plan.Changes) {}

// listed are the types that a member subscribes to as a whole.
var listed = []string{resource.ClusterType, resource.ListenerType, resource.VirtualHostType}

// join makes the member a watcher of the class that its node is of.
func (m *member) join(e *plan.Engine, state *mesh.Snapshot) {
	key, _ := m.node.Key(state)
	if m.class != nil && m.class.Key().Hash() == key.Hash() {
		return
	}
	before := m.class
	m.class = e.Acquire(key, m)
	for _, url := range listed {
		m.class.Plan(m, url, true, m.asks[url])
	}
	for _, url := range []string{resource.EndpointType, resource.ExtensionConfigType} {
		m.class.Plan(m, url, false, m.asks[url])
	}
	if before != nil {
		for url, names := range m.asks {
			before.Release(m, url, names)
		}
		e.Release(before, m)
	}
}

// members are a proxy of every kind that differs for policies. Each asks by name for clusters and endpoints that there
// may be, as an on-demand proxy does, and for the extension configs of policies.
func members(t *testing.T) []*member {
	t.Helper()
	asks := map[string][]string{resource.ExtensionConfigType: {"fairlead.custom", "fairlead.jwt", "fairlead.authz", "other"}}
	for _, host := range hosts {
		for _, port := range ports {
			name := fmt.Sprintf("outbound|%d||%s", port, host)
			asks[resource.ClusterType] = append(asks[resource.ClusterType], name)
			asks[resource.EndpointType] = append(asks[resource.EndpointType], name)
		}
	}
	onDemand := map[string]any{class.OnDemandMetadata: "true"}
	var out []*member
	for _, n := range []*core.Node{
		listing(node("sidecar", "d", "x", "10.0.1.100", nil), complete),
		listing(node("sidecar", "w", "y", "10.0.1.2", nil), unchained),
		listing(node("sidecar", "far", "elsewhere", "10.0.1.3", nil), tokenless),
		listing(node("sidecar", "lean", "x", "10.0.1.4", onDemand), complete),
		listing(node("sidecar", "lean", "y", "10.0.1.5", onDemand), complete),
		listing(node("router", "gw", "istio-system", "10.0.1.6", map[string]any{"LABELS": map[string]any{"istio": "ingressgateway"}}), complete),
	} {
		parsed, err := class.ParseNode(n)
		if err != nil {
			t.Fatal(err)
		}
		parsed.VirtualHosts = true
		out = append(out, &member{node: parsed, asks: asks})
	}
	return out
}

// disagreement compares what the engine has of the member's class with what translators make of the mesh alone; "" if
// they agree.
func (m *member) disagreement(state *mesh.Snapshot, translators map[string]plan.Translator) (string, error) {
	want, got := map[string]map[string]string{}, map[string]map[string]string{}
	for _, url := range append([]string{resource.EndpointType, resource.ExtensionConfigType}, listed...) {
		want[url], got[url] = map[string]string{}, map[string]string{}
		names, held := m.asks[url], m.class.Snapshot().Type(url)
		if slices.Contains(listed, url) {
			listed, err := plan.List(translators[url], m.class.Key(), state)
			if err != nil {
				return "", err
			}
			names = append(listed, names...)
		}
		for _, name := range names {
			if item, ok := held.Get(name); ok && item.Blob != nil {
				got[url][name] = string(item.Blob.Resource.GetResource().GetValue())
			}
			built, err := translators[url].Build(input.NewView(m.class.Key(), state).Reader(), name)
			if _, ok := errors.AsType[*plan.Incomplete](err); err != nil && !ok {
				return "", err
			}
			if built != nil {
				raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(built)
				if err != nil {
					return "", err
				}
				want[url][name] = string(raw)
			}
		}
	}
	return difference(want, got), nil
}

// TestEngineAndScratchAgree is TestDeltaSotwAndScratchAgree without streams: it looks after every revision, so that it
// finds in seconds what a resource depends on and the engine does not know.
func TestEngineAndScratchAgree(t *testing.T) {
	translators := map[string]plan.Translator{}
	for _, tr := range translate.All() {
		translators[tr.TypeURL()] = tr
	}
	rapid.Check(t, func(rt *rapid.T) {
		e, err := plan.NewEngine(plan.Config{
			Translators: translate.All(), Store: store.New(), Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(), Workers: 1,
		})
		if err != nil {
			rt.Fatal(err)
		}
		state, all, held := mesh.Empty(), members(t), map[string]*configv1.Resource{}
		for n := range uint64(rapid.IntRange(1, 25).Draw(rt, "revisions")) { //nolint:gosec // small
			upserts, removed := drawRevision(rt, held)
			if n == 0 || rapid.IntRange(0, 20).Draw(rt, "settings") == 0 {
				upserts = append(upserts, settings(int(n))) //nolint:gosec // small
			}
			next, change := state.Apply(&configv1.Revision{Epoch: "test", Sequence: n + 1}, upserts, removed)
			state = next
			e.Apply(state, change, nil)
			for _, m := range all {
				m.join(e, state)
				if d, err := m.disagreement(state, translators); err != nil || d != "" {
					rt.Fatalf("revision %d: %s does not have what a build from scratch gives: %v\n%s", n+1, m.node.ID, err, d)
				}
			}
		}
	})
}
