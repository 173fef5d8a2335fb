package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// TestLifecycleUnderTraffic renews every certificate and then drains a server, while requests go on. None may fail.
func TestLifecycleUnderTraffic(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/echo.yaml"}})
	m.WaitReady(t)
	client := m.From(t, "client-0")
	mustReach(t, m, client, clientID)

	t.Run("renewal", func(t *testing.T) {
		load := fleet.StartLoad(t, client, fleet.Request{URL: "http://server/"}, 4)
		for _, name := range []string{"client-0", "server-v1-0", "server-v2-0"} {
			pod := m.Pod(t, name)
			before, err := pod.Certificate(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			m.SignalAgent(t, name, syscall.SIGUSR1)
			m.Eventually(t, testkit.Patience, func() error {
				after, err := pod.Certificate(t.Context())
				if err == nil && after == before {
					err = fmt.Errorf("%s still uses certificate %s", name, before)
				}
				return err
			})
		}
		m.Eventually(t, testkit.Patience, load.More(50))
		load.Stop(t)
	})

	t.Run("scale", func(t *testing.T) {
		load := fleet.StartLoad(t, client, fleet.Request{URL: "http://server/"}, 4)
		m.Eventually(t, testkit.Patience, load.More(20))
		for _, replicas := range []string{"0", "1"} {
			if code, out, errOut := m.CLI(t, "scale", "deploy/server-v2", "--replicas", replicas); code != 0 ||
				!strings.Contains(out, "runs "+replicas+" of 1 Pods") {
				t.Errorf("exit code %d, %s%s", code, out, errOut)
			}
			if runs := m.Pod(t, "server-v2-0").Agent.PID != 0; runs != (replicas == "1") {
				t.Errorf("%s replicas: the Pod runs: %t", replicas, runs)
			}
			if replicas == "0" {
				for _, command := range [][]string{{"describe", "pod", "server-v2-0", "-n", "apps"}, {"proxy-config", "clusters", "server-v2-0"}} {
					if code, _, errOut := m.CLI(t, command...); code == 0 || !strings.Contains(errOut, "fairlead scale deploy/server-v2") {
						t.Errorf("%v of a Pod that is scaled down: exit code %d, %s", command, code, errOut)
					}
				}
				if _, out, _ := m.CLI(t, "describe", "service", "server", "-n", "apps"); strings.Contains(out, "server-v2-0") {
					t.Errorf("the Service has a Pod that is scaled down:\n%s", out)
				}
			}
			m.Eventually(t, testkit.Patience, load.More(20))
		}
		load.Stop(t)
		if code, _, errOut := m.CLI(t, "scale", "deploy/server-v2", "--replicas", "2"); code != 1 || !strings.Contains(errOut, "has had 1 Pods") {
			t.Errorf("more than there are: exit code %d, %s", code, errOut)
		}
		if code, _, errOut := m.CLI(t, "scale", "deploy/serve-v2", "--replicas", "0"); code != 1 ||
			!strings.Contains(errOut, `did you mean "server-v2"`) {
			t.Errorf("a name that is not there: exit code %d, %s", code, errOut)
		}
	})

	t.Run("drain", func(t *testing.T) {
		// The agent of the drained server stays away when it has gone.
		m.CloseGate(t, "node-agent.server-v2-0")
		// Several, so that some of them are on the drained server.
		const slow = 4
		slowly := make(chan error, slow)
		load := fleet.StartLoad(t, client, fleet.Request{URL: "http://server/"}, 4)
		for range slow {
			go func() {
				a, err := client.Do(t.Context(), fleet.Request{URL: "http://server/?delay=1500ms"})
				if err == nil && a.Status != 200 {
					err = fmt.Errorf("status %d: %s", a.Status, a.Body)
				}
				slowly <- err
			}()
		}
		m.Eventually(t, testkit.Patience, load.More(20))
		pid := m.Pod(t, "server-v2-0").Agent.PID
		m.SignalAgent(t, "server-v2-0", syscall.SIGTERM)
		m.Eventually(t, testkit.Patience, func() error {
			if got := m.Pod(t, "server-v2-0").Agent.PID; got == pid {
				return fmt.Errorf("agent %d still runs", got)
			}
			return nil
		})
		m.Eventually(t, testkit.Patience, load.More(50))
		for range slow {
			if err := <-slowly; err != nil {
				t.Errorf("a request that was under way: %v", err)
			}
		}
		load.Stop(t)
		m.OpenGate(t, "node-agent.server-v2-0")
		m.WaitPods(t, "server-v2-0")
		m.Eventually(t, takesEffect, func() error {
			a, err := client.Get(t.Context(), "http://server/")
			if err == nil && a.Seen.Version != "v2" {
				err = fmt.Errorf("%s answered", a.Seen.Pod)
			}
			return err
		})
	})
}
