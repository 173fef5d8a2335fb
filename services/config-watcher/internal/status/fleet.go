package status

import (
	"fmt"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/object"
)

// fleetState is the fleet at one moment, as far as conditions depend on it.
type fleetState struct {
	proxies []proxy
	// incomplete is true while xds-servers that should report have not.
	incomplete bool
	// unreported is true while no xds-server reports.
	unreported bool
	// current is the newest revision.
	current *configv1.Revision
	// sequences are the numbers of recent states, by state hash: a proxy whose xds-server follows another replica
	// acknowledges revisions of another epoch.
	sequences func(stateHash []byte) (uint64, bool)
	// bySince caches progressSince.
	bySince map[uint64]*progress
	// blamed are all hosts that rejections name.
	blamed []string
}

// proxy is a connected proxy.
type proxy struct {
	name string
	fleet.View
	rejections []*rejection
}

// progress is how far a revision has reached the fleet.
type progress struct {
	acked   int
	pending []string
	// rejecting are the proxies that have rejected something since the revision, and those rejections.
	rejecting []rejecting
}

type rejecting struct {
	*proxy
	since []*rejection
	// acked is true if the proxy has acknowledged the revision as a whole, and rejected something later.
	acked bool
	// answered is true if it has acknowledged all else.
	answered bool
}

// maxBlamed bounds the hosts that rejections name.
const maxBlamed = 10_000

func newFleetState(views []fleet.View, incomplete bool, current *configv1.Revision, sequences func([]byte) (uint64, bool)) *fleetState {
	f := &fleetState{incomplete: incomplete, current: current, sequences: sequences, bySince: map[uint64]*progress{}}
	for _, v := range views {
		p := proxy{name: proxyName(v.Status.GetNodeId(), v.Status.GetNamespace(), v.Status.GetWorkload()), View: v}
		for _, t := range v.Status.GetTypes() {
			if t.GetRejection() != nil {
				r := newRejection(t.GetTypeUrl(), t.GetRejection())
				p.rejections = append(p.rejections, r)
				if len(f.blamed) < maxBlamed {
					f.blamed = append(f.blamed, r.hosts...)
				}
			}
		}
		f.proxies = append(f.proxies, p)
	}
	slices.Sort(f.blamed)
	f.blamed = slices.Compact(f.blamed)
	return f
}

// same reports whether no condition can differ from what it is in another state.
func (f *fleetState) same(o *fleetState) bool {
	sameView := func(a, b proxy) bool { return a.View == b.View }
	return o != nil && f.incomplete == o.incomplete && f.unreported == o.unreported && slices.EqualFunc(f.proxies, o.proxies, sameView) &&
		(len(f.proxies) == 0 || f.current.GetSequence() == o.current.GetSequence())
}

// reached reports whether a revision that a proxy or its xds-server states contains the revision of this replica with
// the number since.
func (f *fleetState) reached(stated *configv1.Revision, since uint64) bool {
	target := &configv1.Revision{Epoch: f.current.GetEpoch(), Sequence: since, StateHash: f.current.GetStateHash()}
	if fleet.Reached(stated, target) {
		return true
	}
	if stated == nil || stated.GetEpoch() == f.current.GetEpoch() {
		return false
	}
	sequence, known := f.sequences(stated.GetStateHash())
	return known && sequence >= since
}

// progressSince returns how far the revision with a number has reached the fleet.
func (f *fleetState) progressSince(since uint64) *progress {
	if p := f.bySince[since]; p != nil {
		return p
	}
	out := &progress{}
	f.bySince[since] = out
	for i := range f.proxies {
		p := &f.proxies[i]
		if !p.Reported {
			out.pending = append(out.pending, p.name)
			continue
		}
		var rejected []*rejection
		for _, r := range p.rejections {
			if f.reached(r.GetRevision(), since) {
				rejected = append(rejected, r)
			}
		}
		acked := f.reached(p.Acked, since)
		answered := acked || p.Settled() && f.reached(p.Serves, since)
		switch {
		case len(rejected) > 0:
			out.rejecting = append(out.rejecting, rejecting{p, rejected, acked, answered})
		case answered:
			out.acked++
		default:
			out.pending = append(out.pending, p.name)
		}
	}
	return out
}

