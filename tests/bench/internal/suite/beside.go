package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	contend "fairlead.dev/tests/bench/internal/contender"
	"fairlead.dev/tests/bench/internal/kube"
	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/proxy"
	"fairlead.dev/tests/bench/internal/wire"
	"fairlead.dev/tests/internal/wait"
)

// beside is a mesh in a Kubernetes API server that Fairlead and istiod read, one after the other.
type beside struct {
	*lab
	spec    kube.Spec
	api     *kube.API
	clients []mesh.Proxy
	// repeat is how many changes of a kind are measured, of policies policyRepeat times as many; lasts is how long a
	// storm lasts.
	repeat int
	lasts  time.Duration
	// number is the next one of a marked address, turn that of another mark.
	number, turn int
}

// contender is one of both, with its proxies.
type contender struct {
	*contend.Contender
	fleet *proxy.Fleet
	seen  *seen
}

func (c *contender) stop() {
	if c.fleet != nil {
		c.fleet.Close()
	}
	c.Stop()
}

// settle is Settle, and fails if a proxy has.
func (c *contender) settle(ctx context.Context) error {
	err := c.Settle(ctx)
	if err == nil && c.fleet != nil {
		err = c.fleet.Err()
	}
	return err
}

// figures are what was measured of one contender.
type figures struct {
	ready, readyCPU           time.Duration
	synced, connected         machine.Memory
	configured, configuredCPU time.Duration
	bytes                     int64
	changes                   map[string]*sample
	storm                     *stormResult
}

// beside measures Fairlead beside istiod.
func (l *lab) beside(ctx context.Context, t *table) error {
	istio := os.Getenv("ISTIO_BIN")
	if istio == "" {
		return errors.New("ISTIO_BIN names no directory with Istio's pilot-discovery: run `make bench-kube`")
	}
	b := &beside{lab: l, spec: kube.Spec{Namespaces: 50, Proxies: 200}, repeat: 10, lasts: 15 * time.Second}
	if l.Full {
		b.spec.Namespaces, b.repeat, b.lasts = 500, 30, time.Minute
	}
	b.clients = b.spec.Clients()
	dir := filepath.Join(l.dir, "kube")
	// What an earlier run has kept is another cluster's.
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	var err error
	if b.api, err = kube.StartAPI(ctx, dir, &l.cores.Clients); err != nil {
		return err
	}
	defer b.api.Stop()
	began := time.Now()
	if err := b.api.Load(ctx, b.spec, l.Definitions); err != nil {
		return err
	}
	fmt.Fprintf(l.log, "# the API server has %d Services, %d endpoints, %d mesh objects after %.0f s\n",
		b.spec.Services(), b.spec.Services()*kube.PerService, b.spec.Namespaces*kube.Rules, time.Since(began).Seconds())

	ours, err := b.measure(ctx, "fairlead", func() (*contend.Contender, error) {
		return contend.Fairlead(ctx, l.services, b.api.Kubeconfig)
	})
	if err != nil {
		return fmt.Errorf("fairlead: %w", err)
	}
	theirs, err := b.measure(ctx, "istiod", func() (*contend.Contender, error) {
		return contend.Istiod(ctx, b.api, istio, dir, &l.cores.Server)
	})
	if err != nil {
		return fmt.Errorf("istiod: %w", err)
	}
	b.lines(t, ours, theirs)
	return nil
}

// kinds of changes that are measured one at a time.
var (
	kindEndpoint, kindRoute, kindService, kindPolicy = "endpoint", "VirtualService", "Service", "AuthorizationPolicy"

	routeTypes = []string{wire.Route, wire.VirtualHost}
	// policyTypes have the filters of policies: in listeners with istiod, beside them with Fairlead.
	policyTypes = []string{wire.Listener, wire.Extension}
)

