package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
)

// reason is what `fairlead why -o json` says.
type reason struct {
	Type     string   `json:"type"`
	Name     string   `json:"name"`
	Revision uint64   `json:"revision"`
	Problem  string   `json:"problem"`
	MadeFrom []origin `json:"madeFrom"`
	NotFound []string `json:"notFound"`
}

type origin struct {
	Kind, Namespace, Name, Source, Location string
	Generation                              int64
}

// from finds an object among those that the resource was made from.
func (r *reason) from(kind, name string) *origin {
	for i, o := range r.MadeFrom {
		if o.Kind == kind && o.Namespace == "apps" && o.Name == name {
			return &r.MadeFrom[i]
		}
	}
	return nil
}

func why(t *testing.T, m *fleet.Mesh, args ...string) *reason {
	t.Helper()
	code, out, errOut := m.CLI(t, append([]string{"why", "-o", "json"}, args...)...)
	if code != 0 {
		t.Fatalf("fairlead why %v: exit code %d: %s", args, code, errOut)
	}
	r := &reason{}
	if err := json.Unmarshal([]byte(out), r); err != nil {
		t.Fatalf("fairlead why %v: %v: %s", args, err, out)
	}
	return r
}

// apply writes objects by the CLI and waits until every proxy has acknowledged them.
func apply(t *testing.T, m *fleet.Mesh, yaml string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errOut := m.CLI(t, "config", "apply", "-f", file, "--wait"); code != 0 {
		t.Fatalf("config apply: exit code %d: %s%s", code, out, errOut)
	}
}

// subsetRule is a DestinationRule of its own for the server, with one more subset.
func subsetRule(timeout string) string {
	return `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: extra, namespace: apps}
spec:
  host: server
  subsets:
    - name: extra
      labels: {version: v1}
      trafficPolicy: {connectionPool: {tcp: {connectTimeout: ` + timeout + `}}}
`
}

// TestWhy follows objects to the resources of a proxy, before and after they are edited.
func TestWhy(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}})
	m.WaitReady(t)
	const (
		host  = "server.apps.svc.cluster.local"
		extra = "outbound|80|extra|" + host
		v1    = "outbound|80|v1|" + host
	)
	apply(t, m, routeNamed("first")+"---\n"+subsetRule("3s"))

	expect := func(r *reason, kind, name string, generation int64) {
		t.Helper()
		if o := r.from(kind, name); o == nil || o.Generation != generation || o.Source == "" {
			t.Errorf("%s %s: %s apps/%s is %+v, want generation %d", r.Type, r.Name, kind, name, o, generation)
		}
	}
	hosts := why(t, m, "client-0", "server:80", "--type", "virtualhosts")
	if hosts.Type != "virtualhosts" || !strings.HasSuffix(hosts.Name, "/"+host+":80") || hosts.Problem != "" {
		t.Errorf("virtual host: %+v", hosts)
	}
	expect(hosts, "VirtualService", "server", 1)
	expect(hosts, "DestinationRule", "extra", 1)
	// Files keep no generations; they have lines instead.
	expect(hosts, "Service", "server", 0)
	if s := hosts.from("Service", "server"); s != nil && !strings.HasPrefix(filepath.Base(s.Location), "pair.yaml:") {
		t.Errorf("the Service's location is %q", s.Location)
	}
	if hosts.from("Service", "client") != nil {
		t.Errorf("the virtual host was made from %+v", hosts.MadeFrom)
	}
	expect(why(t, m, "client-0.apps", extra), "DestinationRule", "extra", 1)
	expect(why(t, m, "client-0.apps", extra), "DestinationRule", "server", 0)
	expect(why(t, m, "client-0", v1, "--type", "endpoints"), "Service", "server", 0)

	// One edit, two, and nothing else: each has its own count.
	apply(t, m, routeNamed("second"))
	hosts = why(t, m, "client-0", "server:80", "--type", "virtualhosts")
	expect(hosts, "VirtualService", "server", 2)
	expect(hosts, "DestinationRule", "extra", 1)
	apply(t, m, subsetRule("4s"))
	again := why(t, m, "client-0", extra)
	expect(again, "DestinationRule", "extra", 2)
	if again.Revision <= hosts.Revision {
		t.Errorf("revision %d after an edit, %d before", again.Revision, hosts.Revision)
	}

	code, out, errOut := m.CLI(t, "why", "client-0", "server")
	if code != 0 || !strings.Contains(out, "virtualhosts") || !strings.Contains(errOut, "--all") {
		t.Errorf("a host of several resources: exit code %d: %s%s", code, out, errOut)
	}
	code, out, errOut = m.CLI(t, "why", "client-0", v1)
	for _, want := range []string{"made from:", "DestinationRule", "apps/server", "pair.yaml:", "looked for and not found:"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, lacks %q: %s%s", code, want, out, errOut)
		}
	}
	if code, out, errOut := m.CLI(t, "why", "client-0", "nonsense"); code != 1 || !strings.Contains(errOut, "nonsense") {
		t.Errorf("no such resource: exit code %d: %s%s", code, out, errOut)
	}
	for _, what := range []string{"clusters", "virtualhosts"} {
		code, out, errOut := m.CLI(t, "proxy-config", "client-0", what, "--name", "server")
		if code != 0 || !strings.Contains(out, "server.apps") || strings.Contains(out, "PassthroughCluster") {
			t.Errorf("proxy-config %s of a name: exit code %d: %s%s", what, code, out, errOut)
		}
	}
	if code, out, errOut := m.CLI(t, "proxy-config", "client-0", "clusters", "--served", "-o", "json"); code != 0 ||
		!strings.Contains(out, extra) {
		t.Errorf("proxy-config --served: exit code %d: %s%s", code, out, errOut)
	}
}

