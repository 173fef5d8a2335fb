package status

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/revision"
	"fairlead.dev/services/config-watcher/internal/source"
)

const (
	// minInterval is the least time between two rounds, or twentyfold the time that the round took if that is more, up
	// to longestWait: rounds take a twentieth of a processor.
	minInterval = 500 * time.Millisecond
	longestWait = 2 * time.Second
	// pollInterval is the most: refused objects and overridden versions come without a notice. After a round that
	// takes longer than a hundredth of that, the time is longer in proportion, so that rounds without a notice take a
	// hundredth of a processor; it is longestPoll at most.
	pollInterval = time.Second
	longestPoll  = 10 * time.Second
	// settleTime is how long a version may be pending before that is written. Most versions are acknowledged sooner,
	// and need one write.
	settleTime = time.Second
	// maxSequences bounds the states of the mesh whose numbers are remembered.
	maxSequences = 4096
)

// Config of a Tracker. Keys, Peers, PeerReporters and Sinks may be empty, all other fields are required.
type Config struct {
	// Domain is the DNS suffix of service names.
	Domain      string
	Revisions   *revision.Log
	Fleet       *fleet.Table
	Credentials *credential.Table
	Sources     []source.Source
	// Overridden lists the versions of each object that several sources deliver, the one in force first.
	Overridden func() [][]*object.Object
	Findings   Findings
	// Keys says what is the matter with the keys of a RequestAuthentication, and whether some are missing.
	Keys func(object.Key) (problems []string, missing bool)
	// Peers returns the proxies of the other replicas, and whether some may be missing.
	Peers func() (proxies []fleet.View, incomplete bool)
	// PeerReporters returns the number of xds-servers that report to the other replicas.
	PeerReporters func() int
	// Sinks take the statuses of a source's objects, by the name of the source. Few take those of Gateways,
	// ListenerSets and GatewayClasses of the Gateway API, so that these do not wait for thousands of routes; without
	// one Sinks do.
	Sinks, Few map[string]Sink
	// Owner says of which objects of the Gateway API this control plane writes the status.
	Owner *Owner
	Log   *slog.Logger
	Clock clock.Clock
}

// Findings are those about the objects of the mesh; background.Analyzer implements it.
type Findings interface {
	// Of lists the findings about an object.
	Of(object.Key) []finding.Finding
	// TakeChanged lists the objects whose findings have changed since the call before.
	TakeChanged() []object.Key
}

// Sink takes the newest status of objects; Dispatcher implements it.
type Sink interface {
	// Put takes the status of an object in place of an earlier one. It returns false if there is no room; the tracker
	// then offers it again.
	Put(to Target, s *Status) bool
	// Forget drops the status of an object that is gone.
	Forget(object.Key)
	// Failure says why statuses cannot be written; nil if they can.
	Failure() error
}

// ID names one version of an object.
type ID struct {
	Source string
	Key    object.Key
}

// Row is the status of one version of an object.
type Row struct {
	ID
	APIVersion, UID, Location string
	// InForce is true for the version that the mesh uses. The newest version may be refused nevertheless.
	InForce bool
	// Foreign is true for an object whose status another revision of the control plane writes.
	Foreign bool
	Status  *Status

	judged judgement
}

// equal reports whether two rows have the same content.
func (r *Row) equal(o *Row) bool { return r != nil && reflect.DeepEqual(r, o) }

// awaited reports whether a version is not acknowledged by every proxy yet, or was rejected.
func (r *Row) awaited() bool {
	c := r.Status.Get(Programmed)
	return c.Reason == reasonPending && (c.KeepTrue || !isAPI(r.Key)) || c.Reason == reasonRejected || c.Unknown
}

func (r *Row) target() Target { return Target{r.Key, r.APIVersion, r.UID, r.Status.Generation} }

// Tracker evaluates the statuses of all objects. It is safe for concurrent use.
type Tracker struct {
	cfg  Config
	wake chan struct{}

	mu      sync.Mutex
	pending map[object.Key]change
	judged  map[object.Key]judgement
	others  []normalise.Change // Services and Namespaces
	rows    rows

	// The fields below belong to Run.
	entries   map[object.Key]*entry
	due       due
	sent      map[ID]sent
	sequences map[string]uint64
	recent    []string
	gateways  gatewaySpecs
	services  gatewayServices
	// namespaces are the labels of namespaces that Owner reads.
	namespaces map[string]map[string]string
}

