package rotation

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func first() State { return First(Signer{ID: 1, Name: "disk", Roots: []string{"root 1"}}, start) }

// done is an observation with which every step of s ends.
func done(s State) Observation {
	o := Observation{Generation: s.Gated + 1, Published: s.Roots()}
	if s.Next != nil {
		o.Prepared = []string{fmt.Sprint("root ", s.Next.ID)}
	}
	return o
}

// until advances s to a step.
func until(t *testing.T, s State, step Step) State {
	t.Helper()
	for range 10 {
		if s.Step == step {
			return s
		}
		next, ok := s.Advance(done(s), start)
		if !ok {
			t.Fatalf("step %s waits for %v", s.Step, s.Waits(done(s), start))
		}
		s = next
	}
	t.Fatalf("never at %s", step)
	return s
}

func swapped(t *testing.T) State {
	t.Helper()
	s, err := first().Swap("vault", nil, "test", start)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestASwapGoesThroughEveryStep(t *testing.T) {
	s := swapped(t)
	for _, want := range []struct {
		step    Step
		current uint64
		roots   string
	}{
		{Prepare, 1, "root 1"}, {Trust, 1, "root 1, root 2"}, {Gate, 1, "root 1, root 2"}, {Issue, 2, "root 1, root 2"},
		{Renew, 2, "root 1, root 2"}, {Retire, 2, "root 2"}, {Idle, 2, "root 2"},
	} {
		if s.Step != want.step || s.Current.ID != want.current || strings.Join(s.Roots(), ", ") != want.roots {
			t.Fatalf("at step %s issues from %d with roots %v, want %+v", s.Step, s.Current.ID, s.Roots(), want)
		}
		s, _ = s.Advance(done(s), start)
	}
	if !reflect.DeepEqual(s.Current, Signer{ID: 2, Name: "vault", Roots: []string{"root 2"}}) || s.Old != nil || s.Next != nil {
		t.Errorf("ends as %+v", s)
	}
}

func TestAStepWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		step   Step
		change func(*State, *Observation)
		says   string
	}{
		"until the next signer has issued": {Prepare, func(_ *State, o *Observation) { o.Prepared, o.Problem = nil, "sealed" },
			"no certificate yet: sealed"},
		"until the bundle is published": {Trust, func(_ *State, o *Observation) { o.Published = []string{"root 1"} }, "is not published yet"},
		"for a holder that does not trust": {Gate, func(_ *State, o *Observation) { o.Behind = []string{"shop/web-1"} },
			"shop/web-1 does not trust"},
		"for a signer that issues no longer": {Gate, func(_ *State, o *Observation) { o.Problem = "sealed" },
			"signer vault issues no certificates now: sealed"},
		"for the bundle that was published": {Gate, func(s *State, o *Observation) { o.Generation = s.Gated - 1 }, "is not published"},
		"for a replica":                     {Issue, func(_ *State, o *Observation) { o.Replicas = []string{"ca-1"} }, "replica ca-1"},
		"for a certificate": {Renew, func(_ *State, o *Observation) { o.Unrenewed = []string{"shop/web-1"} },
			"shop/web-1 has a certificate"},
		"for a certificate, also if the keys are known to others": {Renew, func(s *State, o *Observation) {
			s.Compromised, o.Unrenewed = true, []string{"shop/web-1"}
		}, "shop/web-1 has a certificate"},
		"for the smaller bundle": {Retire, func(_ *State, o *Observation) { o.Published = []string{"root 1", "root 2"} }, "is not published yet"},
		"for those that trust keys of others": {Retire, func(s *State, o *Observation) {
			s.Compromised, o.Behind = true, []string{"shop/web-1"}
		}, "shop/web-1 trusts"},
		"but not for those that trust retired roots": {Retire, func(_ *State, o *Observation) { o.Behind = []string{"shop/web-1"} }, ""},
		"but not for a holder that was accepted": {Gate,
			func(s *State, o *Observation) { o.Behind, s.Accepted = []string{"a"}, []string{"a"} }, ""},
		"but not for an accepted holder's certificate": {Renew,
			func(s *State, o *Observation) { o.Unrenewed, s.Accepted = []string{"a"}, []string{"a"} }, ""},
		"but not for certificates of stolen keys, at the end": {Renew, func(s *State, o *Observation) {
			s.Compromised, s.Since, o.Unrenewed = true, start.Add(-CompromisedGrace), []string{"a"}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := until(t, swapped(t), tc.step)
			o := done(s)
			tc.change(&s, &o)
			waits := strings.Join(s.Waits(o, start), "; ")
			next, advanced := s.Advance(o, start)
			if advanced != (tc.says == "") || !strings.Contains(waits, tc.says) || !advanced && !reflect.DeepEqual(next, s) {
				t.Errorf("advanced %t, waits for %q, want %q", advanced, waits, tc.says)
			}
		})
	}
}

