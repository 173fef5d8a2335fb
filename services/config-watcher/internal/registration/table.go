// Package registration makes the WorkloadEntries of machines that register themselves: of proxies that name a
// WorkloadGroup (AUTO_REGISTER_GROUP) and have proven to be of its namespace and service account. xds-servers report
// them; Table decides which of them are entitled to an entry, has a Writer create it in the group's source, and removes
// it some time after the proxy has gone. Package app submits objects to Table and tells xds-servers of refusals.
package registration

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

const (
	// Grace is how long an entry stays after its proxy has gone.
	Grace = 10 * time.Second
	// Reconnect is how long an entry counts as connected after the control plane has changed: after the start, after
	// an xds-server was lost, and while none reports. Agents wait for up to half a minute between two attempts.
	Reconnect = time.Minute
	// maxWrites bounds the writes of one look, writeTimeout the time of each.
	maxWrites    = 200
	writeTimeout = 10 * time.Second
	// firstPause and maxPause are the least and the most time after a failed write before the same is tried again.
	firstPause = time.Second
	maxPause   = 30 * time.Second
)

// Errors of a Writer.
var (
	// ErrIdle means that another replica writes.
	ErrIdle = errors.New("another replica writes")
	// ErrOutdated means that the object is no longer as it was expected; its news will come.
	ErrOutdated = errors.New("the object has changed")
)

// Writer writes WorkloadEntries into a source. It is called by one goroutine.
type Writer interface {
	// Create creates an entry; ErrOutdated if there is one of its name.
	Create(context.Context, Entry) error
	// Annotate sets annotations, and removes those with an empty value, if the entry's present ones pass check;
	// otherwise it returns ErrOutdated, also if there is no entry.
	Annotate(ctx context.Context, of *object.Object, set map[string]string, check func(map[string]string) bool) error
	// Delete deletes an entry under the same condition.
	Delete(ctx context.Context, of *object.Object, check func(map[string]string) bool) error
}

// Fleet tells which proxies want to be registered.
type Fleet interface {
	Changed() <-chan struct{}
	Registering() fleet.Registering
}

// Config of a Table. All fields but Peers are required.
type Config struct {
	Fleet Fleet
	// Peers returns the proxies of the other replicas that want to be registered; nil if there are no replicas.
	Peers func() fleet.Registering
	// Controller is the value of the annotation istio.io/workloadController: entries with another one are left alone.
	Controller string
	// Synced reports whether all sources have been read: before, a missing group is no reason to refuse a proxy.
	Synced func() bool
	// Writers by source; Fallback is that of the other sources.
	Writers  map[string]Writer
	Fallback Writer
	Clock    clock.Clock
	Log      *slog.Logger
}

// Table holds WorkloadGroups and WorkloadEntries. It is safe for concurrent use.
type Table struct {
	notify.Notifier
	cfg  Config
	wake chan struct{}

	mu      sync.Mutex
	groups  map[object.Key]*object.Object
	entries map[object.Key]*object.Object
	// refused are the refused proxies by xds-server.
	refused map[string][]*configv1.RefusedRegistration
	// refusedAt are the connections behind refused, so that a new connection is refused anew.
	refusedAt map[connection]bool

	// The rest belongs to Run.

	// unsettledAt is when proxies may last have been missing.
	unsettledAt time.Time
	// claimed is when each entry's proxy was last seen.
	claimed map[object.Key]time.Time
	paused  map[object.Key]pause
}

// connection is one connection of a proxy.
type connection struct {
	server, node, identity, message string
	at                              time.Time
}

// pause is the time after a failed write.
type pause struct {
	until time.Time
	next  time.Duration
}

// NewTable returns an empty table; Run follows the fleet.
func NewTable(c Config) *Table {
	return &Table{
		cfg: c, wake: make(chan struct{}, 1), groups: map[object.Key]*object.Object{}, entries: map[object.Key]*object.Object{},
		refused: map[string][]*configv1.RefusedRegistration{}, unsettledAt: c.Clock.Now(), paused: map[object.Key]pause{},
		claimed: map[object.Key]time.Time{},
	}
}

