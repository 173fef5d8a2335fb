package serve_test

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/plan/plantest"
	"fairlead.dev/services/xds-server/internal/serve"
	"fairlead.dev/services/xds-server/internal/translate"
)

// realTranslators are those of the xds-server binary.
func realTranslators(*plantest.Set) []plan.Translator { return translate.All() }

// heap returns the bytes in use on the heap.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // sync.Pools are emptied by the second collection
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far less than 2^63
}

// madeUp makes names of a type that no mesh has.
var madeUp = map[string]func(i int) string{
	resource.ClusterType:         func(i int) string { return fmt.Sprintf("outbound|80||made-up-%06d.nowhere.svc.cluster.local", i) },
	resource.EndpointType:        func(i int) string { return fmt.Sprintf("outbound|80||made-up-%06d.nowhere.svc.cluster.local", i) },
	resource.ListenerType:        func(i int) string { return fmt.Sprintf("10.77.%d.%d_80", i/250, i%250) },
	resource.RouteType:           func(i int) string { return fmt.Sprintf("made-up-%06d.nowhere.svc.cluster.local:80", i) },
	resource.VirtualHostType:     func(i int) string { return fmt.Sprintf("80/made-up-%06d.nowhere.svc.cluster.local:80", i) },
	resource.ExtensionConfigType: func(i int) string { return fmt.Sprintf("extension-%06d", i) },
}

func namesOf(url string, from, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = madeUp[url](from + i)
	}
	return names
}

// TestNamesAreChargedWhatTheyCost subscribes to names that do not exist, compares what the account is charged for
// them with the memory that they take, and gives them up. It does so several times with names of each time's own, so
// that memory that is not released adds up, and a table that keeps its size, or a message that waits, does not.
func TestNamesAreChargedWhatTheyCost(t *testing.T) {
	const n = 4000
	for _, url := range slices.Sorted(maps.Keys(madeUp)) {
		t.Run(short(url), func(t *testing.T) {
			r := startWith(t, setup{translators: realTranslators, change: func(c *serve.Config) { c.MaxSubscribedBytes = 16 << 20 }}, basicMesh())
			c := r.delta("pod", "default")
			take := func(from, n, have int) {
				c.subscribe(url, namesOf(url, from, n)...)
				r.until("pod", "subscribed", func(p *configv1.ProxyStatus) bool {
					for len(c.got) > 0 {
						c.ack(<-c.got)
					}
					return !typeStatus(p, url).GetAwaiting() && r.ADS.Names() == have
				})
			}
			take(n, 1, 1)
			before, charged := heap(), r.ADS.NamesBytes()
			take(2*n, n, n+1)
			took := heap() - before
			charged = r.ADS.NamesBytes() - charged
			t.Logf("a name takes %d bytes, and %d are charged", took/n, charged/n)
			if 10*charged < 8*took {
				t.Errorf("%d bytes are charged for what takes %d", charged, took)
			}
			const rounds = 4
			for i := range rounds {
				c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: url, ResourceNamesUnsubscribe: namesOf(url, (2+i)*n, n)})
				if i+1 < rounds {
					take((3+i)*n, n, n+1)
				}
			}
			testkit.Eventually(t, patience, func() error {
				if got := r.ADS.NamesBytes(); got > 1<<10 {
					return fmt.Errorf("%d bytes are charged for names that were given up", got)
				}
				// The class releases the names after the account. Under the race detector, pools drop and keep at
				// random.
				if left := heap() - before; left > rounds*took/2 && !raceEnabled {
					return fmt.Errorf("of %d times %d bytes for names that were given up %d are left", rounds, took, left)
				}
				return nil
			})
		})
	}
}
