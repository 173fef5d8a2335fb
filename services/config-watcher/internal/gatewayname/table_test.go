package gatewayname

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/services/config-watcher/internal/normalise/networks"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
)

// dns answers with what a test sets, and fails for all other names.
type dns struct {
	mu      sync.Mutex
	answers map[string][]string
	asked   map[string]int
}

func (d *dns) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked[host]++
	texts, ok := d.answers[strings.TrimSuffix(host, ".")]
	if !ok || !strings.HasSuffix(host, ".") {
		return nil, errors.New("no such host")
	}
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out, nil
}

func (d *dns) set(name string, addresses ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.answers[name] = addresses; len(addresses) == 0 {
		delete(d.answers, name)
	}
}

// fixture is a running table, and what it has passed on.
type fixture struct {
	*Table
	t     *testing.T
	dns   *dns
	clock *testkit.Clock
	mu    sync.Mutex
	told  map[object.Key]*object.Object
}

func newFixture(t *testing.T, every time.Duration, saved *lastgood.Dir) *fixture {
	t.Helper()
	f := &fixture{t: t, dns: &dns{answers: map[string][]string{}, asked: map[string]int{}},
		clock: testkit.NewClock(time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)), told: map[object.Key]*object.Object{}}
	f.Table = NewTable(Config{Resolver: f.dns, Every: every, Domain: "cluster.local", Saved: saved, Clock: f.clock, Log: testkit.Logger(t),
		Next: func(_ context.Context, changes []normalise.Change) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, c := range changes {
				if f.told[c.Key] = c.Object; c.Object == nil {
					delete(f.told, c.Key)
				}
			}
		}})
	return f
}

// run runs the table until the test ends.
func (f *fixture) run() {
	ctx, stop := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	f.t.Cleanup(func() { stop(); <-done })
}

// wants waits until the addresses of a name are told, or none.
func (f *fixture) wants(name string, addresses ...string) {
	f.t.Helper()
	testkit.Eventually(f.t, testkit.Patience, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		var got []string
		if o := f.told[normalise.GatewayNameKey(name)]; o != nil {
			got = o.Body.(*object.GatewayName).Addresses
		}
		if !slices.Equal(got, addresses) {
			return fmt.Errorf("%s has the addresses %v, want %v", name, got, addresses)
		}
		return nil
	})
}

// has waits for the state of a name; "" for one that is not wanted.
func (f *fixture) has(name, state string) {
	f.t.Helper()
	testkit.Eventually(f.t, testkit.Patience, func() error {
		got := ""
		for _, s := range f.States() {
			if s.Name == name {
				got = s.State
			}
		}
		if got != state {
			return fmt.Errorf("%s is %q, want %q", name, got, state)
		}
		return nil
	})
}

// gateway is a Service of a network, whose balancer has names.
func gateway(name, network string, hosts ...string) normalise.Change {
	k := object.Key{Kind: "Service", Namespace: "gateways", Name: name, Cluster: "east"}
	body := &corev1.Service{}
	for _, host := range hosts {
		body.Status.LoadBalancer.Ingress = append(body.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{Hostname: host})
	}
	o := &object.Object{Key: k, Body: body}
	if network != "" {
		o.Labels = map[string]string{networks.Label: network}
	}
	return normalise.Change{Key: k, Object: o}
}

func configured(text string) normalise.Change {
	k := object.Key{Kind: "ConfigMap", Namespace: kinds.MeshNamespace, Name: kinds.MeshName}
	return normalise.Change{Key: k, Object: &object.Object{Key: k, Body: &corev1.ConfigMap{Data: map[string]string{kinds.NetworksKey: text}}}}
}

func (f *fixture) submit(changes ...normalise.Change) { f.Submit(f.t.Context(), changes) }

func TestNamesOfGatewaysAreLookedUp(t *testing.T) {
	f := newFixture(t, time.Minute, nil)
	f.dns.set("lb.example.com", "10.1.0.2", "10.1.0.1", "10.1.0.2")
	f.dns.set("gw.example.com", "192.0.2.1")
	f.dns.set("plain.example.com", "192.0.2.2")
	f.run()
	f.submit(gateway("a", "n1", "LB.example.com."), gateway("plain", "", "plain.example.com"),
		configured("networks: {n2: {gateways: [{address: gw.example.com, port: 1}]}}"))
	f.wants("lb.example.com", "10.1.0.1", "10.1.0.2")
	f.wants("gw.example.com", "192.0.2.1")
	f.has("plain.example.com", "")
	f.submit(configured("networks: {n2: {gateways: [{registryServiceName: plain.gateways.svc.cluster.local, port: 1}]}}"))
	f.wants("plain.example.com", "192.0.2.2")
	f.wants("gw.example.com")
	f.submit(normalise.Change{Key: gateway("a", "").Key}, gateway("plain", ""))
	f.wants("lb.example.com")
	f.wants("plain.example.com")
	if len(f.States()) != 0 {
		t.Errorf("names %v are wanted by nobody", f.States())
	}
}

