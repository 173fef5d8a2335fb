package translate_test

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
	"fairlead.dev/services/xds-server/internal/translate"
)

// largeMesh has services with two endpoints each in ten namespaces, and a VirtualService and a DestinationRule for
// every tenth of them.
func largeMesh(services int) []*configv1.Resource {
	var out []*configv1.Resource
	for i := range services {
		ns := fmt.Sprintf("ns%d", i%10)
		host := hostOf(i)
		out = append(out, meshtest.Service(ns, host, 80, func(s *configv1.Service) {
			s.Addresses = []string{fmt.Sprintf("10.%d.%d.%d", 100+i>>16, i>>8&255, i&255)}
		}), meshtest.Endpoints(ns, host, 80, fmt.Sprintf("10.1.%d.%d", i>>8&255, i&255), fmt.Sprintf("10.2.%d.%d", i>>8&255, i&255)))
		if i%10 == 5 {
			out = append(out, meshtest.Config(mesh.KindVirtualService, ns, fmt.Sprint("vs", i), &networking.VirtualService{
				Hosts: []string{host}, Http: []*networking.HTTPRoute{
					{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}}}}},
			}), meshtest.Config(mesh.KindDestinationRule, ns, fmt.Sprint("dr", i), meshtest.DestinationRule(host, time.Second)))
		}
	}
	return out
}

func hostOf(i int) string { return fmt.Sprintf("svc%05d.ns%d.svc.cluster.local", i, i%10) }

// countingWatcher counts the changes that it is told of.
type countingWatcher struct{ heard int }

func (n *countingWatcher) Changed(changes, _ plan.Changes) {
	for _, names := range changes {
		n.heard += len(names)
	}
}

// benchEngine is an engine with classes that hold all resources.
type benchEngine struct {
	*plan.Engine
	state    *mesh.Snapshot
	sequence uint64
	heard    *countingWatcher
}

func newCrowd(b *testing.B, services, classes int) *benchEngine {
	b.Helper()
	c := newMesh(b, services)
	for i := range classes {
		c.join(b, services, i)
	}
	return c
}

// newMesh is a crowd without classes.
func newMesh(b *testing.B, services int) *benchEngine {
	b.Helper()
	c := newEngine(b)
	c.edit(largeMesh(services)...)
	return c
}

