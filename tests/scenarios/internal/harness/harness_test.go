package harness_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/scenarios/internal/caller"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/harness"
	"fairlead.dev/tests/scenarios/internal/store"
)

// TestMain makes the user root of namespaces of its own.
func TestMain(m *testing.M) { userns.Main(m) }

const topology = `
namespaces:
  apps: {istio-injection: enabled}
  istio-system: {}
mesh: |
  outboundTrafficPolicy: {mode: ALLOW_ANY}
workloads:
- {name: client, namespace: apps, service: client, serviceAccount: client, kind: sidecar, capture: REDIRECT, labels: {app: client}, locality: here/there/s1,
   ports: [{name: http, port: 80, targetPort: 8080, app: HTTP, bind: all}]}
- {name: server, namespace: apps, service: server, serviceAccount: server, kind: sidecar, capture: REDIRECT, labels: {app: server}, locality: here/there/s2,
   ports: [{name: http, port: 80, targetPort: 8080, app: HTTP, bind: all}]}
- {name: spare, namespace: apps, service: server, serviceAccount: server, kind: naked, capture: NONE, labels: {app: server}, start: false,
   ports: [{name: http, port: 80, targetPort: 8080, app: HTTP, bind: all}]}
`

const retries = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: apps}
spec:
  hosts: [server]
  http:
  - {route: [{destination: {host: server}}], timeout: 3s}