// TestTheLastGoodAnswerStays: DNS that is away, or answers with what no proxy may connect to, removes no gateway.
func TestTheLastGoodAnswerStays(t *testing.T) {
	f := newFixture(t, time.Minute, nil)
	f.dns.set("lb.example.com", "192.0.2.1")
	f.run()
	f.submit(gateway("a", "n1", "lb.example.com"))
	f.wants("lb.example.com", "192.0.2.1")
	for _, bad := range [][]string{nil, {"127.0.0.1"}, {"169.254.169.254", "0.0.0.0", "224.0.0.1"}, {"fe80::1%eth0"}} {
		f.dns.set("lb.example.com", bad...)
		f.clock.Advance(time.Minute)
		f.has("lb.example.com", StateStale)
		f.wants("lb.example.com", "192.0.2.1")
		f.dns.set("lb.example.com", "192.0.2.1")
		f.clock.Advance(time.Minute)
		f.has("lb.example.com", StateFresh)
	}
	f.dns.set("lb.example.com", "127.0.0.1", "192.0.2.3")
	f.clock.Advance(time.Minute)
	f.wants("lb.example.com", "192.0.2.3")
}

// TestTheFirstRevisionWaitsForNames, and a name that fails is asked for again soon.
func TestTheFirstRevisionWaitsForNames(t *testing.T) {
	f := newFixture(t, time.Minute, nil)
	f.submit(gateway("a", "n1", "lb.example.com"))
	if f.Settled() {
		t.Error("settled before the first look-up")
	}
	f.run()
	f.has("lb.example.com", StateMissing)
	if !f.Settled() {
		t.Error("a name that nobody has holds the first revision up")
	}
	f.dns.set("lb.example.com", "192.0.2.1")
	f.clock.Advance(firstPause)
	f.wants("lb.example.com", "192.0.2.1")
}

// TestAnswersOutliveARestart, so that gateways stay although DNS is away at the start.
func TestAnswersOutliveARestart(t *testing.T) {
	saved := lastgood.New(lastgood.Config{Path: t.TempDir(), Log: testkit.Logger(t), Clock: clock.Real()})
	f := newFixture(t, time.Minute, saved)
	f.dns.set("lb.example.com", "192.0.2.1")
	f.dns.set("gone.example.com", "192.0.2.2")
	f.run()
	f.submit(gateway("a", "n1", "lb.example.com"), gateway("b", "n1", "gone.example.com"))
	f.wants("lb.example.com", "192.0.2.1")
	f.wants("gone.example.com", "192.0.2.2")
	next := newFixture(t, time.Minute, saved)
	next.submit(gateway("a", "n1", "lb.example.com"))
	if !next.Settled() {
		t.Error("not settled although the answer is known")
	}
	next.wants("lb.example.com", "192.0.2.1")
	next.wants("gone.example.com")
	next.run()
	next.has("lb.example.com", StateStale)
	next.wants("lb.example.com", "192.0.2.1")
}

// TestNamesAreBounded: those first in the order of names are looked up, and none with Every 0.
func TestNamesAreBounded(t *testing.T) {
	f := newFixture(t, time.Minute, nil)
	var hosts []string
	for i := range maxNames + 10 {
		hosts = append(hosts, fmt.Sprintf("lb-%03d.example.com", i))
	}
	f.submit(gateway("a", "n1", hosts...))
	states := f.States()
	if len(states) != maxNames || states[maxNames-1].Name != hosts[maxNames-1] {
		t.Errorf("%d names", len(states))
	}
	off := newFixture(t, 0, nil)
	off.submit(gateway("a", "n1", hosts...))
	if len(off.States()) != 0 || !off.Settled() {
		t.Errorf("%d names although none are looked up", len(off.States()))
	}
	many := make([]netip.Addr, 2*maxAddresses)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
	}
	if got, err := usable(many); err != nil || len(got) != maxAddresses {
		t.Errorf("%d addresses of one name, %v", len(got), err)
	}
}