func TestWaysBack(t *testing.T) {
	abort := func(s State) (State, error) { return s.Abort(start) }
	rollback := func(s State) (State, error) { return s.Rollback(start) }
	for _, tc := range []struct {
		from    Step
		command func(State) (State, error)
		says    string
		step    Step
		roots   string
	}{
		{Idle, abort, "no rotation", "", ""},
		{Prepare, abort, "", Idle, "root 1"},
		{Trust, abort, "", Retire, "root 1"},
		{Gate, abort, "", Retire, "root 1"},
		{Issue, abort, "roll back", "", ""},
		{Renew, abort, "roll back", "", ""},
		{Retire, abort, "roll back", "", ""},
		{Idle, rollback, "no rotation", "", ""},
		{Prepare, rollback, "abort", "", ""},
		{Trust, rollback, "abort", "", ""},
		{Gate, rollback, "abort", "", ""},
		{Issue, rollback, "", Issue, "root 1, root 2"},
		{Renew, rollback, "", Issue, "root 1, root 2"},
		{Retire, rollback, "leaving the mesh", "", ""},
	} {
		t.Run(string(tc.from), func(t *testing.T) {
			s := first()
			if tc.from != Idle {
				s = until(t, swapped(t), tc.from)
			}
			back, err := tc.command(s)
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) || !reflect.DeepEqual(back, s) {
					t.Errorf("got %v, want %q", err, tc.says)
				}
				return
			}
			if err != nil || back.Step != tc.step || back.Current.ID != 1 || strings.Join(back.Roots(), ", ") != tc.roots {
				t.Fatalf("got %+v, %v", back, err)
			}
			if end := until(t, back, Idle); end.Current.ID != 1 || strings.Join(end.Roots(), ", ") != "root 1" {
				t.Errorf("ends as %+v", end)
			}
		})
	}
}

func TestNoWayBackToStolenKeys(t *testing.T) {
	s, err := until(t, swapped(t), Renew).Compromise()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Rollback(start); err == nil || !strings.Contains(err.Error(), "others may have the keys") {
		t.Errorf("got %v", err)
	}
}

func TestOneRotationAtATime(t *testing.T) {
	s := until(t, swapped(t), Gate)
	if _, err := s.Swap("kms", nil, "", start); err == nil || !strings.Contains(err.Error(), "a rotation to signer vault is under way") {
		t.Errorf("got %v", err)
	}
	s, err := s.Pause()
	if err != nil {
		t.Fatal(err)
	}
	if _, advanced := s.Advance(done(s), start); advanced {
		t.Error("a paused rotation went on")
	}
	if s, err = s.Resume(); err != nil {
		t.Fatal(err)
	}
	until(t, s, Idle)
}

// mesh is a simulated mesh: what each holder trusts, and by whom its certificate was issued.
type mesh struct {
	trusts map[string][]string
	issuer map[string]uint64
	roots  map[uint64][]string
	// published is the newest bundle.
	published  []string
	generation uint64
	stopped    map[string]bool
}

