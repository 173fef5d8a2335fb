// Package consultest starts Consul for tests, on addresses of loopback: Dev one agent without ACLs, NewCluster three
// servers and a client agent with TLS and ACLs. Tests that use these are skipped unless CONSUL_BIN names the directory
// of Consul's program; `make test-consul` builds it and sets CONSUL_BIN. StartFake starts what answers like Consul.
package consultest

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// program is Consul's; without CONSUL_BIN the test is skipped.
func program(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("CONSUL_BIN")
	if dir == "" {
		t.Skip("CONSUL_BIN is not set; run `make test-consul`")
	}
	return filepath.Join(dir, "consul")
}

// Agent is a process of Consul. It ends with the test.
type Agent struct {
	Name string
	// URL is the address of the HTTP API, TLS what verifies it; nil for plain HTTP.
	URL string
	TLS *tls.Config
	// Token is the one with which the methods make requests.
	Token string

	program string
	args    []string
	serf    netip.AddrPort
	process *exec.Cmd
	log     *testkit.Buffer
	client  *http.Client
}

// settings are those of an agent's configuration file.
type settings map[string]any

// start starts an agent with settings and arguments. It does not wait.
func start(t testing.TB, name string, s settings, secure *tls.Config, args ...string) *Agent {
	t.Helper()
	a := &Agent{Name: name, program: program(t), TLS: secure, log: &testkit.Buffer{}, serf: testkit.FreeAddress(t)}
	api, dir := testkit.FreeAddress(t), t.TempDir()
	ports := map[string]int{
		"dns": -1, "http": -1, "https": -1, "grpc": -1, "grpc_tls": -1, "serf_wan": -1,
		"serf_lan": int(a.serf.Port()), "server": int(testkit.FreeAddress(t).Port()),
	}
	grpc := int(testkit.FreeAddress(t).Port())
	if a.URL = "http://" + api.String(); secure != nil {
		a.URL = "https://" + api.String()
		ports["https"], ports["grpc_tls"] = int(api.Port()), grpc
	} else {
		ports["http"], ports["grpc"] = int(api.Port()), grpc
	}
	all := settings{
		"node_name": name, "bind_addr": a.serf.Addr().String(), "client_addr": a.serf.Addr().String(), "datacenter": "dc1", "ports": ports,
		"log_level": "warn", "disable_update_check": true, "performance": map[string]any{"raft_multiplier": 1},
	}
	maps.Copy(all, s)
	content, err := json.Marshal(all)
	testkit.NoError(t, err)
	file := filepath.Join(dir, "agent.json")
	testkit.WriteFile(t, file, content)
	a.args = append([]string{"agent", "-config-file", file}, args...)
	if len(args) == 0 {
		a.args = append(a.args, "-data-dir", filepath.Join(dir, "data"))
	}
	a.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: secure}}
	a.Start(t)
	t.Cleanup(func() {
		a.Kill()
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, a.log)
		}
	})
	return a
}

// Start starts the process again after Kill, with the data that it had.
func (a *Agent) Start(t testing.TB) {
	t.Helper()
	a.process = exec.Command(a.program, a.args...)
	a.process.Stdout, a.process.Stderr = a.log, a.log
	testkit.NoError(t, a.process.Start())
}

// Kill ends the process as a crash does.
func (a *Agent) Kill() {
	if a.process != nil {
		_ = a.process.Process.Kill()
		_ = a.process.Wait()
		a.process = nil
	}
}

// Stop stops the process until Continue; its connections stay open.
func (a *Agent) Stop(t testing.TB) {
	t.Helper()
	testkit.NoError(t, a.process.Process.Signal(syscall.SIGSTOP))
}

// Continue ends Stop.
func (a *Agent) Continue(t testing.TB) {
	t.Helper()
	testkit.NoError(t, a.process.Process.Signal(syscall.SIGCONT))
}

// Do makes a request of the API, with a body of JSON unless it is nil or []byte, and returns the answer's.
func (a *Agent) Do(method, path string, body any) ([]byte, error) {
	content, raw := body.([]byte)
	if body != nil && !raw {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequest(method, a.URL+path, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	r.Header.Set("X-Consul-Token", a.Token)
	resp, err := a.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, answer)
	}
	return answer, err
}

// Must is Do; an error fails the test.
func (a *Agent) Must(t testing.TB, method, path string, body any) []byte {
	t.Helper()
	answer, err := a.Do(method, path, body)
	testkit.NoError(t, err)
	return answer
}

