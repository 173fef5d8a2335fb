// Package fleet keeps what xds-servers report about their proxies. ConfigService.Report streams it into Table through
// Service; FleetService (`fairlead proxy-status`, `config apply --wait`) reads which proxies have acknowledged a
// revision, and package credential asks Connected before it serves a Secret.
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
	"fairlead.dev/pkg/notify"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// LostServerGrace is how long the proxies of a lost xds-server, one whose report stream has ended, still count, because
// it or another one will report them again. For the same time after the start, or after a subscriber appeared, the
// fleet counts as incomplete while reports are missing.
const LostServerGrace = 10 * time.Second

// Table is the fleet. It is safe for concurrent use.
type Table struct {
	// Notifier tells of every change.
	notify.Notifier

	clock clock.Clock
	start time.Time

	mu        sync.Mutex
	instances map[string]*instance
	// watching are the subscribers of ConfigService.Watch. Each is expected to report too.
	watching map[string]*watcher
	// identities tells when presence changes.
	identities notify.Notifier
}

// instance is one xds-server that reports.
type instance struct {
	stream   uint64 // the stream that reports now; 0 after it was lost
	last     uint64
	lostAt   time.Time
	revision *configv1.Revision
	// proxies by node ID, mostly one of each; nil before the first message
	proxies  map[string][]*configv1.ProxyStatus
	presence presence
	refusals []*configv1.Refusal
}

// put stores the newest status of a proxy and reports whether its identity, or a gateway of it, is new. Proxies with
// one node ID and different identities are kept apart, so that none can report for another.
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

// drop removes a proxy and reports whether it was its identity's last one, or last gateway.
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

// dropNode removes the proxies of all identities with a node ID.
func (in *instance) dropNode(nodeID string, now time.Time) (flipped bool) {
	for _, p := range in.proxies[nodeID] {
		flipped = in.presence.remove(p, now) || flipped
	}
	delete(in.proxies, nodeID)
	return flipped
}

// key identifies a proxy.
type key struct{ nodeID, identity string }

func keyOf(p *configv1.ProxyStatus) key { return key{p.GetNodeId(), p.GetIdentity()} }

// acked returns the revision that a proxy of the instance has acknowledged. A settled proxy has everything that the
// instance serves. Its own status may name a later revision, because the instance's number comes with the last of
// several messages.
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
	return &Table{clock: c, start: c.Now(), instances: map[string]*instance{}, watching: map[string]*watcher{}}
}

// Subscribed records that an instance watches; a report is expected of it.
func (t *Table) Subscribed(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.watching[name]
	if w == nil {
		w = &watcher{since: t.clock.Now()}
		t.watching[name] = w
	}
	w.streams++
	t.Notify()
}

// Unsubscribed reverses Subscribed.
func (t *Table) Unsubscribed(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.watching[name]; w != nil {
		if w.streams--; w.streams <= 0 {
			delete(t.watching, name)
		}
	}
	t.Notify()
}

// ReportStream is the receiver of one stream of ConfigService.Report. The sender is report.Reporter of an xds-server.
type ReportStream struct {
	table *Table
	name  string
	id    uint64
}

// Report opens a report stream of an instance. Its first message replaces everything from the instance's earlier
// streams.
func (t *Table) Report(name string) *ReportStream {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.instances[name]
	if in == nil {
		in = &instance{presence: newPresence()}
		t.instances[name] = in
	}
	in.last++
	in.stream = in.last
	return &ReportStream{table: t, name: name, id: in.stream}
}

// Apply stores one message; first says that the message lists everything. A message of a stream that a newer one of the
// instance has replaced is ignored.
func (r *ReportStream) Apply(m *configv1.ReportRequest, first bool) {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.instances[r.name]
	if in == nil || in.stream != r.id {
		return
	}
	now := t.clock.Now()
	in.presence.forget(now)
	// Identities whose proxies are reported anew do not count as gone: LostServerGrace covers the time in between.
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
		t.identities.Notify()
	}
	if m.Revision != nil {
		in.revision = m.Revision
	}
	t.Notify()
}

// moved removes a proxy from lost streams: it has been reported elsewhere since. The caller holds t.mu.
func (t *Table) moved(k key) {
	for _, in := range t.instances {
		if in.stream == 0 {
			in.drop(k, t.clock.Now())
		}
	}
}

// Close ends the stream. Its proxies count for LostServerGrace longer.
func (r *ReportStream) Close() {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if in := t.instances[r.name]; in != nil && in.stream == r.id {
		in.stream = 0
		in.lostAt = t.clock.Now()
		t.Notify()
		t.identities.Notify()
	}
}

// proxy is the status of a proxy and the instance that it counts for.
type proxy struct {
	status *configv1.ProxyStatus
	// reported is false while the xds-server's report stream is lost.
	reported bool
	serves   *configv1.Revision
	acked    *configv1.Revision
}

