package suite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit/consultest"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/bench/internal/follower"
	"fairlead.dev/tests/bench/internal/services"
	"fairlead.dev/tests/internal/wait"
)

// What Consul has in the rows about it, and what is asked of config-watcher.
const (
	consulInstances = 10 // of a service
	consulServed    = time.Minute
	consulMemory    = 600 << 20
	consulIdleCPU   = 0.03 // of a processor
	consulIdleRate  = 50   // requests a second
	consulRate      = 1000 // changes of health a second
	consulSeen      = 500 * time.Millisecond
	consulBusyCPU   = 0.6 // of a processor
	consulBeside    = 1.2 // times as long as a change of a file takes without
	// consulSettles is how long it takes until readings that came at the start wait, and memory is given back.
	consulSettles = 30 * time.Second
	consulDomain  = ".service.consul"
	// fileHost is the host of which a file changes the endpoint.
	fileHost = "file.example.com"
)

// registry is a config-watcher with a registry in Consul, and a subscriber. Consul answers in the benchmark's process.
type registry struct {
	*lab
	consul   *consultest.Fake
	services int
	watcher  *services.Server
	follower *follower.Follower
	config   string

	mu sync.Mutex
	// changed are services that Consul has changed and not answered about, answered when those were that have not come.
	changed  map[string]bool
	answered map[string]time.Time
	took     []time.Duration
	// file gets the times at which the file's host came.
	file chan time.Time
}

// registered measures config-watcher with a large registry in Consul: until it is served, at rest, and under changes.
func (l *lab) registered(ctx context.Context, t *table) error {
	r := &registry{lab: l, services: 2000, changed: map[string]bool{}, answered: map[string]time.Time{}, file: make(chan time.Time, 1000),
		config: filepath.Join(l.dir, "consul-config")}
	rest, busy, changes := 20*time.Second, 30*time.Second, 20
	if l.Full {
		r.services, rest, busy, changes = 10_000, time.Minute, 5*time.Minute, 100
	}
	r.consul = consultest.StartFake(r.answer)
	defer r.consul.Stop()
	for i := range r.services {
		all := make([]consultest.Registration, consulInstances)
		for j := range all {
			all[j] = r.instance(i, j, "passing")
		}
		r.consul.Set(r.name(i), all...)
	}
	if err := r.start(ctx, t); err != nil {
		return err
	}
	defer r.watcher.Stop()
	defer r.follower.Stop()
	if err := r.atRest(ctx, t, rest); err != nil {
		return err
	}
	quiet, err := r.files(ctx, changes)
	if err != nil {
		return err
	}
	return r.underChanges(ctx, t, busy, changes, quiet)
}

func (r *registry) name(service int) string { return fmt.Sprintf("s%05d", service) }

func (r *registry) instance(service, n int, status string) consultest.Registration {
	node := service*consulInstances + n
	i := consultest.Instance(fmt.Sprintf("node%04d", node%1000), r.name(service), fmt.Sprintf("%s-%d", r.name(service), n), status)
	i.Service.Address = fmt.Sprintf("10.%d.%d.%d", node>>16, node>>8&0xff, node&0xff)
	i.Service.Weights = &consultest.Weights{Passing: 10, Warning: 1}
	return i
}