// TestRejectionIsShown has a proxy that rejects a cluster and does not answer for its listeners.
func TestRejectionIsShown(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}, Closed: []string{"node-agent.late-0"}})
	m.WaitPods(t, "client-0", "server-v1-0")
	const (
		cluster = "outbound|80|v1|server.apps.svc.cluster.local"
		message = "Error adding/updating cluster(s) " + cluster + ": this proxy does not like it"
	)
	proxy := m.ADS(t, "late-0", "xds-server-1")
	testkit.NoError(t, proxy.Subscribe(clusterType, "*"))
	testkit.NoError(t, proxy.Answer(testkit.Must(proxy.Next(clusterType))(t), errors.New(message)))
	testkit.NoError(t, proxy.Subscribe(listenerType, "*"))
	unanswered := testkit.Must(proxy.Next(listenerType))(t)

	m.Eventually(t, takesEffect, func() error {
		code, out, errOut := m.CLI(t, "proxy-status", "late-0")
		for _, want := range []string{"ERROR", "STALE", "ack for ", message, "\n  " + cluster + "\n", "xds-server-1"} {
			if code != 0 || !strings.Contains(out, want) {
				return fmt.Errorf("exit code %d, lacks %q: %s%s", code, want, out, errOut)
			}
		}
		return nil
	})
	// The other proxy may still acknowledge what it was sent when it became ready.
	m.Eventually(t, takesEffect, func() error {
		code, out, errOut := m.CLI(t, "proxy-status")
		late, other := lineOf(out, "late-0.apps"), lineOf(out, "client-0.apps")
		if code != 0 || !strings.Contains(late, "ERROR") || !strings.Contains(late, "STALE") ||
			!strings.Contains(other, "SYNCED") || strings.Contains(other, "ERROR") {
			return fmt.Errorf("exit code %d: %s%s", code, out, errOut)
		}
		return nil
	})
	if r := why(t, m, "late-0", cluster); !strings.Contains(r.Problem, message) || r.from("DestinationRule", "server") == nil {
		t.Errorf("why: %+v", r)
	}

	testkit.NoError(t, proxy.Answer(unanswered, nil))
	m.Eventually(t, takesEffect, func() error {
		if _, out, _ := m.CLI(t, "proxy-status", "late-0"); strings.Contains(out, "STALE") {
			return fmt.Errorf("still waits: %s", out)
		}
		return nil
	})
}

// lineOf is the line that starts with a word.
func lineOf(text, word string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, word+" ") {
			return line
		}
	}
	return ""
}
