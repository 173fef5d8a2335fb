package registration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// rig is a Table, a fleet with one xds-server, and a source that holds the entries.
type rig struct {
	*Table
	t      *testing.T
	clock  *testkit.Clock
	fleet  *fleet.Table
	server *fleet.ReportStream
	// source is what the Writer has written.
	source map[string]*object.Object
	fail   error
	writes int
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, clock: testkit.NewClock(time.Unix(1e9, 0)), source: map[string]*object.Object{}}
	r.fleet = fleet.NewTable(r.clock)
	r.server = r.fleet.Report("xds-server-0")
	r.server.Apply(&configv1.ReportRequest{}, true)
	r.Table = r.table()
	r.groupOf("web", nil)
	r.advance(Reconnect)
	return r
}

// table is what a config-watcher starts with.
func (r *rig) table() *Table {
	return NewTable(Config{
		Fleet: r.fleet, Controller: "fairlead", Synced: func() bool { return true }, Fallback: r, Clock: r.clock, Log: testkit.Logger(r.t),
	})
}

// groupOf submits the WorkloadGroup shop/machines.
func (r *rig) groupOf(account string, annotations map[string]string) {
	o := &object.Object{
		Key: object.Key{Group: kinds.GroupNetworking, Kind: groupKind, Namespace: "shop", Name: "machines"}, Annotations: annotations,
		Body: &networking.WorkloadGroup{
			Metadata: &networking.WorkloadGroup_ObjectMeta{Labels: map[string]string{"app": "machine"},
				Annotations: map[string]string{"team": "a", groupAnnotation: "x"}},
			Template: &networking.WorkloadEntry{ServiceAccount: account, Labels: map[string]string{"app": "none", "tier": "b"},
				Ports: map[string]uint32{"http": 8080}},
		},
	}
	r.Submit([]normalise.Change{{Key: o.Key, Object: o}})
}

// advance lets time pass, in which the table looks every second.
func (r *rig) advance(d time.Duration) {
	for ; d > 0; d -= time.Second {
		r.look(r.t.Context())
		r.clock.Advance(min(d, time.Second))
	}
	r.look(r.t.Context())
}

func (r *rig) put(o *object.Object, key object.Key) error {
	if r.fail != nil {
		return r.fail
	}
	r.writes++
	delete(r.source, key.Name)
	if o != nil {
		r.source[key.Name] = o
	}
	r.Submit([]normalise.Change{{Key: key, Object: o}})
	return nil
}

// Create implements Writer.
func (r *rig) Create(_ context.Context, e Entry) error {
	tree, o, err := e.document()
	if err == nil {
		err = r.put(&object.Object{Key: e.Key, Body: o.Body, Labels: o.Labels, Annotations: annotationsOf(tree)}, e.Key)
	}
	return err
}

// Annotate implements Writer.
func (r *rig) Annotate(_ context.Context, of *object.Object, set map[string]string, check func(map[string]string) bool) error {
	if !check(of.Annotations) {
		return ErrOutdated
	}
	o := *of
	o.Annotations = maps.Clone(o.Annotations)
	maps.Copy(o.Annotations, set)
	maps.DeleteFunc(o.Annotations, func(_, v string) bool { return v == "" })
	return r.put(&o, o.Key)
}

// Delete implements Writer.
func (r *rig) Delete(_ context.Context, of *object.Object, check func(map[string]string) bool) error {
	if !check(of.Annotations) {
		return ErrOutdated
	}
	return r.put(nil, of.Key)
}

const web = "spiffe://cluster.local/ns/shop/sa/web"

