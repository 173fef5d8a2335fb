// Package health decides which WorkloadEntries are well enough to get traffic: those with the annotation
// proxy.istio.io/health-checks-enabled follow what their proxies' agents have told the xds-servers. The table of bans
// submits changes to Table, which passes them on to the pipeline with the health of each object in it.
package health

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Annotation makes a WorkloadEntry follow its proxy's health, if it is "true". With another value the condition Healthy
// is kept and has no effect, as in Istio.
const Annotation = "proxy.istio.io/health-checks-enabled"

const (
	// Grace is how long a workload keeps its health after its last proxy has gone, because the proxy may connect to
	// another xds-server. For the same time after the start nothing counts as unwell only because nobody has told yet.
	Grace = 10 * time.Second
	// defaultAccount is the service account of a WorkloadEntry that names none.
	defaultAccount = "default"
)

// Config of a Table. All fields but Peers are required.
type Config struct {
	Fleet *fleet.Table
	// Peers returns the proxies of the other replicas, and whether some may be missing.
	Peers func() (proxies []fleet.View, incomplete bool)
	// Next receives the changes, in order. It must not block.
	Next  func(context.Context, []normalise.Change)
	Clock clock.Clock
	Log   *slog.Logger
}

// Table holds the WorkloadEntries that have health. It is safe for concurrent use.
type Table struct {
	cfg   Config
	start time.Time
	wake  chan struct{}

	mu      sync.Mutex
	entries map[object.Key]*entry
}

type entry struct {
	object *object.Object
	health *object.Health
	// toldAt is when a connected proxy was last seen to have told its health; zero if never.
	toldAt time.Time
}

// NewTable returns an empty table; Run follows the fleet.
func NewTable(c Config) *Table {
	return &Table{cfg: c, start: c.Clock.Now(), wake: make(chan struct{}, 1), entries: map[object.Key]*entry{}}
}

// Submit takes the WorkloadEntries among the changes over and passes all changes on to Config.Next.
func (t *Table) Submit(ctx context.Context, changes []normalise.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, c := range changes {
		if c.Key.Group != kinds.GroupNetworking || c.Key.Kind != "WorkloadEntry" {
			continue
		}
		if !follows(c.Object) {
			delete(t.entries, c.Key)
			continue
		}
		e := t.entries[c.Key]
		if e == nil || account(e.object) != account(c.Object) {
			e = &entry{health: &object.Health{Message: unknown}}
			if t.cfg.Clock.Now().Sub(t.start) < Grace {
				e.health = &object.Health{Well: true, Message: "not known yet"}
			}
			t.entries[c.Key] = e
			notify.Wake(t.wake)
		}
		e.object = c.Object
		changes[i].Object = e.withHealth()
	}
	t.cfg.Next(ctx, changes)
}

const unknown = "no proxy of the workload's service account has told the workload's health"

func follows(o *object.Object) bool {
	if o == nil {
		return false
	}
	_, annotated := o.Annotations[Annotation]
	_, isEntry := o.Body.(*networking.WorkloadEntry)
	return annotated && isEntry
}

func account(o *object.Object) string {
	return cmp.Or(o.Body.(*networking.WorkloadEntry).GetServiceAccount(), defaultAccount)
}

// withHealth is the object with its health, which sources do not know.
func (e *entry) withHealth() *object.Object {
	o := *e.object
	h := *e.health
	h.Counts = o.Annotations[Annotation] == "true"
	o.Health = &h
	return &o
}

// Following reports whether there are WorkloadEntries with health.
func (t *Table) Following() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.entries) > 0
}

// Run follows the fleet until ctx ends.
func (t *Table) Run(ctx context.Context) error {
	fleet.Follow(ctx, t.cfg.Clock, t.cfg.Fleet.Changed, t.wake, t.look)
	return nil
}

// owner is a Workload of a service account, to which its proxies' identities must belong.
type owner struct{ namespace, name, account string }

// look compares the health of all entries with what proxies have told, and passes changes on.
func (t *Table) look(ctx context.Context) {
	if !t.Following() {
		return
	}
	views, incomplete := t.cfg.Fleet.Verified()
	if t.cfg.Peers != nil {
		others, missing := t.cfg.Peers()
		views, incomplete = append(views, others...), incomplete || missing
	}
	told := newest(views)
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.cfg.Clock.Now()
	var changes []normalise.Change
	for k, e := range t.entries {
		health := object.Health{Message: unknown}
		if p := told[owner{k.Namespace, k.Name, account(e.object)}]; p != nil {
			e.toldAt = now
			health = object.Health{Well: p.GetHealth().GetHealthy(), Message: p.GetHealth().GetMessage()}
		} else if incomplete || now.Sub(t.start) < Grace || now.Sub(e.toldAt) < Grace {
			continue
		}
		if health == *e.health {
			continue
		}
		if health.Well != e.health.Well {
			t.cfg.Log.Info("health of a workload has changed", "object", k.String(), "well", health.Well, "message", health.Message)
		}
		e.health = &health
		changes = append(changes, normalise.Change{Key: k, Object: e.withHealth()})
	}
	if len(changes) > 0 {
		t.cfg.Next(ctx, changes)
	}
}

// newest returns, of each Workload, the proxy that has connected last among those that have told its health.
func newest(views []fleet.View) map[owner]*configv1.ProxyStatus {
	out := map[owner]*configv1.ProxyStatus{}
	for _, v := range views {
		p := v.Status
		if p.GetHealth() == nil || p.GetUnverified() {
			continue
		}
		id, err := spiffeid.FromString(p.GetIdentity())
		if err != nil {
			continue
		}
		namespace, account, ok := auth.WorkloadOf(id)
		if !ok {
			continue
		}
		of := owner{namespace, p.GetHealth().GetWorkload(), account}
		if best := out[of]; best == nil || best.GetConnectedAt().AsTime().Before(p.GetConnectedAt().AsTime()) {
			out[of] = p
		}
	}
	return out
}