// measure starts a contender, measures it and stops it.
func (b *beside) measure(ctx context.Context, name string, start func() (*contend.Contender, error)) (*figures, error) {
	f := &figures{changes: map[string]*sample{}}
	began := time.Now()
	started, err := start()
	if err != nil {
		return nil, err
	}
	c := &contender{Contender: started}
	defer func() { c.stop() }()
	f.ready, f.readyCPU = time.Since(began), c.CPU()
	if err := c.settle(ctx); err != nil {
		return nil, err
	}
	if f.synced, err = c.Memory(); err != nil {
		return nil, err
	}
	fmt.Fprintf(b.log, "# %s: ready after %s with %s of CPU, then %s\n", name, ms(f.ready), ms(f.readyCPU), c.Held())
	if err := b.connect(ctx, c, f); err != nil {
		return nil, err
	}
	fmt.Fprintf(b.log, "# %s: %d proxies configured after %s with %s of CPU, %s each, then %s\n", name, b.spec.Proxies, ms(f.configured),
		ms(f.configuredCPU), size(float64(f.bytes)/float64(b.spec.Proxies)), c.Held())
	for _, kind := range []string{kindEndpoint, kindRoute, kindService, kindPolicy} {
		if kind == kindPolicy {
			if err := b.api.AddPolicies(ctx, b.spec); err != nil {
				return nil, err
			}
		}
		s, err := b.changes(ctx, c, kind)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		f.changes[kind] = s
		fmt.Fprintf(b.log, "# %s: %s: CPU %s, p50 %s, p99 %s, %s in %d responses\n", name, kind, ms(s.CPU), ms(percentile(s.Delays, 0.5)),
			ms(s.P99()),
			size(float64(s.Bytes)), s.Responses)
	}
	if err := b.api.RemovePolicies(ctx, b.spec); err != nil {
		return nil, err
	}
	if err := c.settle(ctx); err != nil {
		return nil, err
	}
	done := c.Profiles(ctx, b.profiler(), "kube-", "storm")
	if f.storm, err = b.weather(ctx, c, b.lasts); err != nil {
		return nil, err
	}
	s := f.storm
	fmt.Fprintf(b.log, "# %s: storm: %.0f endpoints/s, p50 %s, p99 %s, %d unacknowledged, %d different, %.0f %% of a core %s\n", name,
		s.perSecond,
		ms(percentile(s.delays, 0.5)), ms(percentile(s.delays, 0.99)), s.unacknowledged, s.different, 100*s.cpu, s.example)
	if err := <-done; err != nil {
		return nil, err
	}
	c.stop()
	return f, b.restore(ctx)
}

// connect brings all proxies to their first configuration.
func (b *beside) connect(ctx context.Context, c *contender, f *figures) error {
	c.fleet, c.seen = proxy.NewFleet(b.clients), newSeen(b.spec.Proxies)
	c.fleet.Observe(note, c.seen.acknowledged)
	done := c.Profiles(ctx, b.profiler(), "kube-", "connect")
	var began time.Time
	var used time.Duration
	if err := c.fleet.Connect(ctx, proxy.Target{Address: c.Address}, proxy.Cold, func() { began, used = time.Now(), c.CPU() }); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, quietMost)
	defer cancel()
	at, err := c.fleet.Configured(limit)
	if err != nil {
		return err
	}
	f.configured, f.configuredCPU = at.Sub(began), c.CPU()-used
	if err := errors.Join(<-done, c.settle(ctx)); err != nil {
		return err
	}
	for process, ops := range c.Ops {
		if err := b.heap(ctx, ops, "kube-"+process+"-heap"); err != nil {
			return err
		}
	}
	api, err := b.endpoints(ctx)
	if err != nil {
		return err
	}
	if n, example := c.seen.differing(api, b.sees); n > 0 {
		return fmt.Errorf("%d endpoints of proxies differ from the API after the start: %s", n, example)
	}
	f.bytes = c.fleet.Count().Bytes
	f.connected, err = c.Memory()
	return err
}

// sees tells whether a proxy has the Services of a host's namespace.
func (b *beside) sees(number int, host string) bool {
	return strings.Contains(host, "."+kube.Shared+".") || strings.Contains(host, "."+b.clients[number].Namespace+".")
}

// After the last of several changes a contender has so long for what it does about them besides sending; idle use of as
// much time is subtracted.
const (
	afterChanges = 3 * time.Second
	idleFor      = 3 * time.Second
)