---
apiVersion: v1
kind: Service
metadata: {name: second, namespace: apps}
spec: {selector: {app: server}, ports: [{name: http, port: 8000, targetPort: 8080}]}
`

// start runs the topology until the test ends.
func start(t *testing.T, text string) *harness.Harness {
	t.Helper()
	userns.Need(t, netns.Programs...)
	spec := &format.Topology{Name: "pair"}
	if err := yaml.Unmarshal([]byte(text), spec); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "flscen")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h, err := harness.Start(t.Context(), spec, harness.Options{Dir: filepath.Join(dir, "w"), Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("logs are in %s", dir)
			return
		}
		os.RemoveAll(dir)
	})
	return h
}

func TestWorld(t *testing.T) {
	h := start(t, topology)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	steps := func(t *testing.T, all ...func() error) {
		t.Helper()
		for i, step := range all {
			began := time.Now()
			if err := step(); err != nil {
				t.Fatalf("step %d: %v", i+1, err)
			}
			t.Logf("step %d took %s", i+1, time.Since(began))
		}
	}
	scenario := func(name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			if err := h.Begin(ctx); err != nil {
				t.Fatal(err)
			}
			f(t)
			began := time.Now()
			for _, problem := range h.End(ctx, func(string) bool { return false }) {
				t.Error(problem)
			}
			t.Logf("checked and restored in %s", time.Since(began))
		})
	}
	has := func(t *testing.T, list []string, part string, want bool) {
		t.Helper()
		if got := strings.Contains(strings.Join(list, "\n"), part); got != want {
			t.Errorf("%q: %t in %v", part, got, list)
		}
	}

	scenario("objects come and go", func(t *testing.T) {
		vip, err := h.VIP("second.apps")
		if err != nil {
			t.Fatal(err)
		}
		steps(t, func() error { return h.Apply(ctx, retries, true) })
		held, err := h.Held(ctx, "client")
		if err != nil {
			t.Fatal(err)
		}
		has(t, held.Clusters, "outbound|8000||second.apps.svc.cluster.local", true)
		has(t, held.VirtualHosts, "second.apps.svc.cluster.local:8000", true)
		if again, err := h.VIP("second.apps"); err != nil || again != vip {
			t.Errorf("second has the address %s, and had %s: %v", again, vip, err)
		}
	})
	scenario("calls go through the proxies", func(t *testing.T) {
		from, err := h.Machine("client")
		if err != nil {
			t.Fatal(err)
		}
		c := &caller.Caller{From: from}
		for _, result := range c.Run(ctx, &format.Call{URL: "http://server/x", Count: 3, Timeout: format.Duration(30 * time.Second)}) {
			if result.Err != nil || result.Status != http.StatusOK || result.Seen == nil || result.Seen.Workload != "server" {
				t.Errorf("status %d, %v: %s", result.Status, result.Err, result.Body)
			}
		}
		identity, err := h.Identity("client")
		if err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, testkit.Patience, func() error {
			log, err := os.ReadFile(h.AccessLog("server"))
			if err == nil && strings.Count(string(log), identity) != 3 {
				err = fmt.Errorf("the server's log does not have %s three times: %s", identity, log)
			}
			return err
		})
		for name, want := range map[string]bool{"server": true, "server.apps": true, "nobody": false} {
			if got := c.Run(ctx, &format.Call{URL: "dns://" + name, Count: 1,
				Timeout: format.Duration(30 * time.Second)})[0]; (got.Err == nil) != want {
				t.Errorf("%s: %v %v", name, got.Addresses, got.Err)
			}
		}
	})
	scenario("the network leads to Services", func(t *testing.T) {
		from, err := h.Machine(format.Outside)
		if err != nil {
			t.Fatal(err)
		}
		vip, err := h.VIP("server.apps")
		if err != nil {
			t.Fatal(err)
		}
		c := &caller.Caller{From: from}
		call := &format.Call{URL: "http://" + vip + "/", Count: 1, Timeout: format.Duration(30 * time.Second)}
		if r := c.Run(ctx, call)[0]; r.Err != nil || r.Seen == nil || r.Seen.Workload != "server" {
			t.Errorf("status %d, %v", r.Status, r.Err)
		}
		steps(t, func() error { return h.Stop(ctx, "server") })
		if r := c.Run(ctx, call)[0]; !r.Failed(caller.Refused) {
			t.Errorf("nobody is there, and the answer is %d, %v", r.Status, r.Err)
		}
	})
	scenario("a refused object changes nothing", func(t *testing.T) {
		err := h.Apply(ctx, "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: apps}\nspec: {hosts: "+
			"[server], htpp: []}\n", true)
		var refused *store.Refused
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), "htpp") {
			t.Errorf("got %v", err)
		}
	})
	scenario("services end and come back", func(t *testing.T) {
		steps(t,
			func() error { return h.Kill(ctx, "xds-server/0") },
			func() error { return h.Apply(ctx, retries, true) },
			func() error { return h.Start(ctx, "xds-server/0") },
			func() error { return h.Stop(ctx, "config-watcher") },
			func() error { return h.Start(ctx, "config-watcher") },
			func() error { return h.Delete(ctx, []string{"VirtualService/apps/server"}, true) },
			func() error { return h.Restart(ctx, "ca") },
			func() error { return h.Kill(ctx, "xds-server") },
		)
	})
	scenario("workloads end and come back", func(t *testing.T) {
		steps(t,
			func() error { return h.Kill(ctx, "server/proxy") },
			func() error { return h.Start(ctx, "server/proxy") },
			func() error { return h.Stop(ctx, "server") },
			func() error { return h.Kill(ctx, "client/agent") },
			func() error { return h.Restart(ctx, "server/app") },
			func() error { return h.Add(ctx, "spare") },
		)
		held, err := h.Held(ctx, "server")
		if err == nil {
			t.Errorf("a proxy that was stopped holds %v", held)
		}
	})
	scenario("nothing is left of it", func(t *testing.T) {
		held, err := h.Held(ctx, "client")
		if err != nil {
			t.Fatal(err)
		}
		ip, err := h.IP("server")
		if err != nil {
			t.Fatal(err)
		}
		has(t, held.Clusters, "second", false)
		has(t, held.Endpoints, "outbound|80||server.apps.svc.cluster.local::"+ip+":8080", true)
		spare, err := h.IP("spare")
		if err != nil {
			t.Fatal(err)
		}
		has(t, held.Endpoints, spare, false)
	})
}
