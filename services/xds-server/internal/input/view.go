package input

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// View is a class's view of the mesh at one revision. It memoises answers that many builds need (derived answers) over
// revisions. If a derived answer is equal after a change, what depends on it is not built again.
//
// The owner serialises all calls, except that builds, each with a Reader of its own, may run at the same time.
type View struct {
	key    *class.Key
	common class.Common
	state  *atomic.Pointer[mesh.Snapshot]
	// answers by the topic that stands for the derived answer.
	answers map[mesh.Topic]*answer
	// mu guards answers and users while builds run at the same time.
	mu sync.Mutex
	// users by topic: the derived answers that depend on it, and perhaps some that no longer do.
	users map[mesh.Topic][]mesh.Topic
	// redirected are the derived answers that the last Advance found equal but dependent on other topics than before,
	// and those that depend on such an answer.
	redirected mesh.Topics
	// used, if not nil, is told of each topic that gets its first user, or loses its last.
	used func(t mesh.Topic, used bool)
}

// Subjects of derived answers. An answer may depend on those of lower subjects only: Advance renews them in this order.
const (
	subjectEgress = mesh.SubjectDerived + iota
	subjectServices
	subjectEgressServices
	subjectSpeaks
	subjectPlaced
	subjectRoutes
	subjectOpaqueRoutes
	subjectGateways
	subjectGatewayListeners
	subjectAttachedDomains
	subjectInboundMTLS
	subjectPatches
	subjectAuthorizationPolicies
	subjectRequestAuthentications
	subjectRules
	subjectConnectionRules
	subjectProviders
	subjectPolicyFilters
	subjectsEnd
)

// answer is a derived answer and the look-ups that it depends on.
type answer struct {
	value any
	deps  mesh.Topics
	scope Scope
	// renew computes the answer again and reports whether it has changed.
	renew func(a *answer, r *Reader) (changed bool)
}

// NewView returns the view of a class at a snapshot.
func NewView(key *class.Key, state *mesh.Snapshot) *View {
	held := &atomic.Pointer[mesh.Snapshot]{}
	held.Store(state)
	return NewSharedView(key, held, nil)
}

// NewSharedView returns the view of a class at the snapshot that state holds, which may be that of many views. Who
// stores a later one there calls Advance before the next build, unless no topic has changed that a build or a derived
// answer depends on. used, if not nil, is told of each topic that derived answers begin to depend on, or no longer do;
// it must not call the view.
func NewSharedView(key *class.Key, state *atomic.Pointer[mesh.Snapshot], used func(t mesh.Topic, used bool)) *View {
	return &View{
		key: key, common: key.Common(), state: state, answers: map[mesh.Topic]*answer{}, users: map[mesh.Topic][]mesh.Topic{}, used: used,
	}
}

// Reader returns a reader for one build.
func (v *View) Reader() *Reader { return &Reader{view: v, deps: mesh.Topics{}} }

// DependsOn reports whether a topic that a reader recorded is one that match accepts, or stands for a derived answer
// that depends on one.
func (v *View) DependsOn(t mesh.Topic, match func(mesh.Topic) bool) bool {
	if t.Subject < mesh.SubjectDerived {
		return match(t)
	}
	a, ok := v.answers[t]
	if !ok {
		return true // not known any more
	}
	for inner := range a.deps {
		if v.DependsOn(inner, match) {
			return true
		}
	}
	return false
}

// Sources calls f for a topic that a reader recorded; for a derived answer, for the topics that it depends on.
func (v *View) Sources(t mesh.Topic, f func(mesh.Topic)) {
	if t.Subject < mesh.SubjectDerived {
		f(t)
		return
	}
	if a, ok := v.answers[t]; ok {
		for inner := range a.deps {
			v.Sources(inner, f)
		}
	}
}

// Derived calls f for the derived answers that depend on a topic that match accepts.
func (v *View) Derived(match func(mesh.Topic) bool, f func(mesh.Topic)) {
	for topic := range v.answers {
		if v.DependsOn(topic, match) {
			f(topic)
		}
	}
}

// Class returns the class.
func (v *View) Class() *class.Key { return v.key }

// State returns the snapshot that the view is at.
func (v *View) State() *mesh.Snapshot { return v.state.Load() }