// change is the newest version of an object, and the revision that contains it.
type change struct {
	object *object.Object
	since  uint64
}

// sent is a status that a sink has taken.
type sent struct {
	to     Target
	status *Status
}

// holds reports whether what would be written for a row is what the sink has. Of an object of the Gateway API only
// Status.API is written, which a summary of what the proxies have is no part of.
func (s sent) holds(row *Row) bool {
	if s.status == row.Status {
		return true
	}
	return s.status != nil && isAPI(row.Key) && s.to == row.target() && s.status.API != nil && *s.status.API == *row.Status.API
}

// entry is an object in force.
type entry struct {
	object    *object.Object
	hosts     []string
	since     uint64
	changedAt time.Time
	findings  []finding.Finding
	keys      *Condition
	health    *object.Health
	refused   *refusal
	row       *Row
	// judged is what package gatewayapi says of it.
	judged judgement
	// latched is the condition Programmed since every proxy has acknowledged the version; nil before. Gateways have
	// none.
	latched *Condition
	blamed  bool
}

// NewTracker returns a tracker; Run does the work.
func NewTracker(cfg Config) *Tracker {
	return &Tracker{
		cfg: cfg, wake: make(chan struct{}, 1), pending: map[object.Key]change{}, judged: map[object.Key]judgement{}, rows: newRows(),
		services: newGatewayServices(), namespaces: map[string]map[string]string{},
		entries: map[object.Key]*entry{}, due: newDue(), sent: map[ID]sent{}, sequences: map[string]uint64{},
	}
}

// Submit takes over the changes of the objects in force, and what has changed of the Gateway API. The pipeline calls it
// after the commit of their revision. WorkloadEntries that a registry has made have no status: nobody has written them,
// and they may be many.
func (t *Tracker) Submit(changes []normalise.Change, judged normalise.Judged) {
	snapshot, _ := t.cfg.Revisions.Current()
	t.mu.Lock()
	for _, c := range changes {
		switch {
		case HasStatus(c.Key) && !isInstance(c.Object):
			t.pending[c.Key] = change{c.Object, snapshot.Sequence()}
		case c.Key.Group == "" && (c.Key.Kind == "Service" || c.Key.Kind == "Namespace"):
			t.others = append(t.others, c)
		}
	}
	for k, s := range judged.Statuses {
		t.judged[k] = judgement{status: s, since: t.judged[k].since, told: true}
	}
	for _, k := range judged.Resources {
		j := t.judged[k]
		j.since = snapshot.Sequence()
		t.judged[k] = j
	}
	t.mu.Unlock()
	notify.Wake(t.wake)
}

func isInstance(o *object.Object) bool {
	return o != nil && o.Registered != nil && o.Key.Kind == "WorkloadEntry"
}

// Rows lists the statuses of all versions, sorted by key and source.
func (t *Tracker) Rows() []*Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.rows.all()
	slices.SortFunc(out, func(a, b *Row) int {
		if c := a.Key.Compare(b.Key); c != 0 {
			return c
		}
		if a.InForce != b.InForce {
			if a.InForce {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Source, b.Source)
	})
	return out
}

// Awaited reports whether a version is not acknowledged by every proxy yet, or was rejected.
func (t *Tracker) Awaited() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.rows.awaited) > 0 || len(t.pending) > 0
}

