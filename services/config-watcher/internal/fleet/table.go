// Package fleet keeps what the xds-servers report of their proxies and answers who has acknowledged which revision.
package fleet

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/clock"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Grace is how long the proxies of a lost report stream still count: their xds-server, or another one, reports them again meanwhile. It is
// also how long after the start, or after a subscriber appeared, the fleet is considered incomplete while reports are missing.
const Grace = 10 * time.Second

// Table is the fleet. It is safe for concurrent use.
type Table struct {
	clock clock.Clock
	start time.Time

	mu        sync.Mutex
	instances map[string]*instance
	// watching are the subscribers of the watch: each is expected to report too.
	watching map[string]*watcher
	changed  chan struct{}
	// identities is closed when presence changes.
	identities chan struct{}
}

// instance is one reporting xds-server.
type instance struct {
	stream   uint64 // the stream that reports now; 0 after it was lost
	last     uint64
	lostAt   time.Time
	revision *configv1.Revision
	// proxies by node id; nearly always one of each. Nil until the first message.
	proxies  map[string][]*configv1.ProxyStatus
	presence presence
	refusals []*configv1.Refusal
}

// put takes the newest status of a proxy over and reports whether its identity, or a gateway of it, is new. What
// several identities say of one node id is kept apart: none speaks for another.
func (in *instance) put(p *configv1.ProxyStatus, now time.Time) bool {
	of := in.proxies[p.GetNodeId()]
	if i := slices.IndexFunc(of, func(other *configv1.ProxyStatus) bool { return keyOf(other) == keyOf(p) }); i >= 0 {
		old := of[i]
		of[i] = p
		if old.GetUnverified() == p.GetUnverified() {
			return false
		}
		gone := in.presence.remove(old, now)
		return in.presence.add(p) || gone
	}
	in.proxies[p.GetNodeId()] = append(of, p)
	return in.presence.add(p)
}

// drop forgets a proxy and reports whether it was the last of its identity, or its last gateway.
func (in *instance) drop(k key, now time.Time) (flipped bool) {
	left := slices.DeleteFunc(in.proxies[k.nodeID], func(p *configv1.ProxyStatus) bool {
		if keyOf(p) != k {
			return false
		}
		flipped = in.presence.remove(p, now)
		return true
	})
	if len(left) == 0 {
		delete(in.proxies, k.nodeID)
	} else {
		in.proxies[k.nodeID] = left
	}
	return flipped
}

// dropNode forgets what all identities have said of a node id.
func (in *instance) dropNode(nodeID string, now time.Time) (flipped bool) {
	for _, p := range in.proxies[nodeID] {
		flipped = in.presence.remove(p, now) || flipped
	}
	delete(in.proxies, nodeID)
	return flipped
}

// key is what makes two reports be about one proxy.
type key struct{ nodeID, identity string }

func keyOf(p *configv1.ProxyStatus) key { return key{p.GetNodeId(), p.GetIdentity()} }

// acked returns the revision that a proxy of the instance has acknowledged: one that is settled has whatever is served,
// of which the proxy's own status may know before the instance's number comes, with the last of several messages.
func (in *instance) acked(p *configv1.ProxyStatus) *configv1.Revision {
	own := p.GetAcked()
	if !p.GetSettled() || in.revision == nil || own.GetEpoch() == in.revision.GetEpoch() && own.GetSequence() > in.revision.GetSequence() {
		return own
	}
	return in.revision
}

type watcher struct {
	streams int
	since   time.Time
}

// NewTable returns an empty fleet.
func NewTable(c clock.Clock) *Table {
	return &Table{clock: c, start: c.Now(), instances: map[string]*instance{}, watching: map[string]*watcher{}, changed: make(chan struct{}), identities: make(chan struct{})}
}

func (t *Table) touch() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Subscribed notes that an instance watches; a report is expected of it.
func (t *Table) Subscribed(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.watching[name]
	if w == nil {
		w = &watcher{since: t.clock.Now()}
		t.watching[name] = w
	}
	w.streams++
	t.touch()
}

// Unsubscribed takes Subscribed back.
func (t *Table) Unsubscribed(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.watching[name]; w != nil {
		if w.streams--; w.streams <= 0 {
			delete(t.watching, name)
		}
	}
	t.touch()
}

// Reporter is one report stream.
type Reporter struct {
	table *Table
	name  string
	id    uint64
}

// Report opens a report stream of an instance. Its first message replaces what an earlier stream of the instance has said.
func (t *Table) Report(name string) *Reporter {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.instances[name]
	if in == nil {
		in = &instance{presence: newPresence()}
		t.instances[name] = in
	}
	in.last++
	in.stream = in.last
	return &Reporter{table: t, name: name, id: in.stream}
}

