package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// xdsServers are the two that `fairlead up` runs.
var xdsServers = map[string]string{"xds-server-0": "xds-server-1", "xds-server-1": "xds-server-0"}

// TestXDSServersKilled kills the xds-server of a proxy, and then the other one. Proxies move within seconds, and
// because they say what they hold they are sent only what changed: nothing at first, one route later.
func TestXDSServersKilled(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/echo.yaml"}})
	m.WriteConfig(t, "route.yaml", routeNamed("first"))
	m.WaitReady(t)
	client := m.From(t, "client-0")
	answers := func(name string) {
		t.Helper()
		m.Eventually(t, takesEffect, func() error {
			a, err := client.Get(t.Context(), "http://server/")
			return errors.Join(err, header(a, "X-Route", name))
		})
	}
	answers("first")
	statuses, err := m.ProxyStatuses(t)
	if err != nil {
		t.Fatal(err)
	}
	victim := statuses["client-0"].Server()
	other := xdsServers[victim]
	if other == "" {
		t.Fatalf("client-0 is connected to %q", victim)
	}
	whole := received(t, m)
	for pod, n := range whole {
		if n < 2000 {
			t.Errorf("%s was sent %.0f bytes of configuration at its start: too few to tell less from them", pod, n)
		}
	}

	load := fleet.StartLoad(t, client, fleet.Request{URL: "http://server/"}, 2)
	m.CloseGate(t, "xds-server")
	start := time.Now()
	m.Kill(t, victim)
	m.Eventually(t, 20*time.Second, func() error { return connectedTo(t, m, other) })
	t.Logf("all proxies were connected to %s %s after %s was killed", other, time.Since(start).Round(time.Millisecond), victim)
	mustBeLess(t, "by reconnecting", received(t, m), whole, whole, 0.05)

	// What the survivor sends after a change is that change.
	before := received(t, m)
	m.WriteConfig(t, "route.yaml", routeNamed("second"))
	answers("second")
	everybodyGot(t, m, before)
	mustBeLess(t, "for one route", received(t, m), before, whole, 0.25)

	// Nobody serves; a change waits.
	m.Kill(t, other)
	before = received(t, m)
	m.WriteConfig(t, "route.yaml", routeNamed("third"))
	m.Eventually(t, testkit.Patience, load.More(100))
	m.OpenGate(t, "xds-server")
	answers("third")
	m.Eventually(t, testkit.Patience, func() error { return connectedTo(t, m, victim, other) })
	everybodyGot(t, m, before)
	mustBeLess(t, "by reconnecting after one change", received(t, m), before, whole, 0.25)
	load.Stop(t)
}

// routeNamed is a route whose answers carry its name.
func routeNamed(name string) string {
	return virtualService(`
    - route: [{destination: {host: server, subset: v1}}]
      headers:
        response: {set: {x-route: ` + name + `}}
`)
}

// connectedTo is the condition that every proxy is connected to one of the servers and waits for nothing.
func connectedTo(t *testing.T, m *fleet.Mesh, servers ...string) error {
	t.Helper()
	statuses, err := m.ProxyStatuses(t)
	if err != nil {
		return err
	}
	for _, pod := range m.State(t).Proxies() {
		s, known := statuses[pod.Name]
		if !known {
			return fmt.Errorf("%s is connected to no xds-server", pod.Name)
		}
		there := false
		for _, name := range servers {
			there = there || s.Server() == name
		}
		// Clusters, endpoints, listeners, routes: until it has asked for all of them, something could still be sent
		// again.
		if !there || len(s.Types) < 4 {
			return fmt.Errorf("%s is connected to %s with %d types", pod.Name, s.XDSServer, len(s.Types))
		}
		for _, ty := range s.Types {
			if ty.Awaiting {
				return fmt.Errorf("%s has not answered for %s", pod.Name, ty.TypeURL)
			}
		}
	}
	return nil
}

// received is what each proxy has been sent up to now, in bytes.
func received(t *testing.T, m *fleet.Mesh) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, pod := range m.State(t).Proxies() {
		n, err := pod.Received(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out[pod.Name] = n
	}
	return out
}

// everybodyGot waits until every proxy has been sent something since before.
func everybodyGot(t *testing.T, m *fleet.Mesh, before map[string]float64) {
	t.Helper()
	m.Eventually(t, takesEffect, func() error {
		for pod, n := range received(t, m) {
			if n <= before[pod] {
				return fmt.Errorf("%s was sent nothing", pod)
			}
		}
		return nil
	})
}

// mustBeLess asserts that what was received since before is at most a share of the whole configuration.
func mustBeLess(t *testing.T, why string, now, before, whole map[string]float64, share float64) {
	t.Helper()
	for pod, n := range now {
		diff := n - before[pod]
		if diff > share*whole[pod] {
			t.Errorf("%s was sent %.0f bytes %s; its whole configuration is %.0f", pod, diff, why, whole[pod])
			continue
		}
		t.Logf("%s was sent %.0f bytes %s; its whole configuration is %.0f", pod, diff, why, whole[pod])
	}
}