// Unwritten says why statuses cannot be written back to a source; nil if they can, or never are.
func (t *Tracker) Unwritten(source string) error {
	for _, sinks := range []map[string]Sink{t.cfg.Sinks, t.cfg.Few} {
		if sink := sinks[source]; sink != nil {
			if err := sink.Failure(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Run evaluates until ctx ends.
func (t *Tracker) Run(ctx context.Context) error {
	for {
		reported, credentials := t.cfg.Fleet.Changed(), t.cfg.Credentials.Changed()
		began := t.cfg.Clock.Now()
		if snapshot, _ := t.cfg.Revisions.Current(); snapshot != nil {
			t.round(snapshot)
		}
		took := t.cfg.Clock.Now().Sub(began)
		least := min(max(minInterval, 20*took), longestWait)
		most := min(max(pollInterval, least, 100*took), longestPoll)
		select {
		case <-ctx.Done():
			return nil
		case <-t.cfg.Clock.After(least):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.wake:
		case <-reported:
		case <-credentials:
		case <-t.cfg.Clock.After(most - least):
		}
	}
}

// round evaluates the objects whose status may have changed, and offers changed statuses to the sinks.
func (t *Tracker) round(snapshot *revision.Snapshot) {
	t.remember(snapshot.Revision())
	t.take()
	f := t.fleet(snapshot.Revision())
	refused := refusals(t.cfg.Sources)
	looked := t.takeDue(f, refused)
	for k, e := range looked {
		if !isAPI(k) {
			t.evaluate(e, refused[ID{e.object.Source, k}], f)
		}
	}
	t.evaluateGateways(snapshot, f)
	t.evaluateAPI(looked, snapshot, f, refused)
	t.keep(looked)
	others := t.otherRows(refused)
	t.mu.Lock()
	for _, id := range t.due.gone {
		t.rows.put(id, nil)
	}
	for k, e := range looked {
		t.rows.put(ID{e.object.Source, k}, e.row)
	}
	t.rows.putOthers(others)
	changed := t.rows.takeChanged()
	t.mu.Unlock()
	t.due.gone = nil
	t.offer(changed)
}

// otherRows are the rows of versions that are not in force: those that another source's version overrides, and refused
// ones.
func (t *Tracker) otherRows(refused map[ID]*refusal) map[ID]*Row {
	out := map[ID]*Row{}
	for _, list := range t.cfg.Overridden() {
		if t.entries[list[0].Key] == nil {
			continue // of a kind without a status, or of a namespace that the mesh does not discover
		}
		for _, o := range list[1:] {
			id := ID{o.Source, o.Key}
			out[id] = overriddenRow(id, o, list[0], refused[id])
		}
	}
	for id, r := range refused {
		e := t.entries[id.Key]
		if out[id] == nil && HasStatus(id.Key) && (e == nil || e.object.Source != id.Source) {
			out[id] = refusedRow(id, r)
		}
	}
	return out
}

// offer hands changed statuses to the sinks, and names the objects that are gone. What has to wait is offered again in
// the next round.
func (t *Tracker) offer(changed map[ID]*Row) {
	now := t.cfg.Clock.Now()
	for id, row := range changed {
		sink := t.sinkOf(id)
		switch {
		case sink == nil:
		case row == nil || isAPI(id.Key) && (row.Foreign || row.Status.API == nil):
			if t.sent[id].status != nil {
				delete(t.sent, id)
				sink.Forget(id.Key)
			}
		case t.sent[id].holds(row):
		case t.settling(row, now) || !sink.Put(row.target(), row.Status):
			t.rows.again(id)
		default:
			t.sent[id] = sent{row.target(), row.Status}
		}
	}
}

// settling reports whether a status is not written yet because it will soon be another one.
func (t *Tracker) settling(row *Row, now time.Time) bool {
	e := t.entries[row.Key]
	if e == nil || e.row != row || now.Sub(e.changedAt) >= settleTime {
		return false
	}
	c := row.Status.Get(Programmed)
	return (c.Reason == reasonPending || c.Unknown) && c.KeepTrue
}

// remember keeps the number of a state of the mesh.
func (t *Tracker) remember(r *configv1.Revision) {
	hash := string(r.GetStateHash())
	if _, known := t.sequences[hash]; !known {
		if t.recent = append(t.recent, hash); len(t.recent) > maxSequences {
			delete(t.sequences, t.recent[0])
			t.recent = t.recent[1:]
		}
	}
	t.sequences[hash] = r.GetSequence()
}

// take brings the entries up to date with what was submitted.
func (t *Tracker) take() {
	t.mu.Lock()
	pending, judged, others := t.pending, t.judged, t.others
	t.pending, t.judged, t.others = map[object.Key]change{}, map[object.Key]judgement{}, nil
	t.mu.Unlock()
	for _, c := range others {
		if c.Key.Kind == "Service" {
			t.services.put(c.Key, c.Object)
		} else {
			t.putNamespace(c)
		}
	}
	for k, c := range pending {
		e := t.entries[k]
		t.due.add(k)
		switch {
		case c.object == nil:
			t.forget(k, e)
		case e != nil && sameVersion(e.object, c.object):
			e.object = c.object // a change of its labels, or of its status
		default:
			t.forget(k, e)
			now := &entry{object: c.object, hosts: hostsOf(c.object, t.cfg.Domain), since: c.since, changedAt: t.cfg.Clock.Now()}
			if e != nil {
				now.judged = e.judged
			}
			t.entries[k] = now
			if t.isWatched(k) {
				t.due.watched[k] = now
			}
		}
	}
	for k, j := range judged {
		e := t.entries[k]
		if e == nil {
			continue
		}
		t.due.add(k)
		if j.told {
			e.judged.status = j.status
		}
		if j.since > 0 {
			e.judged.since, e.latched, e.changedAt = j.since, nil, t.cfg.Clock.Now()
		}
	}
}

// putNamespace takes over of which revision of the control plane a namespace says it is.
func (t *Tracker) putNamespace(c normalise.Change) {
	labels := map[string]string{}
	for _, key := range []string{contract.RevisionLabel, contract.InjectionLabel} {
		if c.Object != nil && c.Object.Labels[key] != "" {
			labels[key] = c.Object.Labels[key]
		}
	}
	if maps.Equal(labels, t.namespaces[c.Key.Name]) {
		return
	}
	set(t.namespaces, c.Key.Name, labels, len(labels) > 0)
	for k := range t.entries {
		if k.Namespace == c.Key.Name && isAPI(k) {
			t.due.add(k)
		}
	}
}

// sameVersion reports whether two states of an object have the same spec.
func sameVersion(a, b *object.Object) bool {
	if a.Source != b.Source || a.APIVersion != b.APIVersion || a.UID != b.UID || !a.Created.Equal(b.Created) || a.Held != b.Held ||
		a.Generation != b.Generation {
		return false
	}
	return a.Generation > 0 || a.Digest == b.Digest
}

// evaluate brings the row of an entry up to date. Rows of Gateways in force are evaluateGateways's.
func (t *Tracker) evaluate(e *entry, refused *refusal, f *fleetState) {
	findings := t.cfg.Findings.Of(e.object.Key)
	keys := keysCondition(e.object, t.cfg.Keys)
	blamed := len(f.blamed) > 0 && anyHost(e.hosts, f.blamed)
	if e.row != nil && e.row.InForce && e.latched != nil && blamed == e.blamed && !blamed && refused.equal(e.refused) &&
		slices.Equal(findings, e.findings) &&
		e.health == e.object.Health && sameCondition(e.keys, keys) {
		return
	}
	e.findings, e.refused, e.blamed, e.health, e.keys = findings, refused, blamed, e.object.Health, keys
	row := &Row{ID: ID{e.object.Source, e.object.Key}, APIVersion: e.object.APIVersion, UID: e.object.UID, Location: e.object.Location,
		InForce: true}
	switch {
	case refused != nil:
		row.Status, e.latched = refused.status(e.object), nil
	case isGateway(e.object):
		return
	default:
		c := f.programmed(e.object.Key, e.hosts, e.since)
		switch {
		case c.Holds && e.latched == nil && len(f.proxies) > 0: // without proxies, those that connect are counted
			e.latched = &c
		case e.latched != nil && c.Reason != reasonRejected:
			c = *e.latched
		}
		row.Status = &Status{Generation: e.object.Generation,
			Conditions: []Condition{withFindings(acceptedCondition(e.object.Key.Kind), e.object.Warnings, findings), c}, Findings: codes(findings)}
		if keys != nil {
			row.Status.Conditions = append(row.Status.Conditions, *keys)
		}
		if h := e.object.Health; h != nil {
			row.Status.Conditions = append(row.Status.Conditions, healthCondition(h))
		}
	}
	if !e.row.equal(row) {
		e.row = row
	}
}