// start starts config-watcher and waits until a subscriber has everything.
func (r *registry) start(ctx context.Context, t *table) error {
	declared := filepath.Join(r.dir, "registries")
	ca := filepath.Join(r.dir, "consul-ca.pem")
	for _, dir := range []string{declared, r.config} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("address: %s\nserverName: example.com\ndatacenter: dc1\ncaFile: %s\nrules: [{services: ['*'], namespace: consul}]\n",
		r.consul.URL, ca)
	if err := os.WriteFile(ca, r.consul.CA, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(declared, "east.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	if err := r.write(0); err != nil {
		return err
	}
	began := time.Now()
	var err error
	if r.watcher, err = r.lab.services.ConfigWatcher(ctx, "--registry-dir", declared, "--registry-allow-addresses", "127.0.0.0/8",
		"--registry-timeout", "5m", "--config-dir", r.config); err != nil {
		return err
	}
	own, err := r.lab.services.Certificate(ctx, contract.SystemNamespace, contract.XDSServerAccount)
	if err == nil {
		server := r.lab.services.ID(contract.SystemNamespace, contract.ConfigWatcherAccount)
		r.follower, err = follower.Start(ctx, own, server, r.watcher.GRPC, r.came)
	}
	if err != nil {
		r.watcher.Stop()
		return err
	}
	if err := wait.Until(ctx, 10*time.Millisecond, 2*consulServed,
		func() error { return r.follower.Has(r.services, consulDomain) }); err != nil {
		return err
	}
	what := fmt.Sprintf("%s services with %s instances in Consul", thousands(r.services), thousands(r.services*consulInstances))
	t.fixedLine("consul/served", what+": a subscriber has them after", time.Since(began), 0, consulServed, "")
	t.fixedLine("consul/served-cpu", "CPU until then", r.watcher.CPU(), 0, 0, "")
	return nil
}

// profiled keeps a CPU profile of config-watcher, if profiles are asked for; the channel gets a value when it is there.
func (r *registry) profiled(ctx context.Context, name string) <-chan error {
	done := make(chan error, 1)
	if !r.Profile {
		done <- nil
		return done
	}
	go func() { done <- r.fetch(ctx, r.watcher.Ops, "profile?seconds=10", name) }()
	return done
}

// atRest measures what config-watcher needs while nothing changes.
func (r *registry) atRest(ctx context.Context, t *table, lasts time.Duration) error {
	if err := wait.Pause(ctx, consulSettles); err != nil {
		return err
	}
	profile := r.profiled(ctx, "consul-rest")
	cpu, requests := r.watcher.CPU(), r.consul.Requests()
	if err := wait.Pause(ctx, lasts); err != nil {
		return err
	}
	if err := <-profile; err != nil {
		return err
	}
	used, made := r.watcher.CPU()-cpu, r.consul.Requests()-requests
	t.shareLine("consul/rest/cpu", "at rest: part of a processor", used.Seconds()/lasts.Seconds(), consulIdleCPU)
	rate := float64(made) / lasts.Seconds()
	t.add(line{id: "consul/rest/requests", what: "at rest: requests to Consul", figure: fmt.Sprintf("%.0f/s", rate),
		goal: fmt.Sprintf("≤ %d/s", consulIdleRate), verdict: judge(rate, consulIdleRate, true)})
	if err := r.heap(ctx, r.watcher.Ops, "consul-rest-heap"); err != nil {
		return err
	}
	memory, err := r.watcher.Memory()
	if err == nil {
		t.bytesLine("consul/rest/memory", "at rest: memory", float64(memory.Resident), -1, "")
		t.bytesLine("consul/peak", "peak memory until then", float64(memory.Peak), consulMemory, "")
	}
	return err
}

// underChanges changes the health of instances, and measures how soon the subscriber has that, what it takes, and what
// changes of files take meanwhile.
func (r *registry) underChanges(ctx context.Context, t *table, lasts time.Duration, files int, quiet []time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	profile := r.profiled(ctx, "consul-changes")
	type outcome struct {
		n         int
		took, cpu time.Duration
	}
	changes := make(chan outcome, 1)
	go func() {
		began, cpu := time.Now(), r.watcher.CPU()
		n := r.change(ctx, lasts)
		changes <- outcome{n, time.Since(began), r.watcher.CPU() - cpu}
	}()
	beside, err := r.files(ctx, files)
	if err != nil {
		return err
	}
	of := <-changes
	if err := <-profile; err != nil {
		return err
	}
	memory, err := r.watcher.Memory()
	if err != nil {
		return err
	}
	// The last ones come. What does not, because a later change has undone it before it was read, counts with this
	// wait.
	if wait.Until(ctx, 10*time.Millisecond, 10*time.Second, r.pending) != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	r.mu.Lock()
	seen := slices.Clone(r.took)
	for _, answered := range r.answered {
		seen = append(seen, time.Since(answered))
	}
	r.mu.Unlock()
	what := fmt.Sprintf("%.0f changes/s of health", float64(of.n)/of.took.Seconds())
	t.fixedLine("consul/changes/p99", what+": p99 answer of Consul → subscriber", percentile(seen, 0.99), 0, consulSeen, "")
	t.fixedLine("consul/changes/p50", what+": p50", percentile(seen, 0.5), 0, 0, "")
	t.shareLine("consul/changes/cpu", what+": part of a processor", of.cpu.Seconds()/of.took.Seconds(), consulBusyCPU)
	t.bytesLine("consul/changes/peak", what+": peak memory", float64(memory.Peak), consulMemory, "")
	with, without := percentile(beside, 0.99), percentile(quiet, 0.99)
	t.add(line{id: "consul/changes/file", what: what + ": p99 change of a file → subscriber",
		figure: fmt.Sprintf("%s, without the changes %s", ms(with), ms(without)), ratio: times(float64(with), float64(without)),
		goal: fmt.Sprintf("≤ %g × without", consulBeside), verdict: judge(float64(with), consulBeside*float64(without), false)})
	return nil
}

// change changes health at consulRate, an instance of each service in turn, for a time, and returns how many it has
// changed.
func (r *registry) change(ctx context.Context, lasts time.Duration) (n int) {
	began := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil && time.Since(began) < lasts {
		<-tick.C
		for due := int(time.Since(began).Seconds() * consulRate); n < due; n++ {
			service, round := n%r.services, n/r.services
			r.mu.Lock()
			r.changed[r.name(service)] = true
			r.mu.Unlock()
			r.consul.Change(r.instance(service, round/2%consulInstances, []string{"warning", "passing"}[round%2]))
		}
	}
	return n
}

// answer notes that Consul has answered about a service.
func (r *registry) answer(service string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed[service] {
		delete(r.changed, service)
		if _, waits := r.answered[service]; !waits {
			r.answered[service] = time.Now()
		}
	}
}

// came notes that the subscriber has endpoints.
func (r *registry) came(host string, at time.Time) {
	if host == fileHost {
		r.file <- at
		return
	}
	service := strings.TrimSuffix(host, consulDomain)
	r.mu.Lock()
	defer r.mu.Unlock()
	if answered, is := r.answered[service]; is {
		r.took = append(r.took, at.Sub(answered))
		delete(r.answered, service)
	}
}

// pending is an error while something has not come.
func (r *registry) pending() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.changed) + len(r.answered); n > 0 {
		return fmt.Errorf("changes of %d services have not come", n)
	}
	return nil
}

