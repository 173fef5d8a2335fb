// Package world runs the fleet of a topology: Fairlead's services, and per workload a network namespace with
// node-agent, Envoy and the application.
package world

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
	"fairlead.dev/tests/scenarios/internal/format"
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
	// IPv6 gives every machine an IPv6 address, too.
	IPv6 bool
}

// Limits.
const (
	// startWithin is how long the whole fleet may take until it is ready.
	startWithin = 3 * time.Minute
	// readyWithin is how long one process may take.
	readyWithin = time.Minute
	// ackedWithin is how long the proxies may take to acknowledge a change.
	ackedWithin = 10 * time.Second
	// endWithin is how long a process may take from SIGTERM to its end.
	endWithin = 30 * time.Second
	// often is how long to rest between two looks at something that will come.
	often = 10 * time.Millisecond
)

// World is a running topology. Its methods may be called from several goroutines; those that change it take turns.
type World struct {
	topology *format.Topology
	options  Options
	files    *Binaries
	mesh     mesh
	// authority signs tokens, issuer the certificates of applications.
	authority *authority
	issuer    *format.Material

	network   *netns.Network
	outside   *netns.Host
	workloads map[string]*workload
	// order is that of the topology.
	order []*workload
	plane *plane
	store *store
	// stopNames ends the name server.
	stopNames func() error

	// changing is held by what changes the fleet.
	changing sync.Mutex
	// mark is how things were when the scenario began.
	mark *Snapshot
}

