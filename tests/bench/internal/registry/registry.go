// Package registry measures config-watcher with a large registry in Consul: until a subscriber has it, at rest, and
// while health changes. Consul is consultest.Fake in the benchmark's process.
package registry

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit/consultest"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/bench/internal/follower"
	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/bench/internal/services"
	"fairlead.dev/tests/internal/wait"
)

// Instances are those of each service.
const Instances = 10

const (
	// givenUp is how long it may take until the registry is served.
	givenUp = 2 * time.Minute
	// settles is how long it takes until readings that came at the start wait, and memory is given back.
	settles = 30 * time.Second
	domain  = ".service.consul"
	// fileHost is the host of which a file changes the endpoint.
	fileHost = "file.example.com"
)

// Config of a measurement.
type Config struct {
	Plane *services.Services
	// Dir holds files of the measurement.
	Dir string
	// Services is how many Consul has.
	Services int
	// Rest and Busy are how long config-watcher is watched at rest, and while health changes Rate times a second.
	Rest, Busy time.Duration
	Rate       int
	// Files is how often a file is changed before the changes of health, and as often meanwhile.
	Files int
	// Profile keeps a page of profiles of an operations port, such as "heap?gc=1", under a name; nil if none is wanted.
	Profile func(ctx context.Context, ops, page, name string) error
}

// Figures are what is measured.
type Figures struct {
	// Served is how long it took from the start until the subscriber had everything, ServedCPU what that took.
	Served, ServedCPU time.Duration
	// RestCPU is a part of a processor, RestRequests are those to Consul in a second.
	RestCPU, RestRequests float64
	RestMemory            machine.Memory
	// Rate is how many changes a second there were, Seen how long each took from Consul's answer to the subscriber.
	Rate float64
	Seen []time.Duration
	// BusyCPU is the part of a processor meanwhile.
	BusyCPU    float64
	BusyMemory machine.Memory
	// Quiet and Beside are how long changes of the file took to the subscriber, before the changes of health and
	// meanwhile.
	Quiet, Beside []time.Duration
}

// rig is a config-watcher with a registry in Consul, and a subscriber.
type rig struct {
	Config
	consul   *consultest.Fake
	watcher  *services.Server
	follower *follower.Follower
	// files is the directory of the file that changes.
	files string

	mu sync.Mutex
	// changed are services that Consul has changed and not answered about, answered when those were that have not come.
	changed  map[string]bool
	answered map[string]time.Time
	took     []time.Duration
	// came gets the times at which the file's host came.
	came chan time.Time
}

