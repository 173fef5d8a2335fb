package hostmesh

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/proto/fairlead/contract"

	"fairlead.dev/tests/e2e/internal/fleet"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/controlplane"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// Ready is how long a proxy may take from its start until it takes requests.
const Ready = 2 * time.Minute

// Mesh is a control plane on a host of its own, and the hosts that are plugged to it.
type Mesh struct {
	// Hub is the control plane's host.
	Hub *Host

	t       *testing.T
	dir     string
	config  string
	network *netns.Network
	plane   *controlplane.Plane
	servers []*controlplane.Service
	files   fleet.Binaries
}

// Options of a mesh.
type Options struct {
	// XDSServers is how many there are.
	XDSServers int
	// Config are configuration files.
	Config map[string]string
	// CA returns further arguments of the ca, for the address of the control plane's host; nil: none.
	CA func(hub string) []string
	// Watcher are further arguments of config-watcher.
	Watcher []string
}

// New starts a control plane with a number of xds-servers and the given configuration files.
func New(t *testing.T, xdsServers int, config map[string]string) *Mesh {
	t.Helper()
	return Start(t, Options{XDSServers: xdsServers, Config: config})
}

// Start starts a control plane.
func Start(t *testing.T, o Options) *Mesh {
	t.Helper()
	// The proxies' user must reach its files: not in anyone's home, and every directory on the way open.
	dir, err := os.MkdirTemp("", "flhosts")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m := &Mesh{t: t, dir: dir, config: filepath.Join(dir, "config")}
	if m.files, err = fleet.Build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(m.config, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range o.Config {
		m.WriteConfig(name, content)
	}
	for name, from := range map[string]string{"node-agent": m.files.Path("node-agent"), "envoy": m.files.Envoy} {
		if err := binaries.Publish(from, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if m.network, err = netns.NewNetwork("control", false); err != nil {
		t.Fatal(err)
	}
	hub := newHost(t, m.network.Hub)
	at := func(account string, n int) controlplane.Ports { return controlplane.PortsOf(account, hub.IP, n) }
	ca := at(contract.CAAccount, 0)
	ca.Ops = controlplane.PortsOf(contract.CAAccount, "127.0.0.1", 0).Ops // its pages for administrators need TLS elsewhere
	if m.plane, err = controlplane.New(controlplane.Config{
		Dir: dir, Binaries: m.files.Set, CAPorts: ca, Start: m.network.Hub.Start,
		Dial: hub.DialBy,
	}); err != nil {
		t.Fatal(err)
	}
	if o.CA != nil {
		m.plane.CA.Add(o.CA(hub.IP)...)
	}
	m.Hub = hub
	t.Cleanup(m.stop)
	watcher, err := m.plane.ConfigWatcher(at(contract.ConfigWatcherAccount, 0), append([]string{
		"--store-dir", filepath.Join(dir, "store"), "--config-dir", m.config, "--file-grace-period", "1s",
	}, o.Watcher...)...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range o.XDSServers {
		server, err := m.plane.XDSServer(i, at(contract.XDSServerAccount, i), watcher.GRPC)
		if err != nil {
			t.Fatal(err)
		}
		m.servers = append(m.servers, server)
	}
	if err := m.plane.StartCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range m.plane.Services {
		m.start(s)
	}
	return m
}

// Plane is the control plane.
func (m *Mesh) Plane() *controlplane.Plane { return m.plane }

// Path is that of a file of the mesh, which every user may read.
func (m *Mesh) Path(name string) string { return filepath.Join(m.dir, name) }

// stop ends the control plane, and prints its logs if the test has failed.
func (m *Mesh) stop() {
	if err := m.plane.Stop(ending); err != nil {
		m.t.Error(err)
	}
	if m.t.Failed() {
		m.t.Log(process.Tails(filepath.Join(m.dir, "logs", "*.log")))
	}
}

func (m *Mesh) start(s *controlplane.Service) {
	m.t.Helper()
	if err := s.Start(); err != nil {
		m.t.Fatal(err)
	}
}

// StartXDS starts xds-server number i.
func (m *Mesh) StartXDS(i int) {
	m.t.Helper()
	m.start(m.servers[i])
}

// KillXDS kills xds-server number i.
func (m *Mesh) KillXDS(i int) { m.servers[i].Kill() }

// WaitXDS waits until xds-server number i serves.
func (m *Mesh) WaitXDS(i int) {
	m.t.Helper()
	if err := m.servers[i].WaitReady(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

// Restart ends a service of the control plane, "ca" or "config-watcher" or "xds-server" (all of these), and starts it
// again from its file, which may have changed.
func (m *Mesh) Restart(name string) {
	m.t.Helper()
	for _, s := range m.plane.Find(name) {
		if err := s.Stop(ending); err != nil {
			m.t.Error(err)
		}
		m.start(s)
		if err := s.WaitReady(m.t.Context()); err != nil {
			m.t.Fatal(err)
		}
	}
}

// ReplaceAgent has sidecars run another node-agent once they are restarted.
func (m *Mesh) ReplaceAgent(path string) {
	m.t.Helper()
	if err := binaries.Publish(path, filepath.Join(m.dir, "node-agent")); err != nil {
		m.t.Fatal(err)
	}
}

// XDSMetric reads a metric of xds-server number i, summed over its labels.
func (m *Mesh) XDSMetric(i int, name string) (float64, error) {
	return probe.Metric(m.t.Context(), probe.Client(m.plane.Dial), "http://"+m.servers[i].Ops+"/metrics", name, nil)
}

// WriteConfig writes a file of config-watcher's directory, atomically.
func (m *Mesh) WriteConfig(name, content string) {
	m.t.Helper()
	path := filepath.Join(m.config, name)
	if err := fileio.Write(path, []byte(content), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// RemoveConfig removes one.
func (m *Mesh) RemoveConfig(name string) {
	m.t.Helper()
	if err := os.Remove(filepath.Join(m.config, name)); err != nil {
		m.t.Fatal(err)
	}
}

// Plug makes a host and plugs it to the network, with one address or several.
func (m *Mesh) Plug(name, ip string, more ...string) *Host {
	m.t.Helper()
	machine, err := netns.New(name)
	if err != nil {
		m.t.Fatal(err)
	}
	machine.IP = netip.MustParseAddr(ip)
	if err := m.network.Plug(machine); err != nil {
		m.t.Fatal(err)
	}
	for _, address := range more {
		if err := machine.AddAddress(netip.MustParseAddr(address)); err != nil {
			m.t.Fatal(err)
		}
	}
	h := newHost(m.t, machine)
	h.agent = filepath.Join(m.dir, "node-agent")
	return h
}