// Submit takes note of WorkloadGroups and WorkloadEntries that are in force.
func (t *Table) Submit(changes []normalise.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range changes {
		if c.Key.Group != kinds.GroupNetworking || c.Key.Cluster != "" {
			continue
		}
		of := t.entries
		switch c.Key.Kind {
		case groupKind:
			of = t.groups
		case entryKind:
		default:
			continue
		}
		if !usable(c.Object) || c.Object.Registered != nil { // those of a registry, which may be many, are never ours
			delete(of, c.Key)
		} else {
			of[c.Key] = c.Object
		}
		notify.Wake(t.wake)
	}
}

func usable(o *object.Object) bool {
	if o == nil {
		return false
	}
	switch o.Body.(type) {
	case *networking.WorkloadGroup, *networking.WorkloadEntry:
		return true
	}
	return false
}

// Following reports whether proxies may be registered: whether there are WorkloadGroups or registered WorkloadEntries.
func (t *Table) Following() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.groups) > 0 {
		return true
	}
	for _, e := range t.entries {
		if t.owns(e) {
			return true
		}
	}
	return false
}

// owns reports whether an entry was made, or adopted, by a Table with this controller.
func (t *Table) owns(e *object.Object) bool {
	return e.Annotations[groupAnnotation] != "" && e.Annotations[controllerAnnotation] == t.cfg.Controller
}

// Refused implements fleet.Refused.
func (t *Table) Refused(xdsServer string) ([]*configv1.RefusedRegistration, <-chan struct{}) {
	changed := t.Changed()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused[xdsServer], changed
}

// Run follows the fleet until ctx ends.
func (t *Table) Run(ctx context.Context) error {
	fleet.Follow(ctx, t.cfg.Clock, t.cfg.Fleet.Changed, t.wake, t.look)
	return nil
}

// look compares the entries with the proxies that are connected, and writes the differences.
func (t *Table) look(ctx context.Context) {
	all := t.cfg.Fleet.Registering()
	if t.cfg.Peers != nil {
		others := t.cfg.Peers()
		all.Proxies, all.Reporters, all.Unsettled = append(all.Proxies, others.Proxies...), all.Reporters+others.Reporters, all.Unsettled ||
			others.Unsettled
	}
	now := t.cfg.Clock.Now()
	if all.Unsettled || all.Reporters == 0 {
		t.unsettledAt = now
	}
	if !t.cfg.Synced() {
		return
	}
	writes := t.differences(all.Proxies, now)
	for _, w := range writes[:min(len(writes), maxWrites)] {
		if ctx.Err() != nil {
			return
		}
		t.do(ctx, w)
	}
}

// write is one change of an entry.
type write struct {
	key    object.Key
	source string
	do     func(context.Context, Writer) error
	why    string
}

// differences decides about all proxies and returns what is to be written.
func (t *Table) differences(views []fleet.View, now time.Time) []write {
	t.mu.Lock()
	defer t.mu.Unlock()
	claims := t.decide(views)
	var writes []write
	maps.DeleteFunc(t.claimed, func(k object.Key, _ time.Time) bool { return t.entries[k] == nil })
	for _, k := range slices.SortedFunc(maps.Keys(claims), object.Key.Compare) {
		t.claimed[k] = now
		c := claims[k]
		e := t.entries[k]
		switch {
		case e == nil:
			writes = append(writes, write{k, c.group.Source,
				func(ctx context.Context, w Writer) error { return w.Create(ctx, c.entry(t.cfg.Controller, now)) }, "its proxy has connected"})
		case !c.describes(e):
			before := e.Annotations[groupAnnotation]
			writes = append(writes, write{k, e.Source, func(ctx context.Context, w Writer) error {
				return w.Delete(ctx, e, func(a map[string]string) bool { return a[groupAnnotation] == before })
			}, "its address or service account has changed"})
		case !t.owns(e) || e.Annotations[disconnectedAnnotation] != "" || e.Annotations[connectedAnnotation] == "":
			set := connected(c.group.Key.Name, t.cfg.Controller, now)
			writes = append(writes, write{k, e.Source, func(ctx context.Context, w Writer) error {
				return w.Annotate(ctx, e, set, func(a map[string]string) bool { return a[groupAnnotation] == c.group.Key.Name })
			}, "its proxy has connected again"})
		}
	}
	settled := now.Sub(t.unsettledAt) >= Reconnect
	for _, k := range slices.SortedFunc(maps.Keys(t.entries), object.Key.Compare) {
		e := t.entries[k]
		if claims[k] != nil || !t.owns(e) {
			continue
		}
		since, err := time.Parse(time.RFC3339Nano, e.Annotations[disconnectedAnnotation])
		unchanged := func(a map[string]string) bool {
			return t.owns(&object.Object{Annotations: a}) && a[disconnectedAnnotation] == e.Annotations[disconnectedAnnotation] &&
				a[connectedAnnotation] == e.Annotations[connectedAnnotation]
		}
		switch {
		case !settled && !t.claimed[k].After(t.unsettledAt):
			// The proxy may be about to connect to another xds-server.
		case err != nil:
			writes = append(writes, write{k, e.Source,
				func(ctx context.Context, w Writer) error { return w.Annotate(ctx, e, disconnected(now), unchanged) },
				"its proxy has gone"})
		case now.Sub(since) >= Grace:
			writes = append(writes, write{k, e.Source, func(ctx context.Context, w Writer) error { return w.Delete(ctx, e, unchanged) },
				"removed: its proxy has not come back"})
		}
	}
	return writes
}

