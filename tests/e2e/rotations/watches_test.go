package rotations

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/tests/e2e/internal/hostmesh"
	"fairlead.dev/tests/internal/probe"
)

// soon is far below the half of a lifetime after which Istio's agents renew by themselves, 12 h here. Fairlead's agents
// and services renew within 30 s of the step renew.
const soon = 3 * time.Minute

// TestARotationWithAnAgentThatWatchesEndsSoon rotates the root twice, with the default lifetime of certificates, where
// an agent of Istio's has PROXY_CONFIG_XDS_AGENT. It takes the roots, and renews, when the ca's bundle changes.
func TestARotationWithAnAgentThatWatchesEndsSoon(t *testing.T) {
	istio(t)
	r := &rig{t: t, members: map[string]*member{}, refresh: time.Second}
	r.Mesh = hostmesh.Start(t, hostmesh.Options{
		XDSServers: 1, Config: map[string]string{"mesh.yaml": objects()},
		CA: func(hub string) []string { return caArgs(hub)[6:] },
	})
	for _, name := range []string{ours, watches} {
		h := r.Plug(name, addresses[name])
		h.Redirect()
		serve(t, h)
		r.members[name] = &member{name: name, host: h}
	}
	proxy := r.Join(r.members[ours].host, hostmesh.Workload{Name: ours, Namespace: "apps"})
	r.joinStock(watches)
	hostmesh.WaitReady(t, proxy)
	r.bothWays(t)
	for range 2 {
		before, began := r.roots(t), time.Now()
		r.Order(t, caapi.Command{Action: caapi.Rotate})
		step := ""
		testkit.Eventually(t, soon, func() error {
			s, err := r.Rotation(t.Context(), nil)
			if err != nil {
				return err
			}
			if s.Step != step {
				step = s.Step
				t.Logf("%s after %s: waits for %v", step, time.Since(began).Round(time.Millisecond), s.Lagging.First)
			}
			if step != idle {
				return fmt.Errorf("the step is %s, which waits for %v", step, s.Lagging.First)
			}
			return one(s)
		})
		if r.roots(t) == before {
			t.Error("the root is the one of before")
		}
		r.bothWays(t)
	}
}

// bothWays calls from each of the two sidecars to the other, with mutual TLS.
func (r *rig) bothWays(t *testing.T) {
	t.Helper()
	for from, to := range map[string]string{ours: watches, watches: ours} {
		client := probe.Client(r.members[from].host.DialBy)
		testkit.Eventually(t, hostmesh.Ready, func() error {
			_, err := probe.Get(t.Context(), client, "http://"+service(to)+"/")
			if err != nil {
				err = errors.Join(fmt.Errorf("from %s to %s", from, to), err)
			}
			return err
		})
	}
}