// Take takes one message over; first says that it is complete. A message of a stream that another one of the same instance has replaced is
// ignored.
func (r *Reporter) Take(m *configv1.ReportRequest, first bool) {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.instances[r.name]
	if in == nil || in.stream != r.id {
		return
	}
	now := t.clock.Now()
	in.presence.forget(now)
	// Identities that stay, although their proxies are reported anew, are not seen to have left: Grace covers the time
	// in between.
	flipped := first
	if first || in.proxies == nil {
		for _, of := range in.proxies {
			for _, p := range of {
				in.presence.remove(p, now)
			}
		}
		in.proxies = map[string][]*configv1.ProxyStatus{}
		in.refusals = nil
	}
	if m.Refusals != nil {
		in.refusals = m.Refusals.Refusals
		for _, refusal := range in.refusals {
			refusal.XdsServer = r.name
		}
	}
	for _, id := range m.Disconnected {
		flipped = in.dropNode(id, now) || flipped
	}
	for _, p := range m.Proxies {
		p.XdsServer = r.name
		flipped = in.put(p, now) || flipped
		t.moved(keyOf(p))
	}
	if flipped {
		t.touchIdentities()
	}
	if m.Revision != nil {
		in.revision = m.Revision
	}
	t.touch()
}

// moved forgets what lost streams have said of a proxy: it has been seen elsewhere since, and if it leaves there it is gone. The caller holds t.mu.
func (t *Table) moved(k key) {
	for _, in := range t.instances {
		if in.stream == 0 {
			in.drop(k, t.clock.Now())
		}
	}
}

// Close ends the stream: its proxies count for Grace longer.
func (r *Reporter) Close() {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if in := t.instances[r.name]; in != nil && in.stream == r.id {
		in.stream = 0
		in.lostAt = t.clock.Now()
		t.touch()
		t.touchIdentities()
	}
}

// proxy is one proxy as far as it counts.
type proxy struct {
	status *configv1.ProxyStatus
	// reported is false while the xds-server's report stream is lost.
	reported bool
	serves   *configv1.Revision
	acked    *configv1.Revision
}

// proxies lists every proxy once: a proxy that moved is reported by both replicas for a moment, and the newer connection counts; one that is
// reported by a lost stream counts only if no living one reports it. The caller holds t.mu.
func (t *Table) proxies() map[key]proxy {
	out := map[key]proxy{}
	now := t.clock.Now()
	for name, in := range t.instances {
		if in.stream == 0 && now.Sub(in.lostAt) >= Grace {
			delete(t.instances, name)
			continue
		}
		for _, of := range in.proxies {
			for _, p := range of {
				candidate := proxy{p, in.stream != 0, in.revision, in.acked(p)}
				if best, ok := out[keyOf(p)]; !ok || better(candidate, best) {
					out[keyOf(p)] = candidate
				}
			}
		}
	}
	return out
}

// current is the status as it would be reported now.
func (p proxy) current() *configv1.ProxyStatus {
	status := proto.Clone(p.status).(*configv1.ProxyStatus)
	status.Acked = p.acked
	return status
}

func better(a, b proxy) bool {
	if a.reported != b.reported {
		return a.reported
	}
	at, bt := a.status.GetConnectedAt().AsTime(), b.status.GetConnectedAt().AsTime()
	if !at.Equal(bt) {
		return at.After(bt)
	}
	return a.status.XdsServer < b.status.XdsServer
}

// byKey orders by node id and identity.
func byKey(a, b *configv1.ProxyStatus) int {
	return cmp.Or(strings.Compare(a.NodeId, b.NodeId), strings.Compare(a.Identity, b.Identity))
}

// List returns the proxies of a namespace, all if empty, sorted by namespace, workload, node id and identity.
func (t *Table) List(namespace string) []*configv1.ProxyStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*configv1.ProxyStatus
	for _, p := range t.proxies() {
		if namespace == "" || p.status.Namespace == namespace {
			out = append(out, p.current())
		}
	}
	slices.SortFunc(out, func(a, b *configv1.ProxyStatus) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Workload, b.Workload), byKey(a, b))
	})
	return out
}

// refusalLife is how long a refusal is shown after it last happened.
const refusalLife = 10 * time.Minute

// Refusals lists the streams that xds-servers have refused lately because their identity uses too much, sorted by
// identity and node id; those of a namespace are the ones whose identity is of it.
func (t *Table) Refusals(namespace string) []*configv1.Refusal {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*configv1.Refusal
	for _, in := range t.instances {
		for _, r := range in.refusals {
			if t.clock.Now().Sub(r.GetAt().AsTime()) < refusalLife && (namespace == "" || namespaceOf(r.GetIdentity()) == namespace) {
				out = append(out, r)
			}
		}
	}
	slices.SortFunc(out, func(a, b *configv1.Refusal) int {
		return cmp.Or(strings.Compare(a.Identity, b.Identity), strings.Compare(a.NodeId, b.NodeId), strings.Compare(a.XdsServer, b.XdsServer),
			strings.Compare(a.Budget, b.Budget))
	})
	return out
}