// machine is a proxy that says what it should; change edits it.
func (r *rig) machine(node string, change ...func(*configv1.ProxyStatus)) *configv1.ProxyStatus {
	p := &configv1.ProxyStatus{
		NodeId: node, Identity: web, Namespace: "shop", Unverified: true, ConnectedAt: timestamppb.New(r.clock.Now()),
		Registration: &configv1.Registration{Group: "machines", Address: "10.1.1.1", PeerAddress: "10.1.1.1"},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func (r *rig) report(p ...*configv1.ProxyStatus) {
	r.server.Apply(&configv1.ReportRequest{Proxies: p}, false)
}

// want looks and compares the names of all entries.
func (r *rig) want(names ...string) {
	r.t.Helper()
	r.look(r.t.Context())
	if got := slices.Sorted(maps.Keys(r.source)); !slices.Equal(got, names) {
		r.t.Fatalf("entries %q, want %q", got, names)
	}
}

// refusal looks and returns why a proxy is refused.
func (r *rig) refusal() string {
	r.look(r.t.Context())
	refused, _ := r.Refused("xds-server-0")
	text := ""
	for _, of := range refused {
		text += of.GetNodeId() + ": " + of.GetMessage()
	}
	return text
}

// TestAMachineIsRegistered: the entry is made from the group, with Istio's name, labels and annotations.
func TestAMachineIsRegistered(t *testing.T) {
	r := newRig(t)
	r.report(r.machine("vm", func(p *configv1.ProxyStatus) { p.Registration.Network, p.Registration.Probed = "vpc", true }))
	r.want("machines-10.1.1.1-vpc")
	e := r.source["machines-10.1.1.1-vpc"]
	spec := e.Body.(*networking.WorkloadEntry)
	got := fmt.Sprint(spec.Address, spec.Network, spec.ServiceAccount, spec.Ports, spec.Labels, e.Labels, e.Annotations)
	want := fmt.Sprint("10.1.1.1", "vpc", "web", map[string]uint32{"http": 8080}, map[string]string{"app": "machine", "tier": "b"},
		map[string]string{"app": "machine", "tier": "b"},
		map[string]string{
			"team": "a", "istio.io/autoRegistrationGroup": "machines", "istio.io/workloadController": "fairlead",
			"istio.io/connectedAt":                 "2001-09-09T01:47:40Z",
			"proxy.istio.io/health-checks-enabled": "true",
		})
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if why := r.refusal(); why != "" {
		t.Error(why)
	}
	r.report(r.machine("six", func(p *configv1.ProxyStatus) {
		p.Registration.Address, p.Registration.PeerAddress = "fd00::7", "fd00::7"
	}))
	r.want("machines-10.1.1.1-vpc", "machines-fd00--7")
}

// TestWhoIsNotEntitledIsRefused: nothing is made of what a proxy claims, and it is told why (CVE-2021-38698).
func TestWhoIsNotEntitledIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*configv1.ProxyStatus)
		why    string
	}{
		"another's address": {func(p *configv1.ProxyStatus) { p.Registration.Address = "10.9.9.9" }, `its connection comes from "10.1.1.1"`},
		"no address":        {func(p *configv1.ProxyStatus) { p.Registration.Address = "" }, "no address that a workload can have"},
		"an unspecified one": {func(p *configv1.ProxyStatus) {
			p.Registration.Address, p.Registration.PeerAddress = "0.0.0.0", "0.0.0.0"
		}, "no address that"},
		"an unknown group": {func(p *configv1.ProxyStatus) { p.Registration.Group = "other" }, "WorkloadGroup shop/other does not exist"},
		"another's namespace": {func(p *configv1.ProxyStatus) { p.Identity = "spiffe://cluster.local/ns/evil/sa/web" },
			"WorkloadGroup evil/machines does not exist"},
		"another's account": {func(p *configv1.ProxyStatus) { p.Identity = "spiffe://cluster.local/ns/shop/sa/thief" },
			`is for service account "web", the proxy has proven "thief"`},
		"no workload":           {func(p *configv1.ProxyStatus) { p.Identity = "spiffe://cluster.local/gateway" }, "is not that of a workload"},
		"no identity":           {func(p *configv1.ProxyStatus) { p.Identity = "" }, "has proven no identity"},
		"an entry of the owner": {func(p *configv1.ProxyStatus) { p.Registration.Network = "taken" }, "was not made by registration"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			own := object.Key{Group: kinds.GroupNetworking, Kind: entryKind, Namespace: "shop", Name: "machines-10.1.1.1-taken"}
			r.Submit([]normalise.Change{{Key: own, Object: &object.Object{Key: own, Body: &networking.WorkloadEntry{Address: "10.1.1.1"}}}})
			r.report(r.machine("vm", c.change))
			if why := r.refusal(); !strings.Contains(why, c.why) {
				t.Errorf("refused with %q, want %q", why, c.why)
			}
			r.want()
		})
	}
}