func newEngine(b testing.TB) *benchEngine {
	b.Helper()
	e, err := plan.NewEngine(plan.Config{
		Translators: translate.All(), Store: store.New(), Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		b.Fatal(err)
	}
	return &benchEngine{Engine: e, state: mesh.Empty(), heard: &countingWatcher{}}
}

func (c *benchEngine) edit(upserts ...*configv1.Resource) {
	c.sequence++
	next, change := c.state.Apply(&configv1.Revision{Sequence: c.sequence}, upserts, nil)
	c.state = next
	c.Apply(next, change, nil)
}

// join plans the class of the i-th workload. Several may join at the same time.
func (c *benchEngine) join(b *testing.B, services, i int) {
	b.Helper()
	ns := fmt.Sprintf("ns%d", i%10)
	c.plan(b, &class.Key{
		Type: class.Sidecar, Namespace: ns, Interception: class.Redirect, TrustDomain: "cluster.local", DNSDomain: ns + ".svc.cluster.local",
		VirtualHosts: true,
		Targets: []class.Target{{Hostname: hostOf(i % services), Namespace: ns, Port: 80, TargetPort: 80,
			Protocol: int32(configv1.Protocol_PROTOCOL_HTTP)}},
	})
}

// plan plans the class of a key as its streams do.
func (c *benchEngine) plan(b *testing.B, key *class.Key) {
	b.Helper()
	joined := c.Acquire(key, c.heard)
	var endpoints []string
	joined.Plan(c.heard, resource.ClusterType, true, nil)
	joined.Snapshot().Type(resource.ClusterType).Scan(func(name string, item plan.Item) bool {
		if item.Blob != nil && item.Blob.EndpointsName != "" {
			endpoints = append(endpoints, item.Blob.EndpointsName)
		}
		return true
	})
	joined.Plan(c.heard, resource.EndpointType, false, endpoints)
	joined.Plan(c.heard, resource.ListenerType, true, nil)
	joined.Plan(c.heard, resource.RouteType, false, []string{"80"})
	joined.Plan(c.heard, resource.VirtualHostType, true, nil)
	for _, f := range joined.Failures("") {
		b.Error(f.TypeURL, f.Name, f.Err)
	}
}

var crowdSizes = []struct{ services, classes int }{{1000, 20}, {1000, 200}, {10000, 200}}

// BenchmarkColdStart plans every class of a mesh from nothing.
func BenchmarkColdStart(b *testing.B) {
	for _, size := range crowdSizes {
		b.Run(fmt.Sprintf("services=%d/classes=%d", size.services, size.classes), func(b *testing.B) {
			for b.Loop() {
				runtime.GC()
				before := heapBytes()
				c := newCrowd(b, size.services, size.classes)
				b.ReportMetric(float64(heapBytes()-before)/1e6, "MB")
				runtime.KeepAlive(c)
			}
		})
	}
}

// BenchmarkConcurrentColdStart plans 100 classes of ten namespaces from nothing, all at the same time, as streams do,
// on one processor and on two in turn, and reports the shortest time of each. The row "planning" of make bench runs it.
func BenchmarkConcurrentColdStart(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	var shortest [3]time.Duration
	for i := range b.N + 1 {
		for _, processors := range []int{1, 2} {
			runtime.GOMAXPROCS(processors)
			c := newMesh(b, 1000)
			runtime.GC()
			start := time.Now()
			var group sync.WaitGroup
			for class := range 100 {
				group.Go(func() { c.join(b, 1000, class) })
			}
			group.Wait()
			took := time.Since(start)
			if i > 0 && (shortest[processors] == 0 || took < shortest[processors]) { // the first turn warms up
				shortest[processors] = took
			}
		}
	}
	b.ReportMetric(float64(shortest[1]), "one-processor-ns")
	b.ReportMetric(float64(shortest[2]), "two-processors-ns")
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkChange brings all classes to a revision with one change.
func BenchmarkChange(b *testing.B) {
	for _, size := range crowdSizes {
		c := newCrowd(b, size.services, size.classes)
		for name, make := range map[string]func(i int) *configv1.Resource{
			"unrelated": func(i int) *configv1.Resource {
				return meshtest.Workload("ns1", "w", "10.200.0.1", func(w *configv1.Workload) { w.Labels = map[string]string{"n": fmt.Sprint(i)} })
			},
			"endpoints": func(i int) *configv1.Resource {
				return meshtest.Endpoints("ns7", hostOf(7), 80, fmt.Sprintf("10.3.%d.%d", i>>8&255, i&255))
			},
			"virtual service": func(i int) *configv1.Resource {
				return meshtest.Config(mesh.KindVirtualService, "ns5", "vs5", &networking.VirtualService{
					Hosts: []string{hostOf(5)}, Http: []*networking.HTTPRoute{{
						Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: hostOf(5 + i%2)}}},
					}},
				})
			},
			"service added": func(i int) *configv1.Resource {
				ns := fmt.Sprintf("ns%d", i%10)
				return meshtest.Service(ns, fmt.Sprintf("new%d.%s.svc.cluster.local", i, ns), 80, func(s *configv1.Service) {
					s.Addresses = []string{fmt.Sprintf("10.250.%d.%d", i>>8&255, i&255)}
				})
			},
		} {
			i := 0
			b.Run(fmt.Sprintf("%s/services=%d/classes=%d", name, size.services, size.classes), func(b *testing.B) {
				for b.Loop() {
					i++
					c.edit(make(i))
				}
			})
		}
	}
}