// namespaceOf is the namespace of a SPIFFE URI; empty for what is none, as the addresses of a plaintext port.
func namespaceOf(identity string) string {
	_, rest, _ := strings.Cut(identity, "/ns/")
	namespace, _, _ := strings.Cut(rest, "/")
	return namespace
}

// Each calls f for the status of every proxy whose node id begins so, as it would be reported now; f must not keep or change it.
func (t *Table) Each(nodeIDs string, f func(*configv1.ProxyStatus)) {
	for _, p := range t.starting(nodeIDs) {
		f(p.current())
	}
}

func (t *Table) starting(nodeIDs string) []proxy {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []proxy
	for k, p := range t.proxies() {
		if strings.HasPrefix(k.nodeID, nodeIDs) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b proxy) int { return byKey(a.status, b.status) })
	return out
}

// Changed is closed at the next change.
func (t *Table) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// Counts for metrics: proxies, and instances that report.
func (t *Table) Counts() (proxies, reporters int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, in := range t.instances {
		if in.stream != 0 {
			reporters++
		}
	}
	return len(t.proxies()), reporters
}

// Verdict is how a revision stands in the fleet.
type Verdict struct {
	Acked    uint32
	Pending  []string
	Rejected []*configv1.ProxyStatus
	// Incomplete is true while some xds-server has not reported yet.
	Incomplete bool
}

// Done reports whether waiting longer cannot change the answer to "has everybody acknowledged, or somebody rejected".
func (v Verdict) Done() bool {
	return len(v.Rejected) > 0 || len(v.Pending) == 0 && !v.Incomplete
}

// Judge tells how a revision stands now, as far as the proxies of known workloads go: those that are unverified count
// neither way. Proxies of namespaces that are not visible count neither; nil means that all are. The channel is closed
// at the next change; recheck is when time alone may change the answer, 0 for never.
func (t *Table) Judge(target *configv1.Revision, visible func(namespace string) bool) (v Verdict, changed <-chan struct{}, recheck time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, p := range t.proxies() {
		switch {
		case visible != nil && !visible(p.status.Namespace):
		case p.status.GetUnverified():
			// Whoever is nobody the mesh knows could else hold up every change, or have it taken for rejected.
		case !p.reported:
			v.Pending = append(v.Pending, k.nodeID)
		case Reached(p.acked, target):
			v.Acked++
		case rejected(p, target):
			v.Rejected = append(v.Rejected, p.current())
		default:
			v.Pending = append(v.Pending, k.nodeID)
		}
	}
	slices.Sort(v.Pending)
	slices.SortFunc(v.Rejected, byKey)
	now := t.clock.Now()
	later := func(at time.Time) {
		if d := at.Sub(now); d > 0 && (recheck == 0 || d < recheck) {
			recheck = d
		}
	}
	for name, w := range t.watching {
		in := t.instances[name]
		if in != nil && in.stream != 0 && in.proxies != nil {
			continue
		}
		if until := w.since.Add(Grace); now.Before(until) {
			v.Incomplete = true
			later(until)
		}
	}
	if len(t.instances) == 0 {
		// Nobody has reported yet: just after a start the xds-servers are still on their way back.
		if until := t.start.Add(Grace); now.Before(until) {
			v.Incomplete = true
			later(until)
		}
	}
	for _, in := range t.instances {
		if in.stream == 0 {
			later(in.lostAt.Add(Grace))
		}
	}
	return v, t.changed, recheck
}

// Reached reports whether an acknowledged revision contains the target. Sequences compare within one epoch only; across epochs, as after a
// restart or with a proxy whose xds-server follows another replica, equal state hashes mean the same state.
func Reached(acked, target *configv1.Revision) bool {
	if acked == nil {
		return false
	}
	if acked.Epoch == target.Epoch {
		return acked.Sequence >= target.Sequence
	}
	return len(target.StateHash) > 0 && bytes.Equal(acked.StateHash, target.StateHash)
}

// rejected reports whether the proxy has refused something that the target contains: the newest response of a type is a rejected one, and the
// xds-server has no other under way although it serves the target.
func rejected(p proxy, target *configv1.Revision) bool {
	for _, ts := range p.status.GetTypes() {
		r := ts.GetRejection()
		if r == nil {
			continue
		}
		if Reached(r.GetRevision(), target) || !ts.Awaiting && Reached(p.serves, target) {
			return true
		}
	}
	return false
}
