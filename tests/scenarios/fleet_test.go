package scenarios

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/scenarios/internal/apiserver"
	"fairlead.dev/tests/scenarios/internal/caller"
	"fairlead.dev/tests/scenarios/internal/echo"
	"fairlead.dev/tests/scenarios/internal/expect"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/harness"
	"fairlead.dev/tests/scenarios/internal/runner"
	"fairlead.dev/tests/scenarios/internal/wire"
)

// fleet is a running topology from which calls are made.
type fleet struct {
	running

	topology *format.Topology
	sniffers map[string]*wire.Sniffer
	journals map[string]*echo.Journal
	// own are the certificates of the scenario that has the topology to itself.
	own map[string]*format.Material
	// added are the addresses that calls gave their machines.
	added map[string]bool
}

// running is a topology on machines of the harness, or in a cluster.
type running interface {
	runner.Fleet
	Close(ctx context.Context) error
	// Host is the machine of a workload, nil if there is none.
	Host(workload string) *netns.Host
	Identity(workload string) (string, error)
	// Journal and AccessLog are files of a workload; empty where there are none.
	Journal(workload string) string
	AccessLog(workload string) string
	Machine(workload string) (caller.Machine, error)
	Via(workload string) (*caller.Via, error)
	Roots() *x509.CertPool
	Mark(ctx context.Context) (*harness.Snapshot, error)
	Reset(ctx context.Context, s *harness.Snapshot) error
	Died() []string
}

// place is where a fleet can run.
type place struct {
	// api is the API server that objects are written to; nil if they go to config-watcher's own store.
	api *apiserver.Server
	// node is the cluster whose Pods the workloads are; nil if they are machines.
	node *harness.Node
}

// start starts a topology there.
func (p place) start(ctx context.Context, topology *format.Topology, o harness.Options) (running, error) {
	o.API = p.api
	if p.node != nil {
		return harness.StartInCluster(ctx, topology, o, *p.node)
	}
	return harness.Start(ctx, topology, o)
}

// device is the network device of every machine.
const device = "eth0"

// newFleet starts a topology until the test ends. What is left of it is kept in dir if something failed.
func newFleet(t *testing.T, topology *format.Topology, scenarios []*format.Scenario, dir string, at place) (*fleet, error) {
	options := harness.Options{Log: t.Logf, OnDemand: *onDemand, MountedCertificates: *certificates == fromFiles, Redirect: *redirected,
		MultiTenant: *tenants}
	f := &fleet{topology: topology, sniffers: map[string]*wire.Sniffer{}, journals: map[string]*echo.Journal{}, added: map[string]bool{}}
	var err error
	for _, s := range scenarios {
		options.IPv6 = options.IPv6 || slices.Contains(s.Needs, "ipv6")
		if s.Topology.Name != s.Name {
			continue
		}
		if f.own, err = format.Issue(s.Certificates, time.Now()); err != nil {
			return nil, err
		}
		options.Certificates = f.own
	}
	// Not below dir: paths of unix sockets are short, and open to the proxies' user.
	if options.Dir, err = os.MkdirTemp("", "fls"); err != nil {
		return nil, err
	}
	if err := os.Chmod(options.Dir, 0o755); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if t.Failed() {
			err = errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(filepath.Join(options.Dir, "logs"))))
		}
		if err := errors.Join(err, os.RemoveAll(options.Dir)); err != nil {
			t.Error(err)
		}
	})
	if f.running, err = at.start(t.Context(), topology, options); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		for _, s := range f.sniffers {
			s.Close()
		}
		if err := f.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for i := range topology.Workloads {
		name := topology.Workloads[i].Name
		s, err := wire.Open(f.Host(name).In, device)
		if err != nil {
			return nil, fmt.Errorf("look at the wire of %s: %w", name, err)
		}
		f.sniffers[name] = s
		if socket := f.Journal(name); socket != "" {
			f.journals[name] = echo.NewJournal(socket)
		}
	}
	return f, nil
}

// scene is what is known of a call besides its results.
func (f *fleet) scene(c *format.Call) (*expect.Scene, error) {
	s := &expect.Scene{Call: c, Servers: map[string]*expect.Server{}}
	near := c.From
	if c.Via != "" {
		near = c.Via
	}
	s.From = f.addresses(near)
	for i := range f.topology.Workloads {
		w := &f.topology.Workloads[i]
		if f.journals[w.Name] == nil {
			continue
		}
		identity, err := f.Identity(w.Name)
		if err != nil {
			return nil, err
		}
		s.Servers[w.Name] = &expect.Server{
			Identity: identity, HasProxy: w.HasProxy(), IPs: f.addresses(w.Name), Journal: f.journals[w.Name], Sniffer: f.sniffers[w.Name],
			Log: wire.AccessLog{Path: f.AccessLog(w.Name)},
		}
	}
	return s, nil
}

func (f *fleet) addresses(name string) []netip.Addr {
	h := f.Host(name)
	if h == nil {
		return nil
	}
	return slices.DeleteFunc([]netip.Addr{h.IP, h.IP6}, func(ip netip.Addr) bool { return !ip.IsValid() })
}

// prepare makes ready to call.
func (f *fleet) prepare(c *format.Call, certificates map[string]*format.Material) (*caller.Caller, *expect.Scene, error) {
	from, err := f.Machine(c.From)
	if err != nil {
		return nil, nil, err
	}
	calls := &caller.Caller{From: from, Roots: f.Roots(), Certificates: certificates}
	if c.Via != "" {
		if calls.Via, err = f.Via(c.Via); err != nil {
			return nil, nil, err
		}
	}
	if c.SourceIP != "" {
		ip, err := netip.ParseAddr(c.SourceIP)
		if err != nil {
			return nil, nil, fmt.Errorf("sourceIP: %w", err)
		}
		if key := c.From + " " + c.SourceIP; !f.added[key] && !slices.Contains(f.addresses(c.From), ip) {
			if err := f.Host(c.From).AddAddress(ip); err != nil {
				return nil, nil, fmt.Errorf("sourceIP: %w", err)
			}
			f.added[key] = true
		}
	}
	scene, err := f.scene(c)
	if err != nil {
		return nil, nil, err
	}
	scene.Begin()
	return calls, scene, nil
}

// Call implements runner.Caller.
func (f *fleet) Call(ctx context.Context, c *format.Call, certificates map[string]*format.Material) error {
	calls, scene, err := f.prepare(c, certificates)
	if err != nil {
		return err
	}
	return scene.Check(ctx, calls.Run(ctx, c))
}

// Background implements runner.Caller.
func (f *fleet) Background(ctx context.Context, c *format.Call, certificates map[string]*format.Material) (func() error, error) {
	calls, scene, err := f.prepare(c, certificates)
	if err != nil {
		return nil, err
	}
	running := calls.Begin(ctx, c)
	return func() error { return scene.Check(ctx, running.End()) }, nil
}