// Start runs a topology. It returns when every proxy that is to run is ready and has acknowledged the configuration.
func Start(ctx context.Context, t *format.Topology, o Options) (*World, error) {
	if missing := userns.Missing(netns.Programs...); len(missing) > 0 {
		return nil, fmt.Errorf("no network namespaces without %s", strings.Join(missing, ", "))
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	w := &World{topology: t, options: o, workloads: map[string]*workload{}}
	if err := w.start(ctx); err != nil {
		err = fmt.Errorf("topology %s: %w", t.Name, err)
		return nil, errors.Join(err, w.tails(), w.Close(context.WithoutCancel(ctx)))
	}
	return w, nil
}

func (w *World) start(ctx context.Context) error {
	began := time.Now()
	for _, dir := range []string{"", "logs", "shared"} {
		if err := os.MkdirAll(w.path(dir), 0o755); err != nil {
			return err
		}
	}
	var err error
	if w.mesh, err = meshOf(w.topology.Mesh, w.options.OnDemand); err != nil {
		return err
	}
	if w.issuer, err = format.NewMaterial("applications of "+w.topology.Name, format.Certificate{CA: true}, nil, began); err != nil {
		return err
	}
	if err := both(
		func() error { return w.connect() },
		func() error { return w.provide(ctx) },
	); err != nil {
		return err
	}
	w.log("machines and programs after %s", since(began))
	if err := w.startPlane(ctx); err != nil {
		return err
	}
	if err := w.serveNames(); err != nil {
		return err
	}
	w.log("services after %s", since(began))
	if err := w.writeObjects(ctx); err != nil {
		return err
	}
	started := slices.DeleteFunc(slices.Clone(w.order), func(l *workload) bool { return !l.spec.Started() })
	if err := each(started, func(l *workload) error { return l.start(ctx) }); err != nil {
		return err
	}
	w.log("workloads ready after %s", since(began))
	if err := w.showPods(ctx, started...); err != nil {
		return err
	}
	if err := w.store.acked(ctx, 0); err != nil {
		return err
	}
	w.log("configured after %s", since(began))
	return nil
}

// connect makes the machines.
func (w *World) connect() error {
	name := fmt.Sprintf("fl%d-%s-", os.Getpid(), w.topology.Name)
	var err error
	if w.network, err = netns.NewNetwork(name+"control", w.options.IPv6); err != nil {
		return err
	}
	var hosts []*netns.Host
	for i := range w.topology.Workloads {
		l := &workload{world: w, spec: &w.topology.Workloads[i]}
		if l.host, err = netns.New(name + l.spec.Name); err != nil {
			return err
		}
		w.workloads[l.spec.Name] = l
		w.order = append(w.order, l)
		hosts = append(hosts, l.host)
	}
	if w.outside, err = netns.New(name + format.Outside); err != nil {
		return err
	}
	return w.network.Plug(append(hosts, w.outside)...)
}

// Close ends everything. Its error has every process that did not end well, or did not end.
func (w *World) Close(context.Context) error {
	var failed []error
	collect := func(err error) {
		if err != nil {
			failed = append(failed, err)
		}
	}
	collect(each(w.order, func(l *workload) error { return l.stop() }))
	if w.store != nil {
		collect(w.store.close())
	}
	if w.plane != nil {
		collect(w.plane.stop())
	}
	if w.stopNames != nil {
		collect(w.stopNames())
	}
	hosts := w.hosts()
	if left := netns.Left(hosts...); len(left) > 0 {
		collect(fmt.Errorf("left behind: %s", strings.Join(left, "; ")))
	}
	for _, h := range hosts {
		collect(h.Close())
	}
	return errors.Join(failed...)
}

func (w *World) hosts() []*netns.Host {
	var hosts []*netns.Host
	for _, l := range w.order {
		hosts = append(hosts, l.host)
	}
	if w.outside != nil {
		hosts = append(hosts, w.outside)
	}
	if w.network != nil {
		hosts = append(hosts, w.network.Hub)
	}
	return slices.DeleteFunc(hosts, func(h *netns.Host) bool { return h == nil })
}

// Host is the machine of a workload, or the one outside the mesh; nil if there is no such workload.
func (w *World) Host(name string) *netns.Host {
	if name == format.Outside {
		return w.outside
	}
	if l := w.workloads[name]; l != nil {
		return l.host
	}
	return nil
}

// find is a workload by name.
func (w *World) find(name string) (*workload, error) {
	if l := w.workloads[name]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("topology %s has no workload %q; it has %s", w.topology.Name, name, strings.Join(slices.Sorted(maps.Keys(w.workloads)), ", "))
}

// IP is the address of a workload.
func (w *World) IP(name string) (string, error) {
	if h := w.Host(name); h != nil {
		return h.IP.String(), nil
	}
	_, err := w.find(name)
	return "", err
}

// VIP is the address of a Service, by name.namespace.
func (w *World) VIP(service string) (string, error) { return w.store.vip(service) }

// Identity is the SPIFFE URI of a workload.
func (w *World) Identity(name string) (string, error) {
	l, err := w.find(name)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", w.mesh.trustDomain, l.spec.Namespace, l.spec.ServiceAccount), nil
}

// Values are those of a scenario's variables.
func (w *World) Values(certificates map[string]*format.Material) *format.Values {
	return &format.Values{Certificates: certificates, IP: w.IP, VIP: w.VIP, Identity: w.Identity, Files: w.FileDir}
}

// AccessLog is the file with what the proxy of a workload logs of connections and requests, see accessLogFormat.
func (w *World) AccessLog(name string) string { return w.path("logs/" + name + ".access.log") }

func (w *World) path(name string) string { return filepath.Join(w.options.Dir, name) }

func (w *World) log(format string, args ...any) {
	if w.options.Log != nil {
		w.options.Log(format, args...)
	}
}

// tails are the ends of all logs.
func (w *World) tails() error {
	files, _ := filepath.Glob(w.path("logs/*.log")) // the pattern is a good one
	var all []error
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil || len(raw) == 0 {
			continue
		}
		const limit = 1500
		all = append(all, fmt.Errorf("%s ends with\n%s", file, raw[max(0, len(raw)-limit):]))
	}
	return errors.Join(all...)
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }

// both does two things at once.
func both(a, b func() error) error {
	return each([]func() error{a, b}, func(f func() error) error { return f() })
}

// each does the same to all items at once.
func each[T any](items []T, do func(T) error) error {
	failed := make([]error, len(items))
	var wg sync.WaitGroup
	for i, item := range items {
		wg.Go(func() { failed[i] = do(item) })
	}
	wg.Wait()
	return errors.Join(failed...)
}

// lostError is one that time does not mend.
type lostError struct{ error }

// until tries something until it succeeds, is lost, or the time is over.
func until(ctx context.Context, within time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := try()
		if lost := (lostError{}); err == nil || errors.As(err, &lost) {
			return err
		}
		timer := time.NewTimer(often)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("not within %s: %w", within, err)
		case <-timer.C:
		}
	}
}
