package input

import (
	"maps"
	"slices"
	"sync"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// View is one class's view of the mesh at one revision. Answers that many builds need are derived once and kept while what they are made
// from is the same; a derived answer that comes out equal after a change hides the change from everything that depends on it.
//
// A View is owned by its class: it is not safe for concurrent use.
type View struct {
	key    *class.Key
	common class.Common
	state  *mesh.Snapshot
	// answers are kept over revisions.
	answers map[mesh.Topic]*answer
	// mu guards answers and users while builds of the view run at the same time.
	mu sync.Mutex
	// users finds the answers that were made from a topic, and perhaps some that are no longer.
	users map[mesh.Topic][]mesh.Topic
}

// Subjects of derived answers. An answer may build on those of lower subjects only, never the other way round: Advance renews them in
// this order.
const (
	subjectEgress = mesh.SubjectDerived + iota
	subjectServices
	subjectEgressServices
	subjectSpeaks
	subjectPlaced
	subjectRoutes
	subjectOpaqueRoutes
	subjectGateways
	subjectInboundMTLS
	subjectPatches
	subjectsEnd
)

// answer is one derived answer and the look-ups it was made from.
type answer struct {
	value any
	deps  mesh.Topics
	scope Scope
	// renew computes the answer anew and reports whether it is another one.
	renew func(a *answer, r *Reader) (changed bool)
}

// NewView returns the view of a class at a state.
func NewView(key *class.Key, state *mesh.Snapshot) *View {
	return &View{key: key, common: key.Common(), state: state, answers: map[mesh.Topic]*answer{}, users: map[mesh.Topic][]mesh.Topic{}}
}

// Reader returns a reader for one build.
func (v *View) Reader() *Reader { return &Reader{view: v, deps: mesh.Topics{}} }

// Meets reports whether a topic that a reader recorded is one of those that match accepts, or was derived from one.
func (v *View) Meets(t mesh.Topic, match func(mesh.Topic) bool) bool {
	if t.Subject < mesh.SubjectDerived {
		return match(t)
	}
	a, ok := v.answers[t]
	if !ok {
		return true // not known any more
	}
	for inner := range a.deps {
		if v.Meets(inner, match) {
			return true
		}
	}
	return false
}

// Sources calls f for a topic that a reader recorded, or for those that it was derived from.
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

// Derived calls f for the derived answers that were made from a topic that match accepts.
func (v *View) Derived(match func(mesh.Topic) bool, f func(mesh.Topic)) {
	for topic := range v.answers {
		if v.Meets(topic, match) {
			f(topic)
		}
	}
}

// Class returns the class.
func (v *View) Class() *class.Key { return v.key }

// State returns the state the view is at.
func (v *View) State() *mesh.Snapshot { return v.state }

// Advance moves the view to a later state, of which touched are the topics that changed. It returns the topics to find dependants by: the
// touched ones and those of derived answers that came out different. touched itself stays as it is.
func (v *View) Advance(state *mesh.Snapshot, touched mesh.Topics) mesh.Topics {
	v.state = state
	var renew []mesh.Topic
	seen := mesh.Topics{}
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
	// Answers build on those of lower subjects only: the lowest comes first.
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
		if !ok || !a.deps.Meets(all) || !a.renew(a, v.Reader()) {
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

// Touched reports whether Advance could find that an answer is another one.
func (v *View) Touched(topics mesh.Topics) bool {
	if len(v.users) == 0 {
		return false
	}
	for t := range topics {
		if len(v.users[t]) > 0 {
			return true
		}
	}
	return false
}

// SetState moves the view to a later state that touches none of its answers.
func (v *View) SetState(state *mesh.Snapshot) { v.state = state }

// use notes what an answer was made from.
func (v *View) use(topic mesh.Topic, deps, before mesh.Topics) {
	for t := range deps {
		if !before.Has(t) && !slices.Contains(v.users[t], topic) {
			v.users[t] = append(v.users[t], topic)
		}
	}
}

// Forget drops the derived answers that nothing needs any more: live reports whether some build depends on a topic.
func (v *View) Forget(live func(mesh.Topic) bool) {
	needed := mesh.Topics{}
	for subject := subjectsEnd - 1; subject >= subjectEgress; subject-- {
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

// keep keeps an answer, and returns the one that is kept: another build may have been quicker.
func (v *View) keep(topic mesh.Topic, a *answer) *answer {
	v.mu.Lock()
	defer v.mu.Unlock()
	if kept, ok := v.answers[topic]; ok {
		return kept
	}
	v.answers[topic] = a
	v.use(topic, a.deps, nil)
	return a
}

// derive returns the derived answer of a topic and records it. compute runs only when there is none yet or its look-ups were touched; same
// says whether two answers are equal. Objects of a state are replaced only when their content changes, so comparing pointers is enough.
func derive[T any](r *Reader, topic mesh.Topic, compute func(*Reader) T, same func(a, b T) bool) T {
	r.record(topic)
	a := r.view.answer(topic)
	if a == nil {
		inner := r.view.Reader()
		inner.trace = r.trace
		a = &answer{value: compute(inner), deps: inner.deps, scope: inner.scope}
		a.renew = func(a *answer, r *Reader) bool {
			value := compute(r)
			unchanged := same(a.value.(T), value)
			r.view.use(topic, r.deps, a.deps)
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

// identical compares comparable answers.
func identical[T comparable](a, b T) bool { return a == b }