// Measure measures.
func Measure(ctx context.Context, c Config) (*Figures, error) {
	r := &rig{Config: c, changed: map[string]bool{}, answered: map[string]time.Time{}, came: make(chan time.Time, 1000),
		files: filepath.Join(c.Dir, "registry-files")}
	if r.Profile == nil {
		r.Profile = func(context.Context, string, string, string) error { return nil }
	}
	r.consul = consultest.StartFake(r.answers)
	defer r.consul.Stop()
	for i := range r.Services {
		all := make([]consultest.Registration, Instances)
		for j := range all {
			all[j] = r.instance(i, j, "passing")
		}
		r.consul.Set(r.name(i), all...)
	}
	f, began := &Figures{}, time.Now()
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	defer r.watcher.Stop()
	defer r.follower.Stop()
	if err := wait.Until(ctx, 10*time.Millisecond, givenUp, func() error { return r.follower.Has(r.Services, domain) }); err != nil {
		return nil, err
	}
	f.Served, f.ServedCPU = time.Since(began), r.watcher.CPU()
	for _, measure := range []func(context.Context, *Figures) error{r.rests, r.changes} {
		if err := measure(ctx, f); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (r *rig) name(service int) string { return fmt.Sprintf("s%05d", service) }

func (r *rig) instance(service, n int, status string) consultest.Registration {
	node := service*Instances + n
	i := consultest.Instance(fmt.Sprintf("node%04d", node%1000), r.name(service), fmt.Sprintf("%s-%d", r.name(service), n), status)
	i.Service.Address = fmt.Sprintf("10.%d.%d.%d", node>>16, node>>8&0xff, node&0xff)
	i.Service.Weights = &consultest.Weights{Passing: 10, Warning: 1}
	return i
}

// start starts config-watcher and a subscriber.
func (r *rig) start(ctx context.Context) error {
	declared, ca := filepath.Join(r.Dir, "registries"), filepath.Join(r.Dir, "consul-ca.pem")
	for _, dir := range []string{declared, r.files} {
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
	own, err := r.Plane.Certificate(ctx, contract.SystemNamespace, contract.XDSServerAccount)
	if err != nil {
		return err
	}
	if r.watcher, err = r.Plane.ConfigWatcher(ctx, "--registry-dir", declared, "--registry-allow-addresses", "127.0.0.0/8",
		"--registry-timeout", "5m", "--config-dir", r.files); err != nil {
		return err
	}
	if r.follower, err = follower.Start(ctx, own, r.Plane.ID(contract.SystemNamespace, contract.ConfigWatcherAccount), r.watcher.GRPC,
		r.comes); err != nil {
		r.watcher.Stop()
		return err
	}
	return nil
}

// profiled keeps a CPU profile; the channel gets a value when it is there.
func (r *rig) profiled(ctx context.Context, name string) <-chan error {
	done := make(chan error, 1)
	go func() { done <- r.Profile(ctx, r.watcher.Ops, "profile?seconds=10", name) }()
	return done
}

// rests measures what config-watcher needs while nothing changes.
func (r *rig) rests(ctx context.Context, f *Figures) error {
	if err := wait.Pause(ctx, settles); err != nil {
		return err
	}
	profile := r.profiled(ctx, "registry-rest")
	cpu, requests := r.watcher.CPU(), r.consul.Requests()
	if err := wait.Pause(ctx, r.Rest); err != nil {
		return err
	}
	if err := <-profile; err != nil {
		return err
	}
	f.RestCPU = (r.watcher.CPU() - cpu).Seconds() / r.Rest.Seconds()
	f.RestRequests = float64(r.consul.Requests()-requests) / r.Rest.Seconds()
	var err error
	if f.RestMemory, err = r.watcher.Memory(); err != nil {
		return err
	}
	return r.Profile(ctx, r.watcher.Ops, "heap?gc=1", "registry-rest-heap")
}

// changes changes the health of instances, and measures how soon the subscriber has that, what it takes, and how long
// changes of a file take before and meanwhile.
func (r *rig) changes(ctx context.Context, f *Figures) (err error) {
	if f.Quiet, err = r.changeFile(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	profile := r.profiled(ctx, "registry-changes")
	done := make(chan struct{})
	go func() {
		defer close(done)
		began, cpu := time.Now(), r.watcher.CPU()
		n := r.changeHealth(ctx)
		took := time.Since(began).Seconds()
		f.Rate, f.BusyCPU = float64(n)/took, (r.watcher.CPU()-cpu).Seconds()/took
	}()
	if f.Beside, err = r.changeFile(ctx); err != nil {
		cancel()
	}
	<-done
	if err != nil {
		return err
	}
	if err := <-profile; err != nil {
		return err
	}
	if f.BusyMemory, err = r.watcher.Memory(); err != nil {
		return err
	}
	// The last ones come. What does not, because a later change has undone it before it was read, counts with this
	// wait.
	if wait.Until(ctx, 10*time.Millisecond, 10*time.Second, r.pending) != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f.Seen = r.took
	for _, answered := range r.answered {
		f.Seen = append(f.Seen, time.Since(answered))
	}
	return nil
}

// changeHealth changes an instance of each service in turn, and returns how many it has changed.
func (r *rig) changeHealth(ctx context.Context) (n int) {
	began := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil && time.Since(began) < r.Busy {
		<-tick.C
		for due := int(time.Since(began).Seconds() * float64(r.Rate)); n < due; n++ {
			service, round := n%r.Services, n/r.Services
			r.mu.Lock()
			r.changed[r.name(service)] = true
			r.mu.Unlock()
			r.consul.Change(r.instance(service, round/2%Instances, []string{"warning", "passing"}[round%2]))
		}
	}
	return n
}

// answers notes that Consul answers about a service.
func (r *rig) answers(service string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed[service] {
		delete(r.changed, service)
		if _, waits := r.answered[service]; !waits {
			r.answered[service] = time.Now()
		}
	}
}

// comes notes that the subscriber has endpoints.
func (r *rig) comes(host string, at time.Time) {
	if host == fileHost {
		r.came <- at
		return
	}
	service := strings.TrimSuffix(host, domain)
	r.mu.Lock()
	defer r.mu.Unlock()
	if answered, is := r.answered[service]; is {
		r.took = append(r.took, at.Sub(answered))
		delete(r.answered, service)
	}
}

// pending is an error while something has not come.
func (r *rig) pending() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.changed) + len(r.answered); n > 0 {
		return fmt.Errorf("changes of %d services have not come", n)
	}
	return nil
}

// changeFile changes the file again and again, and returns how long each change takes to the subscriber.
func (r *rig) changeFile(ctx context.Context) ([]time.Duration, error) {
	took := make([]time.Duration, r.Files)
	for i := range took {
		if err := wait.Pause(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
		for len(r.came) > 0 {
			<-r.came
		}
		began := time.Now()
		if err := r.write(i + 1); err != nil {
			return nil, err
		}
		select {
		case at := <-r.came:
			took[i] = at.Sub(began)
		case <-time.After(30 * time.Second):
			return nil, fmt.Errorf("change %d of a file has not come within 30 s", i)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return took, nil
}

// write writes the file, with an endpoint that n decides.
func (r *rig) write(n int) error {
	text := fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: file, namespace: default}\nspec:\n  "+
		"hosts: [%s]\n  ports: [{number: 80, name: http, protocol: HTTP}]\n  resolution: STATIC\n  endpoints: [{address: 10.200.0.%d}]\n",
		fileHost, n%250+1)
	return fileio.Write(filepath.Join(r.files, "file.yaml"), []byte(text), 0o600)
}
