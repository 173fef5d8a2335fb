package lan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"

	"fairlead.dev/tests/e2e/internal/fleet"
	"fairlead.dev/tests/internal/netns"
)

const (
	controlIP = "198.18.0.1"
	// Ready is how long a proxy may take from its start until it takes requests.
	Ready = 2 * time.Minute

	caAddress      = controlIP + ":15013"
	watcherAddress = controlIP + ":15060"
)

// LAN is a control plane on a host of its own, and the hosts that are plugged to it.
type LAN struct {
	t       *testing.T
	dir     string
	config  string
	issuer  *testkit.Issuer
	network *netns.Network
	control *Host
	servers []*process
	files   fleet.Binaries
}

// New starts a control plane with a number of xds-servers and the given configuration files.
func New(t *testing.T, xdsServers int, config map[string]string) *LAN {
	t.Helper()
	// The proxies' user must reach its files: not in anyone's home, and every directory on the way open.
	dir, err := os.MkdirTemp("", "fllan")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("ENVOY") == "" {
		t.Setenv("ENVOY", "../../../.tools/envoy")
	}
	l := &LAN{t: t, dir: dir, config: filepath.Join(dir, "config"), issuer: testkit.NewIssuer(t)}
	if l.files, err = fleet.Build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(l.config, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range config {
		l.WriteConfig(name, content)
	}
	for name, from := range map[string]string{"node-agent": filepath.Join(l.files.Dir, "node-agent"), "envoy": l.files.Envoy} {
		raw, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		l.write(filepath.Join(dir, name), raw, 0o755)
	}
	if l.network, err = netns.NewNetwork("control", false); err != nil {
		t.Fatal(err)
	}
	l.control = newHost(t, l.network.Hub)
	l.control.start(user{}, nil, filepath.Join(l.files.Dir, "ca"), append([]string{
		"--grpc-address", caAddress, "--ops-address", "127.0.0.1:15014", "--ca-dir", filepath.Join(dir, "ca"), "--root-cert-out", l.root(),
	}, l.tokens()...)...)
	l.control.start(user{}, nil, filepath.Join(l.files.Dir, "config-watcher"), append([]string{
		"--grpc-address", watcherAddress, "--ops-address", "127.0.0.1:15016", "--store-dir", filepath.Join(dir, "store"), "--config-dir", l.config, "--file-grace-period", "1s",
	}, l.identity("config-watcher")...)...)
	l.servers = make([]*process, xdsServers)
	for i := range l.servers {
		l.StartXDS(i)
	}
	return l
}

func (l *LAN) root() string { return filepath.Join(l.dir, "root-cert.pem") }

func (l *LAN) tokens() []string {
	return []string{"--issuer", l.issuer.Name, "--jwks-file", l.issuer.JWKSFile}
}

func (l *LAN) identity(account string) []string {
	return append([]string{
		"--ca-address", caAddress, "--root-cert-file", l.root(), "--state-dir", filepath.Join(l.dir, account),
		"--ca-token-file", l.issuer.TokenFile("istio-system", account, "istio-ca"),
	}, l.tokens()...)
}

func xdsAddress(i int) string { return fmt.Sprintf("%s:%d", controlIP, 15100+i) }

func xdsOps(i int) string { return fmt.Sprintf("%s:%d", controlIP, 15200+i) }

// StartXDS starts xds-server number i.
func (l *LAN) StartXDS(i int) {
	l.t.Helper()
	args := append([]string{
		"--secure-address", xdsAddress(i), "--ops-address", xdsOps(i), "--config-watcher-address", watcherAddress, "--instance", fmt.Sprintf("xds-%d", i),
	}, l.identity("xds-server")...)
	for j, arg := range args {
		if arg == "--state-dir" { // each replica keeps its own certificate
			args[j+1] += fmt.Sprintf("-%d", i)
		}
	}
	l.servers[i] = l.control.start(user{}, nil, filepath.Join(l.files.Dir, "xds-server"), args...)
}

// KillXDS kills xds-server number i.
func (l *LAN) KillXDS(i int) { l.servers[i].Kill() }

// WaitXDS waits until xds-server number i serves.
func (l *LAN) WaitXDS(i int) {
	l.t.Helper()
	testkit.Eventually(l.t, Ready, func() error {
		resp, err := l.control.client(xdsOps(i)).Get("http://xds/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("xds-server %d is not ready: status %d", i, resp.StatusCode)
		}
		return nil
	})
}

// XDSMetric reads a metric of xds-server number i, summed over its labels.
func (l *LAN) XDSMetric(i int, name string) (float64, error) {
	return metric(l.control.client(xdsOps(i)), "http://xds/metrics", name, nil)
}

// WriteConfig writes a file of config-watcher's directory, atomically.
func (l *LAN) WriteConfig(name, content string) {
	l.t.Helper()
	path := filepath.Join(l.config, name)
	if err := fileio.Write(path, []byte(content), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// RemoveConfig removes one.
func (l *LAN) RemoveConfig(name string) {
	l.t.Helper()
	if err := os.Remove(filepath.Join(l.config, name)); err != nil {
		l.t.Fatal(err)
	}
}

func (l *LAN) write(path string, content []byte, mode os.FileMode) {
	l.t.Helper()
	if err := os.WriteFile(path, content, mode); err != nil {
		l.t.Fatal(err)
	}
}

// Plug makes a host and plugs it to the network, with one address or several.
func (l *LAN) Plug(name, ip string, more ...string) *Host {
	l.t.Helper()
	machine, err := netns.New(name)
	if err != nil {
		l.t.Fatal(err)
	}
	machine.IP = netip.MustParseAddr(ip)
	if err := l.network.Plug(machine); err != nil {
		l.t.Fatal(err)
	}
	for _, address := range more {
		if err := machine.AddAddress(netip.MustParseAddr(address)); err != nil {
			l.t.Fatal(err)
		}
	}
	h := newHost(l.t, machine)
	h.agent = filepath.Join(l.dir, "node-agent")
	return h
}

// client is an HTTP client on the host that connects to one address whatever the URL says, once per request.
func (h *Host) client(address string) *http.Client {
	return &http.Client{Timeout: answers, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return h.Dial(ctx, address)
	}}}
}

// metric reads a metric, summed over the label sets that have all of the given labels.
func metric(c *http.Client, url, name string, labels map[string]string) (float64, error) {
	raw, err := get(c, url)
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(raw))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", url, err)
	}
	sum, found := 0.0, false
	for _, m := range families[name].GetMetric() {
		matching := 0
		for _, pair := range m.GetLabel() {
			if labels[pair.GetName()] == pair.GetValue() {
				matching++
			}
		}
		if matching == len(labels) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			found = true
		}
	}
	if !found {
		return 0, fmt.Errorf("%s has no metric %s", url, name)
	}
	return sum, nil
}

var errStatus = errors.New("unexpected status")

func get(c *http.Client, url string) ([]byte, error) {
	resp, err := c.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %w %d: %s", url, errStatus, resp.StatusCode, strings.TrimSpace(body.String()))
	}
	return body.Bytes(), nil
}
