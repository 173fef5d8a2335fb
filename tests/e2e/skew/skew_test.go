// Package skew tests that services of this release and of the previous one make one mesh, as they do during every
// upgrade: real services, real Envoys, redirected connections. PREVIOUS names the commit of the previous release;
// `make skew` builds its services.
package skew

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/tests/e2e/internal/hostmesh"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/load"
)

func TestMain(m *testing.M) {
	if os.Getenv("PREVIOUS_BIN") == "" {
		fmt.Fprintln(os.Stderr, "tests skipped: PREVIOUS_BIN names no directory with the services of the previous release: run `make skew`")
		return
	}
	userns.Main(m)
}

const (
	clientIP, serverIP, otherIP = "198.18.1.1", "198.18.1.2", "198.18.1.3"
	// address is that of Service server.
	address = "198.19.0.1:80"
	client  = "spiffe://cluster.local/ns/apps/sa/client"
	// rate of requests while services are replaced, a second.
	rate = 100
)

// agent is the program beside Envoy; the others are the control plane, in the order in which an upgrade replaces them.
const agent = "node-agent"

var services = []string{"ca", "config-watcher", "xds-server", agent}

// release is a directory of programs.
type release string

// releases are the previous one and this one.
func releases(t *testing.T) (previous, this release) {
	t.Helper()
	previous = release(os.Getenv("PREVIOUS_BIN"))
	set, err := binaries.Find(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return previous, release(set.Dir)
}

func (r release) path(program string) string { return filepath.Join(string(r), program) }

// mesh is one whose services come from two releases.
type mesh struct {
	*hostmesh.Mesh
	t *testing.T
	// bin has a link for each program.
	bin                   string
	client, server, other *hostmesh.Proxy
	changes               int
}

// start starts a mesh, each service from the release that from names, and the ca with further arguments, and waits
// until a request passes it.
func start(t *testing.T, from func(service string) release, ca ...string) *mesh {
	t.Helper()
	hostmesh.Needs(t)
	m := &mesh{t: t, bin: t.TempDir()}
	_, this := releases(t)
	m.link("fairlead", this)
	if err := os.Symlink("/bin/true", filepath.Join(m.bin, "e2e-echo")); err != nil { // no test here runs it
		t.Fatal(err)
	}
	for _, s := range services {
		m.link(s, from(s))
	}
	t.Setenv("BIN_DIR", m.bin)
	m.Mesh = hostmesh.Start(t, hostmesh.Options{
		XDSServers: 1, Config: map[string]string{"mesh.yaml": objects, "route.yaml": route(0)}, CA: func(string) []string { return ca },
	})
	join := func(name, ip string) *hostmesh.Proxy {
		h := m.Plug(name, ip)
		h.Redirect()
		if name != "client" {
			serve(h.Listen(8080), name)
		}
		return m.Join(h, hostmesh.Workload{Namespace: "apps", Name: name})
	}
	m.client, m.server, m.other = join("client", clientIP), join("server", serverIP), join("other", otherIP)
	hostmesh.WaitReady(t, m.client, m.server, m.other)
	m.works(t)
	return m
}

// link makes a program of the mesh that of a release, from its next start on.
func (m *mesh) link(program string, r release) {
	m.t.Helper()
	link := filepath.Join(m.bin, program)
	if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	if err := os.Symlink(r.path(program), link); err != nil {
		m.t.Fatal(err)
	}
}

// works asserts that a request passes two sidecars with mutual TLS, and that a change arrives at once.
func (m *mesh) works(t *testing.T) {
	t.Helper()
	m.changes++
	m.WriteConfig("route.yaml", route(m.changes))
	began := time.Now()
	testkit.Eventually(t, testkit.Patience, func() error {
		a, err := m.get()
		switch {
		case err != nil:
			return err
		case a.Caller != client:
			return fmt.Errorf("%s saw caller %q, want %q", a.Name, a.Caller, client)
		case a.route != fmt.Sprint(m.changes):
			return fmt.Errorf("the route is %s, want %d", a.route, m.changes)
		}
		return nil
	})
	t.Logf("change %d arrived after %s", m.changes, time.Since(began).Round(time.Millisecond))
	for _, p := range []*hostmesh.Proxy{m.client, m.server, m.other} {
		p.AssertNothingRejected()
	}
}

// answer of a server.
type answer struct {
	Name, Caller string
	route        string
}

func (m *mesh) get() (a answer, err error) {
	c := &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: m.client.Host.DialBy}}
	resp, err := c.Get("http://" + address)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return a, fmt.Errorf("%s: %s, %w", resp.Status, body, err)
	}
	a.route = resp.Header.Get("X-Route")
	return a, json.Unmarshal(body, &a)
}

