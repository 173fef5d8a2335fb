package gatewayapi

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// workloads stands for the workloads that a WorkloadSelection selects, as text. Several Gateways share them if their
// addresses name Services with one selector. Listeners of all of them have to be distinct then, as those of one Gateway
// have to be: the workloads serve that of the oldest object.
type workloads string

func workloadsOf(s *configv1.WorkloadSelection) workloads {
	return workloads(s.GetNamespace() + " " + object.LabelText(s.GetLabels()))
}

// shared knows the Gateways that have the same workloads.
type shared struct {
	users map[workloads]map[Name]struct{}
	// dirty are the workloads whose listeners may have changed.
	dirty map[workloads]struct{}
	// lost are the conflicts of the listeners that the workloads do not serve because of another Gateway's.
	lost map[workloads]map[ListenerID]*finding
}

func newShared() shared {
	return shared{users: map[workloads]map[Name]struct{}{}, dirty: map[workloads]struct{}{}, lost: map[workloads]map[ListenerID]*finding{}}
}

// use records that a Gateway, nil if it is not there, has workloads now, and has had others before.
func (s *shared) use(before, now *gateway) {
	for _, g := range []*gateway{before, now} {
		if g == nil {
			continue
		}
		for _, selection := range g.selections {
			w := workloadsOf(selection)
			s.dirty[w] = struct{}{}
			if g == before {
				if delete(s.users[w], g.name); len(s.users[w]) == 0 {
					delete(s.users, w)
				}
			} else {
				if s.users[w] == nil {
					s.users[w] = map[Name]struct{}{}
				}
				s.users[w][g.name] = struct{}{}
			}
		}
	}
}

// judgeShared judges those Gateways again whose listeners have lost to another Gateway of the same workloads, or do not
// lose any more.
func (s *State) judgeShared() {
	again := map[Name]struct{}{}
	for w := range s.shared.dirty {
		now := s.conflicts(w)
		before := s.shared.lost[w]
		for id := range maps.Keys(before) {
			if now[id] == nil {
				again[id.Gateway] = struct{}{}
			}
		}
		for id, why := range now {
			if before[id] == nil || *before[id] != *why {
				again[id.Gateway] = struct{}{}
			}
		}
		if len(now) > 0 {
			s.shared.lost[w] = now
		} else {
			delete(s.shared.lost, w)
		}
	}
	for n := range again {
		s.judge(n)
	}
	clear(s.shared.dirty) // judging has changed the conditions of listeners, and not what they claim
}

// conflicts finds the listeners that lose to a listener of another Gateway of the same workloads, of an older object.
func (s *State) conflicts(w workloads) map[ListenerID]*finding {
	if len(s.shared.users[w]) < 2 {
		return nil
	}
	type owner struct {
		*object.Object
		listeners []*listener
	}
	var owners []owner
	for n := range s.shared.users[w] {
		g := s.gateways[n]
		owners = append(owners, owner{s.objects[key(Gateway, n)], g.listeners})
		for _, set := range g.sets {
			owners = append(owners, owner{set.object, set.listeners})
		}
	}
	slices.SortFunc(owners, func(a, b owner) int {
		return cmp.Or(olderFirst(a.Object, b.Object), strings.Compare(a.Key.Kind, b.Key.Kind))
	})
	out := map[ListenerID]*finding{}
	ports := map[portOf]*claimed{}
	for _, o := range owners {
		for _, l := range o.listeners {
			if !l.claims() {
				continue
			}
			port := ports[l.portOf()]
			if port == nil {
				port = &claimed{family: l.family(), byHost: map[string]*listener{}, first: l}
				ports[l.portOf()] = port
			}
			other, reason := port.byHost[l.hostname], gatewayv1.ListenerReasonHostnameConflict
			if port.family != l.family() || other != nil && (port.family == opaque || other.protocol != l.protocol) {
				reason = gatewayv1.ListenerReasonProtocolConflict
				other = cmp.Or(other, port.first)
			}
			if other == nil || other.id.Gateway == l.id.Gateway {
				port.byHost[l.hostname] = l
				continue
			}
			out[l.id] = l.conflictWith(reason, fmt.Sprintf("the same workloads serve listener %s of %s %s, which is older", other.id.Listener,
				other.id.owner().Kind, nameOf(other.id.owner())), ", or other workloads")
		}
	}
	return out
}

// lose has the listeners of a Gateway hear of their conflicts with other Gateways.
func (s *shared) lose(g *gateway) {
	for _, selection := range g.selections {
		lost := s.lost[workloadsOf(selection)]
		if lost == nil {
			continue
		}
		for _, l := range g.listeners {
			l.lose(lost)
		}
		for _, set := range g.sets {
			for _, l := range set.listeners {
				l.lose(lost)
			}
		}
	}
}

func (l *listener) lose(lost map[ListenerID]*finding) {
	if why := lost[l.id]; why != nil && l.claims() {
		l.conflict, l.shared = why, true
	}
}

// taken reports whether the listener's workloads serve another one in its place.
func (l *listener) taken() bool { return l.shared && l.conflict != nil }

// claims reports whether the listener could be served but for other Gateways of the same workloads.
func (l *listener) claims() bool {
	return l.refused == nil && (l.conflict == nil || l.shared) && !l.broken
}