// describes reports whether an entry is still that of the claim's address and service account.
func (c *claim) describes(e *object.Object) bool {
	spec := e.Body.(*networking.WorkloadEntry)
	return spec.GetAddress() == c.address &&
		spec.GetServiceAccount() == c.group.Body.(*networking.WorkloadGroup).GetTemplate().GetServiceAccount()
}

// decide returns the claims by their entries, one each, and keeps who is refused. The caller holds mu.
func (t *Table) decide(views []fleet.View) map[object.Key]*claim {
	// Who has connected first keeps what it has, if there is not enough for all.
	slices.SortStableFunc(views, func(a, b fleet.View) int {
		return a.Status.GetConnectedAt().AsTime().Compare(b.Status.GetConnectedAt().AsTime())
	})
	claims := map[object.Key]*claim{}
	identities, namespaces := map[string]int{}, map[string]int{}
	refused, at := map[string][]*configv1.RefusedRegistration{}, map[connection]bool{}
	for _, v := range views {
		c, err := t.admit(v.Status)
		if err == nil && claims[c.key] == nil {
			switch {
			case identities[c.identity] >= MaxPerIdentity:
				err = errTooMany("identity "+c.identity, MaxPerIdentity)
			case namespaces[c.key.Namespace] >= MaxPerNamespace:
				err = errTooMany("namespace "+c.key.Namespace, MaxPerNamespace)
			default:
				identities[c.identity]++
				namespaces[c.key.Namespace]++
			}
		}
		if err == nil {
			claims[c.key] = c
			continue
		}
		s := v.Status
		r := &configv1.RefusedRegistration{NodeId: s.GetNodeId(), Identity: s.GetIdentity(), Message: "registration is refused: " + err.Error()}
		refused[s.GetXdsServer()] = append(refused[s.GetXdsServer()], r)
		at[connection{s.GetXdsServer(), s.GetNodeId(), s.GetIdentity(), r.GetMessage(), s.GetConnectedAt().AsTime()}] = true
	}
	if !maps.Equal(at, t.refusedAt) {
		for c := range at {
			if !t.refusedAt[c] {
				t.cfg.Log.Warn("a proxy may not be registered", "node", c.node, "identity", c.identity, "reason", c.message)
			}
		}
		t.refused, t.refusedAt = refused, at
		t.Notify()
	}
	return claims
}

// do performs a write, unless the same entry has failed a short time ago.
func (t *Table) do(ctx context.Context, w write) {
	now := t.cfg.Clock.Now()
	p, failed := t.paused[w.key]
	if failed && now.Before(p.until) {
		return
	}
	writer := t.cfg.Writers[w.source]
	if writer == nil {
		writer = t.cfg.Fallback
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := w.do(ctx, writer)
	switch {
	case errors.Is(err, ErrIdle):
	case err == nil:
		t.cfg.Log.Info("the WorkloadEntry of a machine was written", "object", w.key.String(), "reason", w.why)
		fallthrough
	case errors.Is(err, ErrOutdated):
		// The object's news come later than the next look; meanwhile nothing is written twice.
		t.paused[w.key] = pause{now.Add(firstPause), 0}
	default:
		p.next = min(max(p.next*2, firstPause), maxPause)
		p.until = now.Add(p.next)
		t.paused[w.key] = p
		t.cfg.Log.Warn("a registered workload could not be written, trying again", "object", w.key.String(), "error", err, "retry_in", p.next)
	}
	for k, p := range t.paused {
		if now.Sub(p.until) > maxPause {
			delete(t.paused, k)
		}
	}
}