// serve answers with the server's name and the identity of the caller.
func serve(lis net.Listener, name string) {
	uri := regexp.MustCompile(`URI=([^;,]+)`)
	go func() {
		_ = http.Serve(lis, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a := answer{Name: name}
			if found := uri.FindStringSubmatch(r.Header.Get("X-Forwarded-Client-Cert")); found != nil {
				a.Caller = found[1]
			}
			_ = json.NewEncoder(w).Encode(a)
		}))
	}()
}

// One service is of the one release and all others are of the other, for each service: so every two services meet in
// both ways.
func TestEveryPairOfReleasesMakesAMesh(t *testing.T) {
	previous, this := releases(t)
	for _, odd := range services {
		for _, late := range []bool{true, false} {
			name, one, others := "all are new, but "+odd, previous, this
			if !late {
				name, one, others = "all are old, but "+odd, this, previous
			}
			t.Run(name, func(t *testing.T) {
				start(t, func(service string) release {
					if service == odd {
						return one
					}
					return others
				})
			})
		}
	}
}

// An upgrade replaces one service after the other and then the sidecars, and a rollback goes back, each with what the
// other release has written. No request fails while the control plane is replaced.
func TestUpgradeAndRollbackServiceByService(t *testing.T) {
	previous, this := releases(t)
	m := start(t, func(string) release { return previous })
	l := load.Start(t, load.Config{Rate: rate, URL: "http://" + address, Dial: m.client.Host.DialBy})
	steps := []struct {
		name string
		to   release
	}{{"upgrade", this}, {"rollback", previous}}
	for _, step := range steps {
		for _, s := range services[:len(services)-1] {
			l.Holds(t, step.name+" of "+s, time.Second, func(t *testing.T) {
				m.link(s, step.to)
				m.Restart(s)
				m.works(t)
			})
		}
	}
	l.Stop()
	for _, step := range steps {
		t.Run(step.name+" of one sidecar and then the other", func(t *testing.T) {
			m.ReplaceAgent(step.to.path(agent))
			for _, p := range []*hostmesh.Proxy{m.client, m.server, m.other} {
				p.Restart()
				hostmesh.WaitReady(t, p)
				m.works(t)
			}
		})
	}
}

// A rollback of xds-server alone, with sidecars of this release, fails no request either: the previous release may know
// nothing of what their listeners name.
func TestRollbackOfXDSServerBehindNewSidecars(t *testing.T) {
	previous, this := releases(t)
	m := start(t, func(string) release { return this })
	l := load.Start(t, load.Config{Rate: rate, URL: "http://" + address, Dial: m.client.Host.DialBy})
	for _, step := range []struct {
		name string
		to   release
	}{{"rollback", previous}, {"upgrade", this}} {
		l.Holds(t, step.name, time.Second, func(t *testing.T) {
			m.link("xds-server", step.to)
			m.Restart("xds-server")
			m.works(t)
		})
	}
	l.Stop()
}

// route of requests to the server, which answers carry.
func route(n int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: apps}
spec:
  hosts: [server]
  http:
  - route: [{destination: {host: server}}]
    headers: {response: {set: {x-route: "%d"}}}
`, n)
}

var objects = strings.Join([]string{`apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: apps}
spec: {selector: {serves: "yes"}, clusterIP: 198.19.0.1, ports: [{name: http, port: 80, targetPort: 8080}]}
`, pod("client", clientIP, "no"), pod("server", serverIP, "yes"), pod("other", otherIP, "yes")}, "---\n")

// pod is a workload with a sidecar.
func pod(name, ip, serves string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: apps, labels: {app: %[1]s, serves: "%[3]s", security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: %[1]s, containers: [{name: app, image: app}]}
status: {phase: Running, podIP: %[2]s, podIPs: [{ip: %[2]s}], conditions: [{type: Ready, status: "True"}]}
`, name, ip, serves)
}