func (m *mesh) observe(s State) Observation {
	o := Observation{Generation: m.generation, Published: m.published}
	if s.Next != nil {
		o.Prepared = []string{fmt.Sprint("root ", s.Next.ID)}
	}
	for name := range m.trusts {
		if !slices.Equal(m.trusts[name], m.published) {
			o.Behind = append(o.Behind, name)
		}
		if slices.ContainsFunc(s.Old, func(old Signer) bool { return old.ID == m.issuer[name] }) {
			o.Unrenewed = append(o.Unrenewed, name)
		}
	}
	return o
}

// TestNoHandshakeFailsWhateverHappens draws commands, holders that lag and restarts of the ca, and checks after each
// that every holder trusts every other's certificate, unless an operator has accepted that it may not.
func TestNoHandshakeFailsWhateverHappens(t *testing.T) {
	rotations := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		s := first()
		m := &mesh{trusts: map[string][]string{}, issuer: map[string]uint64{}, roots: map[uint64][]string{1: {"root 1"}},
			published: s.Roots(), generation: 1, stopped: map[string]bool{}}
		for i := range 4 {
			m.trusts[fmt.Sprint("pod ", i)], m.issuer[fmt.Sprint("pod ", i)] = s.Roots(), 1
		}
		accepted := map[string]bool{}
		for step := range 300 {
			name := fmt.Sprint("pod ", r.IntN(4))
			switch r.IntN(12) {
			case 0:
				if next, err := s.Swap(fmt.Sprint("signer ", step), nil, "", start); err == nil {
					s = next
					rotations++
				}
			case 1:
				if r.IntN(4) == 0 {
					s, _ = s.Abort(start)
				}
			case 2:
				if r.IntN(4) == 0 {
					s, _ = s.Rollback(start)
				}
			case 3:
				m.stopped[name] = r.IntN(2) == 0
			case 4:
				if m.stopped[name] && r.IntN(3) == 0 {
					if next, err := s.Accept(name); err == nil {
						s, accepted[name] = next, true
					}
				}
			case 5: // the ca restarts, and reads what it wrote
				text, err := json.Marshal(s)
				if err != nil {
					t.Fatal(err)
				}
				s = State{}
				if err := json.Unmarshal(text, &s); err != nil {
					t.Fatal(err)
				}
			case 6, 7: // the bundle is published
				if !slices.Equal(m.published, s.Roots()) {
					m.published, m.generation = s.Roots(), m.generation+1
				}
			case 8, 9:
				if !m.stopped[name] {
					m.trusts[name] = m.published
				}
			case 10: // a certificate is renewed
				if !m.stopped[name] {
					m.issuer[name] = s.Current.ID
				}
			case 11:
				s, _ = s.Advance(m.observe(s), start)
			}
			m.roots[s.Current.ID] = s.Current.Roots
			for a, trusts := range m.trusts {
				for b, issuer := range m.issuer {
					if accepted[a] || accepted[b] || slices.Contains(trusts, m.roots[issuer][0]) {
						continue
					}
					t.Fatalf("seed %d, step %d (%s): %s trusts %v, and %s has a certificate of signer %d", seed, step, s.Step, a, trusts, b, issuer)
				}
			}
			if s.Step == Idle {
				accepted = lagging(accepted, m, s.Current.ID)
			}
		}
	}
	if rotations < 1000 {
		t.Errorf("only %d rotations", rotations)
	}
}

// lagging are the accepted holders that have not caught up with a rotation that has ended.
func lagging(accepted map[string]bool, m *mesh, current uint64) map[string]bool {
	out := map[string]bool{}
	for name := range accepted {
		if !slices.Equal(m.trusts[name], m.published) || m.issuer[name] != current {
			out[name] = true
		}
	}
	return out
}