// programmed makes the condition Programmed: has every proxy acknowledged the revision with this version of the object?
// The hosts are those of hostsOf.
func (f *fleetState) programmed(k object.Key, hosts []string, since uint64) Condition {
	p := f.progressSince(since)
	acked, pending := p.acked, slices.Clone(p.pending)
	var rejected, suspects []string
	for _, r := range p.rejecting {
		worst, words := unrelated, ""
		for _, one := range r.since {
			if is := one.relationTo(k, hosts); is > worst {
				worst, words = is, r.name+": "+one.text()
			}
		}
		switch {
		case worst == owned:
			rejected = append(rejected, words)
		case worst == possible && !r.acked:
			suspects = append(suspects, words)
		case r.answered:
			acked++
		default:
			pending = append(pending, r.name)
		}
	}
	c := Condition{Type: Programmed, Message: fmt.Sprintf("%d of %d proxies acknowledged", acked, len(f.proxies))}
	add := func(prefix string, list []string) {
		if len(list) > 0 {
			c.Message += "; " + prefix + listed(list)
		}
	}
	add("rejected by ", rejected)
	add("not by ", pending)
	// Rejections that name no object may be about this one.
	add("rejected since, by name of no object: ", suspects)
	c.Message = object.Cut(c.Message, maxMessage)
	switch {
	case len(rejected) > 0:
		c.Reason = reasonRejected
	case f.unreported && len(pending) == 0:
		return unreportedCondition()
	case len(pending)+len(suspects) > 0 || f.incomplete:
		c.Reason, c.KeepTrue = reasonPending, true
		if f.incomplete {
			c.Message += "; not every xds-server has reported yet"
		}
	default:
		c.Reason, c.Holds, c.KeepTrue = reasonProgrammed, true, true
	}
	return c
}

// unreportedCondition is Programmed while nobody knows what proxies hold.
func unreportedCondition() Condition {
	return Condition{Type: Programmed, Unknown: true, KeepTrue: true, Reason: reasonUnreported,
		Message: "no xds-server reports what the proxies hold"}
}

// withoutProxies is the message of a version that is programmed because no proxy is connected. Those that connect later
// are counted.
const withoutProxies = "0 of 0 proxies acknowledged"

// maxMessage bounds the message of a condition, in bytes.
const maxMessage = 4096

// acceptedCondition is the condition of an object that is in force.
func acceptedCondition(kind string) Condition {
	return Condition{Type: Accepted, Holds: true, Reason: reasonAccepted, Message: "the " + kind + " is valid and part of the mesh"}
}

// maxListed bounds the names in a message.
const maxListed = 10

func listed(names []string) string {
	slices.Sort(names)
	if more := len(names) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// fleet is the state of the proxies that this replica and its peers know, at a revision.
func (t *Tracker) fleet(current *configv1.Revision) *fleetState {
	views, incomplete := t.cfg.Fleet.Verified()
	if t.cfg.Peers != nil {
		others, missing := t.cfg.Peers()
		views, incomplete = joined(views, others), incomplete || missing
	}
	f := newFleetState(views, incomplete, current, func(stateHash []byte) (uint64, bool) {
		n, known := t.sequences[string(stateHash)]
		return n, known
	})
	f.unreported = t.cfg.Fleet.Reporters() == 0 && (t.cfg.PeerReporters == nil || t.cfg.PeerReporters() == 0)
	return f
}

// joined adds the proxies of other replicas to the own ones. A proxy that several replicas know counts where its
// connection is newest.
func joined(own, others []fleet.View) []fleet.View {
	type key struct{ node, identity string }
	at := map[key]int{}
	for _, v := range append(own, others...) {
		k := key{v.Status.GetNodeId(), v.Status.GetIdentity()}
		i, known := at[k]
		switch {
		case !known:
			at[k] = len(at)
			own = append(own[:at[k]], v)
		case v.Reported && (!own[i].Reported || v.Status.GetConnectedAt().AsTime().After(own[i].Status.GetConnectedAt().AsTime())):
			own[i] = v
		}
	}
	return own
}
