// Package harness runs the fleet of a topology: Fairlead's services, and per workload a network namespace with
// node-agent, Envoy and the application.
package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/process"
	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/apiserver"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/store"
)

// Options say how to run a topology.
type Options struct {
	// Dir is where logs and state are; it is made. It must not be long, and every directory on the way must be open to
	// all users.
	Dir string
	// Binaries are found or built where nothing is said.
	Binaries *Binaries
	// Log says what happens; it may be nil.
	Log func(format string, args ...any)
	// Certificates are those that the ports of workloads name. What is missing is made, for the names of the workload's
	// Service.
	Certificates map[string]*format.Material
	// OnDemand has sidecars hold only what they call, as MeshConfig's defaultConfig says it; a topology or scenario may
	// say otherwise.
	OnDemand bool
	// MountedCertificates has agents take their certificates from files, which the harness gets from the ca, and not
	// ask the ca themselves.
	MountedCertificates bool
	// API is the API server that config-watcher reads the objects from, and that no other fleet uses at the same time;
	// if nil, the objects go to config-watcher's own store.
	API *apiserver.Server
	// Redirect is the --redirect-backend of all sidecars; "" is node-agent's default.
	Redirect string
	// MultiTenant has config-watcher confine what objects of one namespace do to others.
	MultiTenant bool
	// IPv6 gives every machine an IPv6 address, too.
	IPv6 bool
}

// Limits.
const (
	// startWithin is how long the whole fleet may take until it is ready.
	startWithin = 3 * time.Minute
	// readyWithin is how long one process may take.
	readyWithin = time.Minute
	// endWithin is how long a process may take from SIGTERM to its end.
	endWithin = 30 * time.Second
	// often is how long to rest between two looks at something that will come.
	often = 10 * time.Millisecond
)

// Harness is a running topology. Its methods may be called from several goroutines; those that change it take turns.
type Harness struct {
	topology *format.Topology
	options  Options
	files    *Binaries
	mesh     mesh
	// issuer signs the certificates of applications.
	issuer *format.Material

	network *netns.Network
	outside *netns.Host
	// issuers is the machine that serves the keys of tokens; it is outside of the mesh.
	issuers *netns.Host
	// logsByMesh has the mesh's settings make the access log that wire.Entry reads; a witness writes it otherwise.
	logsByMesh bool
	workloads  map[string]*workload
	// order is that of the topology.
	order []*workload
	plane *plane
	store *store.Store
	// ground is what the workloads stand on.
	ground ground
	// resolver is the name server of the workloads, IP:port.
	resolver string
	// stopNames ends the name server, and stopForward the way to the API server; nil if there is none.
	stopNames, stopForward func() error

	// changing is held by what changes the fleet.
	changing sync.Mutex
	// mark is how things were when the scenario began.
	mark *Snapshot
}

// ground is what workloads stand on: machines of the harness, or a cluster.
type ground interface {
	// revive makes of what ran at a snapshot what runs.
	revive(ctx context.Context, s *Snapshot) error
	// died lists what ended unasked.
	died() []string
	// disconnect cuts the connections between workloads.
	disconnect() error
	// logs are the files in which no error may be.
	logs() []string
}