// files changes a file again and again, and returns how long each change takes to the subscriber.
func (r *registry) files(ctx context.Context, n int) ([]time.Duration, error) {
	took := make([]time.Duration, n)
	for i := range took {
		if err := wait.Pause(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
		for len(r.file) > 0 {
			<-r.file
		}
		began := time.Now()
		if err := r.write(i + 1); err != nil {
			return nil, err
		}
		select {
		case at := <-r.file:
			took[i] = at.Sub(began)
		case <-time.After(20 * time.Second):
			return nil, fmt.Errorf("change %d of a file has not come within 20 s", i)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return took, nil
}

// write writes the file that files changes, with an endpoint that n decides.
func (r *registry) write(n int) error {
	text := fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: file, namespace: default}\nspec:\n  "+
		"hosts: [%s]\n  ports: [{number: 80, name: http, protocol: HTTP}]\n  resolution: STATIC\n  endpoints: [{address: 10.200.0.%d}]\n",
		fileHost, n%250+1)
	return fileio.Write(filepath.Join(r.config, "file.yaml"), []byte(text), 0o600)
}

// shareLine compares a part of a processor with a goal.
func (t *table) shareLine(id, what string, got, goal float64) {
	t.add(line{id: id, what: what, figure: fmt.Sprintf("%.1f %%", got*100), goal: fmt.Sprintf("≤ %g %%", goal*100),
		verdict: judge(got, goal, false)})
}