// proxies lists every proxy once. If two replicas report it, which happens while it moves, the newer connection counts;
// one of a lost stream counts only if no open stream reports it. The caller holds t.mu.
func (t *Table) proxies() map[key]proxy {
	out := map[key]proxy{}
	now := t.clock.Now()
	for name, in := range t.instances {
		if in.stream == 0 && now.Sub(in.lostAt) >= LostServerGrace {
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

// current is the status with the acknowledged revision of the moment.
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

func byKey(a, b *configv1.ProxyStatus) int {
	return cmp.Or(strings.Compare(a.NodeId, b.NodeId), strings.Compare(a.Identity, b.Identity))
}

// List returns the proxies of a namespace, "" for all, sorted by namespace, workload, node ID and identity.
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

// refusalLife is how long a refused stream is listed after its last attempt.
const refusalLife = 10 * time.Minute

// Refusals lists the streams that xds-servers have recently refused because their identity exceeds a budget, sorted by
// identity and node ID. namespace selects by the identity's namespace; "" means all.
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

// namespaceOf is the namespace of a SPIFFE URI; empty for any other text, such as the address of a plaintext client.
func namespaceOf(identity string) string {
	_, rest, _ := strings.Cut(identity, "/ns/")
	namespace, _, _ := strings.Cut(rest, "/")
	return namespace
}

// Each calls f with the status of every proxy whose node ID has the prefix. f must not keep or change it.
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

// Counts returns the number of proxies and of instances with an open report stream, for metrics.
func (t *Table) Counts() (proxies, reporters int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.proxies()), t.reporters()
}

// Reporters returns the number of instances that report, after their first message.
func (t *Table) Reporters() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reporters()
}

// reporters counts the instances with an open report stream that has had a message. The caller holds t.mu.
func (t *Table) reporters() (n int) {
	for _, in := range t.instances {
		if in.stream != 0 && in.proxies != nil {
			n++
		}
	}
	return n
}

// Progress is how far a revision has reached the fleet.
type Progress struct {
	Acked    uint32
	Pending  []string
	Rejected []*configv1.ProxyStatus
	// Incomplete is true while an xds-server that should report has not reported.
	Incomplete bool
	// Reporters is the number of xds-servers that report; while it is 0, nothing is known of the proxies.
	Reporters int
}

// Done reports whether everybody has acknowledged, or somebody rejected, so that waiting longer changes nothing.
func (v Progress) Done() bool {
	return len(v.Rejected) > 0 || len(v.Pending) == 0 && !v.Incomplete
}

// ProgressOf returns how far a revision has reached the proxies of known workloads in visible namespaces; a nil visible
// means all. Unverified proxies do not count. The channel is closed at the next change; recheck is the time after which
// the answer may change without one, 0 for never.
func (t *Table) ProgressOf(target *configv1.Revision, visible func(namespace string) bool) (v Progress, changed <-chan struct{},
	recheck time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, p := range t.proxies() {
		switch {
		case visible != nil && !visible(p.status.Namespace):
		case p.status.GetUnverified():
			// An unknown proxy could otherwise delay every change, or make it count as rejected.
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
	v.Incomplete, recheck = t.incomplete(now)
	v.Reporters = t.reporters()
	for _, in := range t.instances {
		if in.stream == 0 {
			recheck = sooner(recheck, in.lostAt.Add(LostServerGrace).Sub(now))
			v.Incomplete = v.Incomplete || v.Reporters == 0 && len(v.Pending) == 0 // they may report to us again
		}
	}
	return v, t.Changed(), recheck
}

// sooner returns the shorter of two times; those that are not positive do not count.
func sooner(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}

// incomplete reports whether an xds-server that should report has not, and for how long that may count. The caller
// holds t.mu.
func (t *Table) incomplete(now time.Time) (yes bool, until time.Duration) {
	wait := func(at time.Time) {
		if now.Before(at) {
			yes, until = true, sooner(until, at.Sub(now))
		}
	}
	for name, w := range t.watching {
		if in := t.instances[name]; in == nil || in.stream == 0 || in.proxies == nil {
			wait(w.since.Add(LostServerGrace))
		}
	}
	if len(t.instances) == 0 {
		wait(t.start.Add(LostServerGrace)) // just after the start no xds-server has reconnected yet
	}
	return yes, until
}

// Reached reports whether an acknowledged revision contains the target. Sequences compare only within one epoch. Across
// epochs, as after a restart or if the proxy's xds-server follows another replica, equal state hashes mean equal state.
func Reached(acked, target *configv1.Revision) bool {
	if acked == nil {
		return false
	}
	if acked.Epoch == target.Epoch {
		return acked.Sequence >= target.Sequence
	}
	return len(target.StateHash) > 0 && bytes.Equal(acked.StateHash, target.StateHash)
}

// rejected reports whether the proxy has rejected a part of the target: the newest response of a type was rejected for
// it, or for an earlier revision and the xds-server sends no other one although it serves the target.
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