// TestRefusalsAreToldAnew: a proxy that comes again is refused again, and not once its group is right.
func TestRefusalsAreToldAnew(t *testing.T) {
	r := newRig(t)
	_, changed := r.Refused("xds-server-0")
	for range 2 {
		r.report(r.machine("vm", func(p *configv1.ProxyStatus) { p.Identity = "spiffe://cluster.local/ns/shop/sa/thief" }))
		if r.refusal() == "" {
			t.Fatal("not refused")
		}
		select {
		case <-changed:
		default:
			t.Fatal("the refusal is not told")
		}
		_, changed = r.Refused("xds-server-0")
		r.clock.Advance(time.Second)
	}
	r.groupOf("thief", nil)
	if why := r.refusal(); why != "" {
		t.Error(why)
	}
	r.want("machines-10.1.1.1")
}

// TestTheGroupMayAllowAddresses: behind a NAT the group's owner says which addresses its machines have.
func TestTheGroupMayAllowAddresses(t *testing.T) {
	r := newRig(t)
	r.groupOf("web", map[string]string{RangesAnnotation: "nonsense, 10.9.0.0/16"})
	r.report(r.machine("vm", func(p *configv1.ProxyStatus) { p.Registration.Address = "10.9.9.9" }),
		r.machine("spoof", func(p *configv1.ProxyStatus) { p.Registration.Address = "10.8.9.9" }))
	r.want("machines-10.9.9.9")
	if why := r.refusal(); !strings.HasPrefix(why, "spoof: ") || strings.Contains(why, "vm: ") {
		t.Error(why)
	}
}

// TestAnEntryGoesWithItsProxy: some time after the proxy has gone, unless it comes back.
func TestAnEntryGoesWithItsProxy(t *testing.T) {
	r := newRig(t)
	r.report(r.machine("vm"))
	r.want("machines-10.1.1.1")
	r.advance(5 * time.Second)
	gone := func() { r.server.Apply(&configv1.ReportRequest{Disconnected: []string{"vm"}}, false) }
	gone()
	r.advance(2 * time.Second)
	e := r.source["machines-10.1.1.1"]
	if e == nil || e.Annotations[disconnectedAnnotation] == "" || e.Annotations[connectedAnnotation] != "" {
		t.Fatalf("annotations %v", e.Annotations)
	}
	r.report(r.machine("vm"))
	r.advance(2 * time.Second)
	if e := r.source["machines-10.1.1.1"]; e.Annotations[disconnectedAnnotation] != "" || e.Annotations[connectedAnnotation] == "" {
		t.Fatalf("annotations %v", e.Annotations)
	}
	before := r.writes
	r.advance(3 * Grace)
	r.want("machines-10.1.1.1")
	if r.writes != before {
		t.Errorf("%d writes without a change", r.writes-before)
	}
	gone()
	r.advance(Grace - time.Second)
	r.want("machines-10.1.1.1")
	r.advance(3 * time.Second)
	r.want()
}

