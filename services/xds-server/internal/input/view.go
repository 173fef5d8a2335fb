package input

import (
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/replica"
)

// View is one class's view of the mesh at one revision. Answers that many builds need are derived once and kept while what they are made
// from is the same; a derived answer that comes out equal after a change hides the change from everything that depends on it.
//
// A View is owned by its class: it is not safe for concurrent use.
type View struct {
	key   *class.Key
	state *replica.State
	// answers are kept over revisions.
	answers map[replica.Topic]*answer
}

// Subjects of derived answers. An answer may build on those of lower subjects only, never the other way round: Advance renews them in
// this order.
const (
	subjectSidecar = replica.SubjectDerived + iota
	subjectEgress
	subjectServices
	subjectEgressServices
	subjectRoutes
	subjectGateways
	subjectInboundMTLS
	subjectsEnd
)

// answer is one derived answer and the look-ups it was made from.
type answer struct {
	value any
	deps  replica.Topics
	// renew computes the answer anew and reports whether it is another one.
	renew func(a *answer, r *Reader) (changed bool)
}

// NewView returns the view of a class at a state.
func NewView(key *class.Key, state *replica.State) *View {
	return &View{key: key, state: state, answers: map[replica.Topic]*answer{}}
}

// Reader returns a reader for one build.
func (v *View) Reader() *Reader { return &Reader{view: v, deps: replica.Topics{}} }

// Class returns the class.
func (v *View) Class() *class.Key { return v.key }

// State returns the state the view is at.
func (v *View) State() *replica.State { return v.state }

// Advance moves the view to a later state, of which touched are the topics that changed. It returns the topics to find dependants by: the
// touched ones and those of derived answers that came out different. touched itself stays as it is.
func (v *View) Advance(state *replica.State, touched replica.Topics) replica.Topics {
	v.state = state
	all := touched
	for subject := subjectSidecar; subject < subjectsEnd; subject++ {
		var changed []replica.Topic
		for topic, a := range v.answers {
			if topic.Subject == subject && a.deps.Meets(all) && a.renew(a, v.Reader()) {
				changed = append(changed, topic)
			}
		}
		if len(changed) > 0 {
			all = union(all, changed)
		}
	}
	return all
}

// Forget drops the derived answers that nothing needs any more: live reports whether some build depends on a topic.
func (v *View) Forget(live func(replica.Topic) bool) {
	needed := replica.Topics{}
	for subject := subjectsEnd - 1; subject >= subjectSidecar; subject-- {
		for topic, a := range v.answers {
			if topic.Subject != subject {
				continue
			}
			if !live(topic) && !needed.Has(topic) {
				delete(v.answers, topic)
				continue
			}
			for t := range a.deps {
				needed.Add(t)
			}
		}
	}
}

// union returns a new set.
func union(set replica.Topics, more []replica.Topic) replica.Topics {
	all := make(replica.Topics, len(set)+len(more))
	for t := range set {
		all.Add(t)
	}
	for _, t := range more {
		all.Add(t)
	}
	return all
}

// derive returns the derived answer of a topic and records it. compute runs only when there is none yet or its look-ups were touched; same
// says whether two answers are equal. Objects of a state are replaced only when their content changes, so comparing pointers is enough.
func derive[T any](r *Reader, topic replica.Topic, compute func(*Reader) T, same func(a, b T) bool) T {
	r.record(topic)
	a, ok := r.view.answers[topic]
	if !ok {
		inner := r.view.Reader()
		a = &answer{value: compute(inner), deps: inner.deps}
		a.renew = func(a *answer, r *Reader) bool {
			value := compute(r)
			unchanged := same(a.value.(T), value)
			a.deps = r.deps
			if !unchanged {
				a.value = value
			}
			return !unchanged
		}
		r.view.answers[topic] = a
	}
	return a.value.(T)
}

// identical compares comparable answers.
func identical[T comparable](a, b T) bool { return a == b }