// Registration is the body of catalog/register.
type Registration struct {
	Node, Address  string
	NodeMeta       map[string]string `json:",omitempty"`
	SkipNodeUpdate bool              `json:",omitempty"`
	Service        *Service          `json:",omitempty"`
	Check          *Check            `json:",omitempty"`
	Checks         []Check           `json:",omitempty"`
}

// Service is a service of a Registration.
type Service struct {
	ID, Service, Address string
	Kind                 string            `json:",omitempty"`
	Port                 int               `json:",omitempty"`
	Ports                []Port            `json:",omitempty"`
	Tags                 []string          `json:",omitempty"`
	Meta                 map[string]string `json:",omitempty"`
	Weights              *Weights          `json:",omitempty"`
	Locality             *Locality         `json:",omitempty"`
	// Proxy is required of Kind connect-proxy.
	Proxy *Proxy `json:",omitempty"`
}

// Proxy says what a proxy of Connect is of.
type Proxy struct{ DestinationServiceName string }

// Port is one of several ports of a Service.
type Port struct {
	Name    string
	Port    int
	Default bool
}

// Weights of a Service.
type Weights struct{ Passing, Warning int }

// Locality of a Service.
type Locality struct{ Region, Zone string }

// Check is a check of a Registration.
type Check struct {
	CheckID, Name, Status string
	ServiceID             string `json:",omitempty"`
}

// Instance is the registration of an instance with a check.
func Instance(node, service, id, status string) Registration {
	return Registration{
		Node: node, Address: "10.0.0.1", Service: &Service{ID: id, Service: service, Port: 8080},
		Checks: []Check{{CheckID: "service:" + id, Name: "check", Status: status, ServiceID: id}},
	}
}

// Register registers in the catalog, whose servers and not an agent keep it.
func (a *Agent) Register(t testing.TB, r Registration) {
	t.Helper()
	a.Must(t, http.MethodPut, "/v1/catalog/register", r)
}

// Deregister ends the registration of an instance, or with an empty id of a node.
func (a *Agent) Deregister(t testing.TB, node, id string) {
	t.Helper()
	body := map[string]string{"Node": node}
	if id != "" {
		body["ServiceID"] = id
	}
	a.Must(t, http.MethodPut, "/v1/catalog/deregister", body)
}

// await waits until the agent knows a leader and its own service.
func (a *Agent) await(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		answer, err := a.Do(http.MethodGet, "/v1/health/service/consul", nil)
		if err == nil && string(bytes.TrimSpace(answer)) == "[]" {
			err = errors.New("the catalog is empty")
		}
		return err
	})
}

// Dev starts an agent that is its own server, in memory, without ACLs, over plain HTTP.
func Dev(t testing.TB) *Agent {
	t.Helper()
	a := start(t, "dev", settings{}, nil, "-dev")
	a.await(t)
	return a
}

// DevTLS is Dev over HTTPS, which has HTTP/2.
func DevTLS(t testing.TB) *Agent {
	t.Helper()
	program(t)
	files, secure, _ := certificates(t)
	a := start(t, "dev", settings{"tls": map[string]any{"https": files}}, secure, "-dev")
	a.await(t)
	return a
}

// MaxOperations is how many operations a transaction of Consul has.
const MaxOperations = 128

// RegisterAll registers many instances, each with its node and check, in transactions.
func (a *Agent) RegisterAll(t testing.TB, all []Registration) {
	t.Helper()
	var operations []map[string]any
	flush := func() {
		a.Must(t, http.MethodPut, "/v1/txn", operations)
		operations = nil
	}
	for _, r := range all {
		check := r.Checks[0]
		operations = append(operations,
			map[string]any{"Node": map[string]any{"Verb": "set", "Node": map[string]string{"Node": r.Node, "Address": r.Address}}},
			map[string]any{"Service": map[string]any{"Verb": "set", "Node": r.Node, "Service": r.Service}},
			map[string]any{"Check": map[string]any{"Verb": "set", "Check": map[string]string{
				"Node": r.Node, "CheckID": check.CheckID, "Name": check.Name, "Status": check.Status, "ServiceID": check.ServiceID,
			}}})
		if len(operations)+3 > MaxOperations {
			flush()
		}
	}
	if len(operations) > 0 {
		flush()
	}
}
