package plan_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/plan/plantest"
	"fairlead.dev/services/xds-server/internal/store"

	"fairlead.dev/pkg/testkit"
)

// sidecarOf is a workload with a sidecar, behind the service.
func sidecarOf(namespace, name, address, host string) *configv1.Resource {
	return meshtest.Workload(namespace, name, address, func(w *configv1.Workload) {
		w.TlsMode = configv1.TlsMode_TLS_MODE_ISTIO
		w.Targets = []*configv1.ServiceTarget{{Hostname: host, Port: 80, TargetPort: 80}}
	})
}

func TestScopesOfExpectedSidecarsArePrebuilt(t *testing.T) {
	b := &bench{set: plantest.New(), clock: testkit.NewClock(meshtest.Epoch), registry: prometheus.NewPedanticRegistry(), state: mesh.Empty()}
	var err error
	b.Engine, err = plan.NewEngine(plan.Config{
		Translators: b.set.Translators(), Store: store.New(), Log: testkit.Logger(t), Registerer: b.registry, Clock: b.clock,
		Prebuild: []string{resource.ClusterType},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = b.Run(ctx) }()
	b.clock.WaitFor(t, 1)
	b.edit([]*configv1.Resource{meshtest.Service("default", a, 80)})
	if built := b.set.Builds(); len(built) != 0 {
		t.Fatalf("built for a mesh without workloads: %v", built)
	}
	b.edit([]*configv1.Resource{sidecarOf("default", "w", "10.0.0.1", a)})
	cluster := "80|" + a
	built := map[string]int{}
	testkit.Eventually(t, testkit.Patience, func() error {
		for what, n := range b.set.Builds() {
			built[what] += n
		}
		for what := range built {
			if strings.HasSuffix(what, cluster) {
				return nil
			}
		}
		return errors.New("not yet")
	})

	// A sidecar finds the cluster built, in any namespace.
	for _, namespace := range []string{"default", "other"} {
		w := &watcher{}
		c := b.Acquire(&class.Key{
			Type: class.Sidecar, Namespace: namespace, DNSDomain: namespace + ".svc.cluster.local", Interception: class.Redirect,
			TrustDomain: b.state.Mesh().GetTrustDomain(), VirtualHosts: true,
			Filters: class.FilterChains | class.RBAC | class.ExtAuthz | class.JWT | class.StatsLogger,
		}, w)
		c.Plan(w, resource.ClusterType, true, nil)
		if got := names(c, resource.ClusterType); len(got) != 1 || got[0] != cluster {
			t.Errorf("%s: clusters %q", namespace, got)
		}
		for what := range b.set.Builds() {
			if strings.HasSuffix(what, cluster) {
				t.Errorf("%s: built again: %s", namespace, what)
			}
		}
		b.Release(c, w)
	}

	// Without a proxy for the linger time, the scope plans are dropped.
	for range 4 {
		b.clock.Advance(plan.DefaultLinger)
		b.clock.WaitFor(t, 1)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if len(b.Classes()) > 0 {
			return errors.New("not yet")
		}
		return nil
	})
	b.set.Builds()
	b.edit([]*configv1.Resource{meshtest.Service("default", a, 80,
		func(s *configv1.Service) { s.Ports[0].Protocol = configv1.Protocol_PROTOCOL_TCP })})
	if built := b.set.Builds(); len(built) != 0 {
		t.Errorf("built without a subscriber: %v", built)
	}
}
