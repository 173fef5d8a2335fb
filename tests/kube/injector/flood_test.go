package injector

import (
	"errors"
	"testing"
	"time"

	"fairlead.dev/tests/internal/flood"
)

// limit is what the chart gives the injector, in bytes.
const limit = 512 << 20

// Pods that show no credentials send the injector reviews that claim a victim's namespace. The victim's Pods are made
// in time all the same, and the injector lives.
func TestPodsAreMadeDuringAFloodOfReviews(t *testing.T) {
	r := newRig(t)
	r.namespace(flood.Victim, map[string]string{"istio-injection": "enabled"})
	t.Setenv("GOMEMLIMIT", "486MiB") // as the chart sets it
	r.start()
	r.injects(flood.Victim, pod("before"))
	for name, body := range map[string][]byte{"variables": flood.Variables(1000, 2200), "containers": flood.Containers(750_000),
		"many containers": flood.Containers(49_000)} {
		t.Run(name, func(t *testing.T) {
			memory := flood.Watch(t, r.process.PID(), limit)
			stop := flood.Attack{URL: "https://" + r.address + "/inject", Body: body, Addresses: 2, Connections: 32}.Start(t)
			flood.Rightful(t, 5*time.Second, func() error {
				stored, err := r.dryRun(flood.Victim, pod("app"))
				if err == nil && proxy(stored) == nil {
					err = errors.New("the Pod has no sidecar")
				}
				return err
			})
			answers := stop()
			t.Logf("the attacker was answered %v; the injector had %d MiB", answers, memory()>>20)
		})
	}
}