// changes measures changes of a kind, one after another.
func (b *beside) changes(ctx context.Context, c *contender, kind string) (*sample, error) {
	change, err := b.change(ctx, kind)
	if err != nil {
		return nil, err
	}
	for range warmup {
		if _, err := change(c.seen); err != nil {
			return nil, err
		}
	}
	if err := c.settle(ctx); err != nil {
		return nil, err
	}
	used := c.CPU()
	if err := wait.Pause(ctx, idleFor); err != nil {
		return nil, err
	}
	rest := float64(c.CPU()-used) / idleFor.Seconds()
	repeat := b.repeat
	if kind == kindPolicy {
		repeat *= policyRepeat
	}
	c.fleet.Reset()
	s := &sample{}
	began, used := time.Now(), c.CPU()
	for range repeat {
		delays, err := change(c.seen)
		if err != nil {
			return nil, err
		}
		s.Delays = append(s.Delays, delays...)
	}
	if err := wait.Pause(ctx, afterChanges); err != nil {
		return nil, err
	}
	s.CPU = max(0, c.CPU()-used-time.Duration(rest*time.Since(began).Seconds())) / time.Duration(repeat)
	count := c.fleet.Count()
	s.Bytes, s.Responses, s.Reached = count.Bytes/int64(repeat), count.Responses/repeat, len(count.Newest)
	done := c.Profiles(ctx, b.profiler(), "kube-", kind)
	for {
		select {
		case err := <-done:
			return s, err
		default:
		}
		if _, err := change(c.seen); err != nil {
			return nil, err
		}
	}
}

const (
	// policyOf is the namespace whose policy changes.
	policyOf = 1
	// policyRepeat is how often a policy is changed beside once for another kind: the few proxies that a policy reaches
	// cost so little that what the processes do besides would decide.
	policyRepeat = 5
)

// selected is how many proxies the policy selects that changes.
func (b *beside) selected() (n int) {
	for _, c := range b.clients {
		if c.Namespace == kube.Namespace(policyOf) {
			n++
		}
	}
	return n
}

// change prepares changes of a kind, which all proxies see but those of a policy; each call of what it returns makes
// one.
func (b *beside) change(ctx context.Context, kind string) (func(*seen) ([]time.Duration, error), error) {
	switch kind {
	case kindEndpoint:
		return func(s *seen) ([]time.Duration, error) {
			b.turn++
			b.number++
			// The first Service has Pods, whose addresses stay.
			slice := kube.NewSlice(0, 1+b.turn%(kube.PerNamespace-1), markedAddress(b.number))
			return s.change(ctx, markedAddress(b.number), [][]string{{wire.Endpoint}}, func(ctx context.Context) error {
				_, err := b.api.Client.DiscoveryV1().EndpointSlices(slice.Namespace).Update(ctx, slice, metav1.UpdateOptions{})
				return err
			})
		}, nil
	case kindRoute:
		return func(s *seen) ([]time.Duration, error) {
			b.turn++
			mark := fmt.Sprintf("%sroute-%d.", markPrefix, b.turn)
			r := kube.Route(0, b.turn%4, mark)
			patch, err := json.Marshal(map[string]any{"spec": r.Object["spec"]})
			if err != nil {
				return nil, err
			}
			return s.change(ctx, mark, [][]string{routeTypes}, func(ctx context.Context) error {
				_, err := b.api.Dynamic.Resource(kube.VirtualServices).Namespace(kube.Shared).Patch(ctx, r.GetName(), types.MergePatchType, patch,
					metav1.PatchOptions{})
				return err
			})
		}, nil
	case kindPolicy:
		return func(s *seen) ([]time.Duration, error) {
			b.turn++
			mark := fmt.Sprintf("%spolicy-%d.", markPrefix, b.turn)
			p := kube.Policy(policyOf, 0, mark)
			patch, err := json.Marshal(map[string]any{"spec": p.Object["spec"]})
			if err != nil {
				return nil, err
			}
			return s.changeOf(ctx, b.selected(), mark, [][]string{policyTypes}, func(ctx context.Context) error {
				_, err := b.api.Dynamic.Resource(kube.AuthorizationPolicies).Namespace(p.GetNamespace()).Patch(ctx, p.GetName(), types.MergePatchType,
					patch, metav1.PatchOptions{})
				return err
			})
		}, nil
	default:
		return func(s *seen) ([]time.Duration, error) {
			b.turn++
			name := fmt.Sprintf("%sservice-%d", markPrefix, b.turn)
			return s.change(ctx, name+".", [][]string{{wire.Cluster}, routeTypes}, func(ctx context.Context) error {
				_, err := b.api.Client.CoreV1().Services(kube.Shared).Create(ctx, kube.NewService(name, kube.Shared, nil), metav1.CreateOptions{})
				return err
			})
		}, nil
	}
}

// restore deletes the Services that were added.
func (b *beside) restore(ctx context.Context) error {
	client := b.api.Client.CoreV1().Services(kube.Shared)
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range list.Items {
		if strings.HasPrefix(s.Name, markPrefix) {
			if err := client.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}
