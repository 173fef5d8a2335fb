package consul

import (
	"fmt"
	"math"
	"net/http"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit/consultest"
)

// share asks many times and returns how many of a hundred answers come from Consul's applications.
func (r *rig) share(t *testing.T, url string) float64 {
	t.Helper()
	const requests, workers = 1000, 2 // few at a time, because Envoy also chooses by what is under way
	client := r.From(t, "client-0")
	var all sync.WaitGroup
	there := make([]int, workers)
	for w := range workers {
		all.Go(func() {
			for range requests / workers {
				a, err := client.Get(t.Context(), url)
				if err != nil || a.Status != http.StatusOK {
					t.Errorf("%v %d %s", err, a.Status, a.Body)
					return
				}
				if a.Seen.Pod == "there-0" || a.Seen.Pod == "there-1" {
					there[w]++
				}
			}
		})
	}
	all.Wait()
	sum := 0
	for _, n := range there {
		sum += n
	}
	return float64(sum) / requests * 100
}

// A Service moves out of Consul and back: its requests are divided by the share, whatever the numbers of instances, and
// no change of the share fails one.
func TestAServiceMovesAndBack(t *testing.T) {
	fake := consultest.StartFake(nil)
	t.Cleanup(fake.Stop)
	fake.Set("web", runs(t, "there-0").registration("web", "passing"), runs(t, "there-1").registration("web", "passing"))
	by := func(share int) string {
		return ofFake(fake, fmt.Sprintf("  - {services: [web], namespace: shop, port: 80, protocol: http, "+
			"joins: web.shop.svc.cluster.local, share: %d}", share))
	}
	r := start(t, map[string]string{"east": by(0)})
	r.reaches("http://web.service.consul/", "there-0") // it has been read
	const url = "http://web.shop.svc.cluster.local/"
	stream := r.load("web.shop.svc.cluster.local", 100)
	for _, share := range []int{0, 10, 50, 90, 100, 75, 0} {
		stream.Holds(t, fmt.Sprintf("%d percent of it are in Consul", share), 0, func(t *testing.T) {
			r.declare("east", by(share))
			var got float64
			// Four standard deviations of a thousand draws; none at 0 and 100.
			most := 4 * math.Sqrt(float64(share*(100-share))/1000)
			r.Eventually(t, 30*time.Second, func() error {
				if got = r.share(t, url); math.Abs(got-float64(share)) > most {
					return fmt.Errorf("%.1f percent of the requests go to Consul's instances", got)
				}
				return nil
			})
			t.Logf("%.1f percent", got)
		})
	}
	stream.Holds(t, "a side without ready endpoints leaves all to the other", 0, func(t *testing.T) {
		r.declare("east", by(50))
		r.Eventually(t, 30*time.Second, func() error {
			if got := r.share(t, url); got < 40 || got > 60 {
				return fmt.Errorf("%.1f percent", got)
			}
			return nil
		})
		fake.Set("web", runs(t, "there-0").registration("web", "critical"))
		r.Eventually(t, 30*time.Second, func() error {
			if got := r.share(t, url); got > 0 {
				return fmt.Errorf("%.1f percent of the requests go to critical instances", got)
			}
			return nil
		})
	})
}
