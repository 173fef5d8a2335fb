package e2e

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// TestConfigWatcherAway kills config-watcher. Traffic goes on, a proxy that never ran before gets its whole
// configuration, and the next change arrives once config-watcher is back.
func TestConfigWatcherAway(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}, Closed: []string{"node-agent.late-0"}})
	m.WaitPods(t, "client-0", "server-v1-0")
	client := m.From(t, "client-0")
	mustReach(t, m, client, clientID)

	load := fleet.StartLoad(t, client, fleet.Request{URL: "http://server/"}, 2)
	m.CloseGate(t, "config-watcher")
	m.Kill(t, "config-watcher")

	m.OpenGate(t, "node-agent.late-0")
	m.WaitProxy(t, "late-0")
	mustReach(t, m, m.From(t, "late-0"), "spiffe://cluster.local/ns/apps/sa/late")

	m.WriteConfig(t, "route.yaml", virtualService(`
    - route: [{destination: {host: server, subset: v1}}]
      headers:
        response: {set: {x-route: after}}
`))
	m.Eventually(t, testkit.Patience, load.More(50))
	m.OpenGate(t, "config-watcher")
	m.Eventually(t, testkit.Patience, func() error {
		a, err := client.Get(t.Context(), "http://server/")
		return errors.Join(err, header(a, "X-Route", "after"))
	})
	load.Stop(t)
	m.WaitReady(t)
}

// TestCAAway kills the ca. Running proxies keep their certificates and their traffic; a new workload waits, and starts
// once the ca is back.
func TestCAAway(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}, Closed: []string{"node-agent.late-0"}})
	m.WaitPods(t, "client-0", "server-v1-0")
	client := m.From(t, "client-0")
	mustReach(t, m, client, clientID)
	before, err := m.Pod(t, "client-0").Certificate(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	load := fleet.StartLoad(t, client, fleet.Request{URL: "http://server/"}, 2)
	m.CloseGate(t, "ca")
	m.Kill(t, "ca")
	m.OpenGate(t, "node-agent.late-0")
	m.WaitRunning(t, "late-0.apps/istio-proxy", "node-agent")
	// Requests made after the agent began to ask for a certificate: it had the time to get one, if anybody gave it one.
	m.Eventually(t, testkit.Patience, load.More(500))
	if err := m.Pod(t, "late-0").ProxyReady(t.Context()); err == nil {
		t.Error("a new proxy is ready without a certificate")
	}
	// New connections need the certificate that is there.
	mustReach(t, m, m.From(t, "client-0"), clientID)
	after, err := m.Pod(t, "client-0").Certificate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if before != after {
		t.Errorf("the certificate changed from %s to %s without a ca", before, after)
	}

	m.OpenGate(t, "ca")
	m.WaitProxy(t, "late-0")
	mustReach(t, m, m.From(t, "late-0"), "spiffe://cluster.local/ns/apps/sa/late")
	load.Stop(t)
	m.WaitReady(t)
}

// TestAnyStartOrder starts the services one after the other, each only when the one before runs, beginning with the
// ones that need the others.
func TestAnyStartOrder(t *testing.T) {
	for _, order := range [][]string{
		{"xds-server", "config-watcher", "ca"},
		{"config-watcher", "ca", "xds-server"},
	} {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}, Closed: order})
			openInOrder(t, m, order)
			m.WaitReady(t)
			mustReach(t, m, m.From(t, "client-0"), clientID)
		})
	}

	// Agents that run before any service does. `fairlead up` starts them once the mesh knows their Pods, so here
	// everything else goes away first.
	t.Run("node-agent xds-server config-watcher ca", func(t *testing.T) {
		m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}})
		m.WaitReady(t)
		order := []string{"xds-server", "config-watcher", "ca"}
		for _, program := range order {
			m.CloseGate(t, program)
			for _, process := range processes(program) {
				m.Kill(t, process)
			}
		}
		pods := []string{"client-0", "server-v1-0"}
		for _, pod := range pods {
			pid := m.Pod(t, pod).Agent.PID
			m.SignalAgent(t, pod, syscall.SIGKILL)
			m.Eventually(t, testkit.Patience, func() error {
				if now := m.Pod(t, pod).Agent.PID; now == pid || now == 0 {
					return fmt.Errorf("agent of %s: pid %d after %d", pod, now, pid)
				}
				return nil
			})
			m.WaitRunning(t, pod+".apps/istio-proxy", "node-agent")
			if err := m.Pod(t, pod).ProxyReady(t.Context()); err == nil {
				t.Errorf("%s is ready without any service", pod)
			}
		}
		openInOrder(t, m, order)
		for _, pod := range pods {
			m.WaitProxy(t, pod)
		}
		mustReach(t, m, m.From(t, "client-0"), clientID)
	})
}

// openInOrder opens the gates of the programs, each when the one before runs.
func openInOrder(t *testing.T, m *fleet.Mesh, order []string) {
	t.Helper()
	for _, program := range order {
		m.OpenGate(t, program)
		for _, process := range processes(program) {
			m.WaitRunning(t, process, program)
		}
	}
}

// processes names the processes of a service.
func processes(program string) []string {
	if program == "xds-server" {
		return []string{"xds-server-0", "xds-server-1"}
	}
	return []string{program}
}

// mustReach waits until the server answers, having verified the client's identity.
func mustReach(t *testing.T, m *fleet.Mesh, c *fleet.Client, id string) {
	t.Helper()
	m.Eventually(t, takesEffect, func() error {
		a, err := c.Get(t.Context(), "http://server/")
		if err != nil {
			return err
		}
		if a.Status != 200 {
			return fmt.Errorf("status %d: %s", a.Status, a.Body)
		}
		if !strings.HasSuffix(a.Seen.Headers.Get("X-Forwarded-Client-Cert"), "URI="+id) {
			return fmt.Errorf("the server saw the client certificate %q", a.Seen.Headers.Get("X-Forwarded-Client-Cert"))
		}
		return nil
	})
}