// Advance moves the view to a later snapshot, which differs from the last in the touched topics. It returns the touched
// topics and those of derived answers that have changed. touched itself stays as it is.
func (v *View) Advance(state *mesh.Snapshot, touched mesh.Topics) mesh.Topics {
	if v.State() != state {
		v.state.Store(state)
	}
	var renew []mesh.Topic
	seen := mesh.Topics{}
	v.redirected = nil
	find := func(t mesh.Topic) {
		for _, user := range v.users[t] {
			if !seen.Has(user) {
				seen.Add(user)
				renew = append(renew, user)
			}
		}
	}
	for t := range touched {
		find(t)
	}
	all := touched
	// The answer with the lowest subject comes first: see the subjects.
	for len(renew) > 0 {
		lowest := 0
		for i, t := range renew {
			if t.Subject < renew[lowest].Subject {
				lowest = i
			}
		}
		topic := renew[lowest]
		renew = slices.Delete(renew, lowest, lowest+1)
		a, ok := v.answers[topic]
		if !ok || !a.deps.Meets(all) {
			continue
		}
		before := a.deps
		if !a.renew(a, v.Reader()) {
			if !maps.Equal(before, a.deps) {
				v.redirect(topic)
			}
			continue
		}
		if len(all) == len(touched) {
			all = maps.Clone(touched)
		}
		all.Add(topic)
		find(topic)
	}
	return all
}

// redirect adds a derived answer, and those that depend on it, to those that depend on other topics than before.
func (v *View) redirect(topic mesh.Topic) {
	if v.redirected.Has(topic) {
		return
	}
	if v.redirected == nil {
		v.redirected = mesh.Topics{}
	}
	v.redirected.Add(topic)
	for _, user := range v.users[topic] {
		v.redirect(user)
	}
}

// Redirected returns the topics of the derived answers that the last Advance found equal but that depend on other
// topics than before, directly or by other answers. The caller must not change them.
func (v *View) Redirected() mesh.Topics { return v.redirected }

// addUser adds a derived answer to the users of the topics that it depends on, before being those it depended on so
// far.
func (v *View) addUser(topic mesh.Topic, deps, before mesh.Topics) {
	for t := range deps {
		if !before.Has(t) && !slices.Contains(v.users[t], topic) {
			if v.users[t] = append(v.users[t], topic); len(v.users[t]) == 1 {
				v.tell(t, true)
			}
		}
	}
}

func (v *View) tell(t mesh.Topic, used bool) {
	if v.used != nil {
		v.used(t, used)
	}
}

// Close tells that no topic is used any more. The view must not be used after that.
func (v *View) Close() {
	for t := range v.users {
		v.tell(t, false)
	}
}

// DropUnused drops the derived answers that nothing depends on; live reports whether a build depends on a topic. What
// the Sidecar admits stays, for ReachMoved.
func (v *View) DropUnused(live func(mesh.Topic) bool) {
	needed := mesh.Topics{}
	for subject := subjectsEnd - 1; subject > subjectEgress; subject-- {
		for topic, a := range v.answers {
			if topic.Subject != subject {
				continue
			}
			if !live(topic) && !needed.Has(topic) {
				delete(v.answers, topic)
				for t := range a.deps {
					v.users[t] = slices.DeleteFunc(v.users[t], func(user mesh.Topic) bool { return user == topic })
					if len(v.users[t]) == 0 {
						delete(v.users, t)
						v.tell(t, false)
					}
				}
				continue
			}
			for t := range a.deps {
				needed.Add(t)
			}
		}
	}
}

// answer returns the derived answer of a topic, nil if there is none.
func (v *View) answer(topic mesh.Topic) *answer {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.answers[topic]
}

// keep adds a derived answer. If another build has added it meanwhile, that answer is returned.
func (v *View) keep(topic mesh.Topic, a *answer) *answer {
	v.mu.Lock()
	defer v.mu.Unlock()
	if kept, ok := v.answers[topic]; ok {
		return kept
	}
	v.answers[topic] = a
	v.addUser(topic, a.deps, nil)
	return a
}

// derive records a topic and returns the derived answer that it stands for. It calls compute if there is no answer yet;
// Advance calls it if the answer's look-ups are touched. same reports whether two answers are equal. Objects of a
// snapshot are replaced only if their content changes, so that same may compare pointers.
func derive[T any](r *Reader, topic mesh.Topic, compute func(*Reader) T, same func(a, b T) bool) T {
	r.record(topic)
	a := r.view.answer(topic)
	if a == nil {
		inner := r.view.Reader()
		inner.trace = r.trace
		a = &answer{value: compute(inner), deps: inner.deps, scope: inner.scope}
		a.renew = func(a *answer, r *Reader) bool {
			value := compute(r)
			// An answer that holds for other classes than before has changed too, even if it is the same here: what was
			// made of it may be shared with too many, or with too few.
			unchanged := same(a.value.(T), value) && a.scope == r.scope
			r.view.addUser(topic, r.deps, a.deps)
			a.deps, a.scope = r.deps, r.scope
			if !unchanged {
				a.value = value
			}
			return !unchanged
		}
		a = r.view.keep(topic, a)
	}
	r.scope = max(r.scope, a.scope)
	return a.value.(T)
}

// identical is same for comparable answers.
func identical[T comparable](a, b T) bool { return a == b }
