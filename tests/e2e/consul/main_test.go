// Package consul tests whole meshes, with real Envoys, that read their services in Consul: a real one, three servers
// and an agent, for what must hold while it fails, and one of the tests' own for what a real one does not do on
// request. Tests that need the real one are skipped without CONSUL_BIN; `make test-consul` sets it. LONG=1 makes them
// as long as what is claimed.
package consul

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/consultest"
	"fairlead.dev/tests/e2e/internal/fleet"
	"fairlead.dev/tests/internal/load"
)

// binaries are the programs under test.
var binaries fleet.Binaries

func TestMain(m *testing.M) {
	fleet.Main(m, &binaries)
}

// long reports whether the tests are as long as what is claimed.
var long = os.Getenv("LONG") != ""

// patience is for what Consul must do first, such as electing a leader.
const patience = 2 * testkit.Patience

// rig is a mesh that reads registries of a directory.
type rig struct {
	*fleet.Mesh
	t   *testing.T
	dir string
}

// start starts a mesh of testdata/mesh.yaml with registries, by name, and waits until the client's proxy is ready.
func start(t *testing.T, registries map[string]string) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir()}
	for name, text := range registries {
		r.declare(name, text)
	}
	r.Mesh = fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/mesh.yaml"}, Flags: map[string][]string{
		"config-watcher": {"--registry-dir", r.dir, "--registry-allow-addresses", "127.0.0.0/8"},
	}})
	r.WaitReady(t)
	return r
}

// declare writes the declaration of a registry.
func (r *rig) declare(name, text string) {
	r.t.Helper()
	testkit.NoError(r.t, fileio.Write(filepath.Join(r.dir, name+".yaml"), []byte(text), 0o600))
}

// declaration is that of a registry at an address that a CA verifies, with rules and what else it says.
func declaration(address, serverName string, ca []byte, rules string, more ...string) string {
	return fmt.Sprintf("address: %s\nserverName: %s\ndatacenter: dc1\nca: |\n  %s\nrules:\n%s\n%s\n", address, serverName,
		strings.ReplaceAll(strings.TrimSpace(string(ca)), "\n", "\n  "), rules, strings.Join(more, "\n"))
}

// ofFake is that of a Fake.
func ofFake(f *consultest.Fake, rules string, more ...string) string {
	return declaration(f.URL, "example.com", f.CA, rules, more...)
}

// application is a program that is registered in Consul: it answers as the echo application does, and says its name.
type application struct {
	name string
	at   *net.TCPAddr
}

// runs starts an application, which ends with the test.
func runs(t *testing.T, name string) application {
	t.Helper()
	listener := testkit.Listen(t, testkit.FreeAddress(t))
	server := &http.Server{ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"pod": name}) // whoever reads it notices
	})}
	go func() { _ = server.Serve(listener) }() // ends with Close
	t.Cleanup(func() { server.Close() })
	return application{name, listener.Addr().(*net.TCPAddr)}
}

// registration is that of an application as an instance of a service.
func (a application) registration(service, status string) consultest.Registration {
	r := consultest.Instance("node-"+a.name, service, a.name, status)
	r.Service.Address, r.Service.Port = a.at.IP.String(), a.at.Port
	return r
}

// reaches waits until requests of the client for a URL are answered by an application.
func (r *rig) reaches(url, name string) {
	r.t.Helper()
	client := r.From(r.t, "client-0")
	r.Eventually(r.t, patience, func() error {
		a, err := client.Get(r.t.Context(), url)
		if err == nil && (a.Status != http.StatusOK || a.Seen.Pod != name) {
			err = fmt.Errorf("%s: %d %s", url, a.Status, a.Body)
		}
		return err
	})
}

// load is a stream of requests of the client for a host.
func (r *rig) load(host string, rate int) *load.Load {
	r.t.Helper()
	return load.Start(r.t, load.Config{Rate: rate, Host: host, URL: "http://" + net.JoinHostPort(r.Pod(r.t, "client-0").IP, "15080") + "/"})
}

// says waits until `fairlead sources` tells of a registry in a line with all these texts.
func (r *rig) says(registry string, texts ...string) {
	r.t.Helper()
	r.Eventually(r.t, patience, func() error {
		_, out, said := r.CLI(r.t, "sources")
		for line := range strings.Lines(out) {
			if !strings.Contains(line, "consul/"+registry+" ") {
				continue
			}
			for _, text := range texts {
				if !strings.Contains(line, text) {
					return fmt.Errorf("%s, want %q", line, text)
				}
			}
			return nil
		}
		return fmt.Errorf("nothing is told of %s: %s%s", registry, out, said)
	})
}
