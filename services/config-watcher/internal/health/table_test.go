package health

import (
	"context"
	"fmt"
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

// rig is a Table whose changes are recorded, and a fleet with one xds-server.
type rig struct {
	*Table
	t      *testing.T
	clock  *testkit.Clock
	server *fleet.ReportStream
	passed map[string]*object.Object
	peers  []fleet.View
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, clock: testkit.NewClock(time.Unix(1e9, 0)), passed: map[string]*object.Object{}}
	proxies := fleet.NewTable(r.clock)
	r.server = proxies.Report("xds-server-0")
	r.server.Apply(&configv1.ReportRequest{}, true)
	r.Table = NewTable(Config{Fleet: proxies, Clock: r.clock, Log: testkit.Logger(t),
		Peers: func() ([]fleet.View, bool) { return r.peers, false },
		Next: func(_ context.Context, changes []normalise.Change) {
			for _, c := range changes {
				r.passed[c.Key.Name] = c.Object
			}
		},
	})
	return r
}

func (r *rig) submit(name, account, annotation string) {
	o := &object.Object{Key: object.Key{Group: kinds.GroupNetworking, Kind: "WorkloadEntry", Namespace: "apps", Name: name},
		Body: &networking.WorkloadEntry{ServiceAccount: account}}
	if annotation != "" {
		o.Annotations = map[string]string{Annotation: annotation}
	}
	r.Submit(r.t.Context(), []normalise.Change{{Key: o.Key, Object: o}})
	if o.Health != nil {
		r.t.Error("the source's object was changed")
	}
}

// proxy is a status of a proxy; problem "" means that its workload is well, "-" that it has told nothing.
func (r *rig) proxy(node, identity, workload, problem string) *configv1.ProxyStatus {
	p := &configv1.ProxyStatus{NodeId: node, Identity: identity, Namespace: "apps", ConnectedAt: timestamppb.New(r.clock.Now())}
	if problem != "-" {
		p.Health = &configv1.WorkloadHealth{Workload: workload, Healthy: problem == "", Message: problem}
	}
	return p
}

func (r *rig) report(p *configv1.ProxyStatus) {
	r.server.Apply(&configv1.ReportRequest{Proxies: []*configv1.ProxyStatus{p}}, false)
}

// want looks at the fleet and compares the health that was passed on.
func (r *rig) want(name, text string) {
	r.t.Helper()
	r.look(r.t.Context())
	got := "none"
	if h := r.passed[name].Health; h != nil {
		got = fmt.Sprintf("%t %t %.12s", h.Counts, h.Well, h.Message)
	}
	if got != text {
		r.t.Errorf("health of %s is %q, want %q", name, got, text)
	}
}

const (
	web   = "spiffe://cluster.local/ns/apps/sa/web"
	other = "spiffe://cluster.local/ns/apps/sa/other"
	alien = "spiffe://cluster.local/ns/elsewhere/sa/web"
)

// A WorkloadEntry with the annotation follows what the agent of a proxy of its service account tells.
func TestAWorkloadEntryFollowsItsProxy(t *testing.T) {
	r := newRig(t)
	r.clock.Advance(Grace)
	r.submit("vm", "web", "true")
	r.want("vm", "true false no proxy of ")
	r.report(r.proxy("node", web, "vm", ""))
	r.want("vm", "true true ")
	r.report(r.proxy("node", web, "vm", "refused"))
	r.want("vm", "true false refused")
	r.submit("vm", "web", "true") // another version keeps it
	r.want("vm", "true false refused")
	r.report(r.proxy("node", web, "vm", ""))
	r.want("vm", "true true ")
	r.submit("vm", "other", "true") // now another's
	r.want("vm", "true false no proxy of ")
}

// Nobody tells the health of a workload but a proxy of its own service account and namespace.
func TestOthersDoNotTell(t *testing.T) {
	r := newRig(t)
	r.clock.Advance(Grace)
	r.submit("vm", "web", "true")
	r.submit("default", "", "true")
	r.report(r.proxy("a", other, "vm", ""))
	r.report(r.proxy("b", alien, "vm", ""))
	r.report(r.proxy("c", "", "vm", ""))
	r.report(r.proxy("d", web, "another", ""))
	r.report(r.proxy("e", web, "vm", "-"))
	unverified := r.proxy("f", web, "vm", "")
	unverified.Unverified = true
	r.report(unverified)
	r.want("vm", "true false no proxy of ")
	r.report(r.proxy("g", "spiffe://cluster.local/ns/apps/sa/default", "default", ""))
	r.want("default", "true true ")
}

// Entries without the annotation have no health, and with another value it does not count.
func TestTheAnnotationDecides(t *testing.T) {
	r := newRig(t)
	r.clock.Advance(Grace)
	r.submit("none", "web", "")
	r.submit("off", "web", "false")
	r.want("none", "none")
	r.want("off", "false false no proxy of ")
	r.submit("off", "web", "")
	r.want("off", "none")
	if r.Following() {
		t.Error("an entry without the annotation is followed")
	}
}

// A proxy that has gone has some time to come back, to this or another replica's xds-servers, and the time after the
// start is nobody's fault.
func TestHealthOutlivesAReconnect(t *testing.T) {
	r := newRig(t)
	r.submit("vm", "web", "true")
	r.want("vm", "true true not known ye")
	r.report(r.proxy("node", web, "vm", "refused"))
	r.want("vm", "true false refused")
	r.report(r.proxy("node", web, "vm", ""))
	r.want("vm", "true true ")
	r.clock.Advance(Grace)
	r.want("vm", "true true ")
	r.server.Apply(&configv1.ReportRequest{Disconnected: []string{"node"}}, false)
	r.clock.Advance(Grace - time.Second)
	r.want("vm", "true true ")
	r.peers = []fleet.View{{Status: r.proxy("node", web, "vm", "refused"), Reported: true}}
	r.want("vm", "true false refused")
	r.peers[0].Status = r.proxy("node", web, "vm", "")
	r.want("vm", "true true ")
	r.peers = nil
	r.clock.Advance(Grace)
	r.want("vm", "true false no proxy of ")
}

// Of two streams of one workload the later one counts: the earlier one may be a connection that nobody ends.
func TestTheLaterStreamCounts(t *testing.T) {
	r := newRig(t)
	r.clock.Advance(Grace)
	r.submit("vm", "web", "true")
	r.report(r.proxy("before", web, "vm", ""))
	r.clock.Advance(time.Second)
	r.report(r.proxy("after", web, "vm", "refused"))
	r.want("vm", "true false refused")
}