// TestAnEntryOutlivesTheControlPlane: neither the loss of an xds-server nor that of config-watcher removes entries of
// proxies that come back in time.
func TestAnEntryOutlivesTheControlPlane(t *testing.T) {
	t.Run("an xds-server", func(t *testing.T) {
		r := newRig(t)
		r.report(r.machine("vm"))
		r.advance(time.Second)
		r.server.Close()
		other := r.fleet.Report("xds-server-1")
		other.Apply(&configv1.ReportRequest{}, true)
		r.advance(fleet.LostServerGrace + Reconnect - 2*time.Second)
		if e := r.source["machines-10.1.1.1"]; e == nil || e.Annotations[disconnectedAnnotation] != "" {
			t.Fatalf("%v", e)
		}
		other.Apply(&configv1.ReportRequest{Proxies: []*configv1.ProxyStatus{r.machine("vm")}}, false)
		r.advance(2 * Reconnect)
		r.want("machines-10.1.1.1")
		other.Apply(&configv1.ReportRequest{Disconnected: []string{"vm"}}, false)
		r.advance(Grace + 3*time.Second)
		r.want()
	})
	t.Run("all xds-servers", func(t *testing.T) {
		r := newRig(t)
		r.report(r.machine("vm"))
		r.advance(time.Second)
		r.server.Close()
		r.advance(10 * Reconnect)
		r.want("machines-10.1.1.1")
	})
	t.Run("config-watcher", func(t *testing.T) {
		r := newRig(t)
		r.report(r.machine("vm"))
		r.advance(time.Second)
		r.server.Apply(&configv1.ReportRequest{Disconnected: []string{"vm"}}, false)
		next := r.table()
		for _, o := range []map[object.Key]*object.Object{r.groups, r.entries} {
			for k, v := range o {
				next.Submit([]normalise.Change{{Key: k, Object: v}})
			}
		}
		r.Table = next
		r.advance(Reconnect - time.Second)
		r.want("machines-10.1.1.1")
		r.advance(Grace + 5*time.Second)
		r.want()
	})
}

// TestOthersEntriesStay: those of an istiod, and those that users write, are not removed; a machine that moves from
// istiod keeps its entry.
func TestOthersEntriesStay(t *testing.T) {
	r := newRig(t)
	for name, annotations := range map[string]map[string]string{
		"own": nil, "machines-10.1.1.1": {groupAnnotation: "machines", controllerAnnotation: "istiod-1",
			connectedAnnotation: "2001-09-09T01:47:40Z"},
	} {
		k := object.Key{Group: kinds.GroupNetworking, Kind: entryKind, Namespace: "shop", Name: name}
		if err := r.put(&object.Object{Key: k, Annotations: annotations,
			Body: &networking.WorkloadEntry{Address: "10.1.1.1", ServiceAccount: "web"}}, k); err != nil {
			t.Fatal(err)
		}
	}
	r.advance(3 * Reconnect)
	r.want("machines-10.1.1.1", "own")
	r.report(r.machine("vm"))
	r.want("machines-10.1.1.1", "own")
	if got := r.source["machines-10.1.1.1"].Annotations[controllerAnnotation]; got != "fairlead" {
		t.Errorf("controller %q", got)
	}
}

// TestRegistrationIsBounded: one identity cannot fill the mesh with entries, and who was first keeps its own.
func TestRegistrationIsBounded(t *testing.T) {
	r := newRig(t)
	for i := range MaxPerIdentity + 3 {
		a := fmt.Sprintf("10.2.%d.%d", i/256, i%256)
		r.report(r.machine(fmt.Sprintf("vm-%04d", i), func(p *configv1.ProxyStatus) {
			p.Registration.Address, p.Registration.PeerAddress = a,
				a
		}))
		r.clock.Advance(time.Millisecond)
	}
	r.advance(20 * time.Second)
	refused, _ := r.Refused("xds-server-0")
	if len(r.source) != MaxPerIdentity || len(refused) != 3 || refused[0].GetNodeId() != "vm-1000" {
		t.Errorf("%d entries, %d refused: %.300v", len(r.source), len(refused), refused)
	}
}

// TestFailedWritesAreTriedAgain: with pauses, and with the reason in the log.
func TestFailedWritesAreTriedAgain(t *testing.T) {
	r := newRig(t)
	r.fail = fmt.Errorf("the disk is full")
	r.report(r.machine("vm"))
	r.advance(5 * time.Second)
	r.want()
	r.fail = nil
	r.advance(maxPause)
	r.want("machines-10.1.1.1")
}