// Start runs a topology. It returns when every proxy that is to run is ready and has acknowledged the configuration.
func Start(ctx context.Context, t *format.Topology, o Options) (*Harness, error) {
	if missing := userns.Missing(netns.Programs...); len(missing) > 0 {
		return nil, fmt.Errorf("no network namespaces without %s", strings.Join(missing, ", "))
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	h := &Harness{topology: t, options: o, workloads: map[string]*workload{}}
	h.ground = h
	if err := h.start(ctx); err != nil {
		err = fmt.Errorf("topology %s: %w", t.Name, err)
		return nil, errors.Join(err, errors.New(process.Tails(h.path("logs/*.log"))), h.Close(context.WithoutCancel(ctx)))
	}
	return h, nil
}

func (h *Harness) start(ctx context.Context) error {
	began := time.Now()
	for _, dir := range []string{"", "logs", "shared"} {
		if err := os.MkdirAll(h.path(dir), 0o755); err != nil {
			return err
		}
	}
	var err error
	if h.mesh, err = meshOf(h.topology.Mesh, h.options.OnDemand, h.logsByMesh); err != nil {
		return err
	}
	if h.issuer, err = format.NewMaterial("applications of "+h.topology.Name, format.Certificate{CA: true}, nil, began); err != nil {
		return err
	}
	if err := wait.Both(
		func() error { return h.connect() },
		func() error { return h.provide(ctx) },
	); err != nil {
		return err
	}
	if h.options.API != nil {
		if err := h.options.API.Clean(ctx); err != nil {
			return err
		}
		if h.stopForward, err = forward(h.options.API.Address, h.network.Hub.Listen); err != nil {
			return err
		}
	}
	h.log("machines and programs after %s", since(began))
	if err := h.startPlane(ctx); err != nil {
		return err
	}
	h.resolver = h.hubAddress(dnsPort)
	if err := h.serveNames(h.network.Hub, h.resolver, h.answer); err != nil {
		return err
	}
	h.log("services after %s", since(began))
	if err := h.writeObjects(ctx); err != nil {
		return err
	}
	started := slices.DeleteFunc(slices.Clone(h.order), func(l *workload) bool { return !l.spec.Started() })
	if err := wait.Each(started, func(l *workload) error { return l.start(ctx) }); err != nil {
		return err
	}
	h.log("workloads ready after %s", since(began))
	if err := h.showPods(ctx, started...); err != nil {
		return err
	}
	if err := h.store.Acked(ctx, 0); err != nil {
		return err
	}
	h.log("configured after %s", since(began))
	return nil
}

// connect makes the machines.
func (h *Harness) connect() error {
	name := fmt.Sprintf("fl%d-%s-", os.Getpid(), h.topology.Name)
	var err error
	if h.network, err = netns.NewNetwork(name+"control", h.options.IPv6); err != nil {
		return err
	}
	var hosts []*netns.Host
	for i := range h.topology.Workloads {
		l := h.newWorkload(&h.topology.Workloads[i])
		if l.host, err = netns.New(name + l.spec.Name); err != nil {
			return err
		}
		h.workloads[l.spec.Name] = l
		h.order = append(h.order, l)
		hosts = append(hosts, l.host)
	}
	if h.outside, err = netns.New(name + format.Outside); err != nil {
		return err
	}
	if h.issuers, err = netns.New(name + "issuers"); err != nil {
		return err
	}
	return h.network.Plug(append(hosts, h.outside, h.issuers)...)
}

// Close ends everything. Its error has every process that did not end well, or did not end.
func (h *Harness) Close(context.Context) error {
	var failed []error
	collect := func(err error) {
		if err != nil {
			failed = append(failed, err)
		}
	}
	collect(wait.Each(h.order, func(l *workload) error { return l.stop() }))
	for _, l := range h.order {
		if l.witness != nil {
			collect(l.witness.Close())
		}
	}
	if h.store != nil {
		collect(h.store.Close())
	}
	if h.plane != nil {
		collect(h.plane.Stop(endWithin))
	}
	for _, stop := range []func() error{h.stopNames, h.stopForward} {
		if stop != nil {
			collect(stop())
		}
	}
	hosts := h.hosts()
	if left := netns.Left(hosts...); len(left) > 0 {
		collect(fmt.Errorf("left behind: %s", strings.Join(left, "; ")))
	}
	for _, host := range hosts {
		collect(host.Close())
	}
	return errors.Join(failed...)
}

func (h *Harness) hosts() []*netns.Host {
	var hosts []*netns.Host
	for _, l := range h.order {
		hosts = append(hosts, l.host)
	}
	hosts = append(hosts, h.outside, h.issuers)
	if h.network != nil {
		hosts = append(hosts, h.network.Hub)
	}
	return slices.DeleteFunc(hosts, func(host *netns.Host) bool { return host == nil })
}

// Host is the machine of a workload, or the one outside the mesh; nil if there is no such workload.
func (h *Harness) Host(name string) *netns.Host {
	if name == format.Outside {
		return h.outside
	}
	if l := h.workloads[name]; l != nil {
		return l.host
	}
	return nil
}

// find is a workload by name.
func (h *Harness) find(name string) (*workload, error) {
	if l := h.workloads[name]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("topology %s has no workload %q; it has %s", h.topology.Name, name,
		strings.Join(slices.Sorted(maps.Keys(h.workloads)), ", "))
}

// IP is the address of a workload.
func (h *Harness) IP(name string) (string, error) {
	if host := h.Host(name); host != nil {
		return host.IP.String(), nil
	}
	_, err := h.find(name)
	return "", err
}

// VIP is the address of a Service, by name.namespace.
func (h *Harness) VIP(service string) (string, error) { return h.store.VIP(service) }

// Identity is the SPIFFE URI of a workload.
func (h *Harness) Identity(name string) (string, error) {
	l, err := h.find(name)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", h.mesh.trustDomain, l.spec.Namespace, l.spec.ServiceAccount), nil
}

// Values are those of a scenario's variables.
func (h *Harness) Values(certificates map[string]*format.Material) *format.Values {
	return &format.Values{Certificates: certificates, IP: h.IP, VIP: h.VIP, Identity: h.Identity, Files: h.FileDir}
}

// AccessLog is the file in which the proxy of a workload tells the tests of connections and requests (wire.Fields).
func (h *Harness) AccessLog(name string) string {
	if l := h.workloads[name]; l != nil && l.live != nil {
		return l.live.log
	}
	return h.path("logs/" + name + ".witness" + accessLog)
}

// accessLog ends the names of files that only proxies write, for callers and not of themselves.
const accessLog = ".access.log"

func (h *Harness) path(name string) string { return filepath.Join(h.options.Dir, name) }

func (h *Harness) log(format string, args ...any) {
	if h.options.Log != nil {
		h.options.Log(format, args...)
	}
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }
