package consul

import (
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/consultest"
)

// A change of health in Consul decides about requests of an Envoy soon: 99 of a hundred within 250 ms if the machine
// does nothing else, which the long form asserts.
func TestAChangeIsSoonInEnvoy(t *testing.T) {
	changes, goal := 20, testkit.Patience
	if long {
		changes, goal = 100, 250*time.Millisecond
	}
	fake := consultest.StartFake(nil)
	t.Cleanup(fake.Stop)
	probed := []application{runs(t, "a"), runs(t, "b")}
	r := start(t, map[string]string{"east": ofFake(fake, "  - {services: ['*'], namespace: shop, port: 80, protocol: http}")})
	client := r.From(t, "client-0")
	took := make([]time.Duration, changes)
	for i := range took {
		up, down := probed[i%2], probed[(i+1)%2]
		began := time.Now()
		fake.Set("probed", up.registration("probed", "passing"), down.registration("probed", "critical"))
		for took[i] == 0 {
			a, err := client.Get(t.Context(), "http://probed.service.consul/")
			switch waited := time.Since(began); {
			case err == nil && a.Seen.Pod == up.name:
				took[i] = waited
			case waited > testkit.Patience:
				t.Fatalf("change %d is not in Envoy: %v %d %s", i, err, a.Status, a.Body)
			}
		}
		time.Sleep(200 * time.Millisecond) // a quiet mesh, not one that is pushed to again and again
	}
	took = slices.Sorted(slices.Values(took[1:])) // the first makes the cluster
	p99 := took[len(took)*99/100]
	t.Logf("p50 %s, p99 %s of %d changes", took[len(took)/2], p99, len(took))
	if p99 > goal {
		t.Errorf("p99 %s, want %s", p99, goal)
	}
}
