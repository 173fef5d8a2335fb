package rotation

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Swap begins a rotation to a signer: another one, or one of the same configuration with new keys.
func (s State) Swap(name string, spec json.RawMessage, reason string, now time.Time) (State, error) {
	if s.Step != Idle {
		return s, fmt.Errorf("a rotation to signer %s is under way since %s (step %s); wait for its end, or abort it", s.target().Name,
			s.Began.UTC().Format(time.RFC3339), s.Step)
	}
	s.LastID++
	s.Next = &Signer{ID: s.LastID, Name: name, Spec: spec}
	s.Began, s.Reason = now, reason
	return s.at(Prepare, now), nil
}

// target is where the rotation leads.
func (s State) target() Signer {
	if s.Next != nil {
		return *s.Next
	}
	return s.Current
}

// Compromise says of a rotation under way that others may have the keys of the signer that it leads away from.
func (s State) Compromise() (State, error) {
	if s.Step == Idle {
		return s, errors.New("no rotation is under way; rotate to a new root or swap the signer, and say there that the keys are compromised")
	}
	s.Compromised = true
	return s, nil
}

// Pause stops the rotation at its step. What the step has done stays done.
func (s State) Pause() (State, error) { return s.pause(true) }

// Resume lets a paused rotation go on.
func (s State) Resume() (State, error) { return s.pause(false) }

func (s State) pause(on bool) (State, error) {
	if s.Step == Idle {
		return s, errors.New("no rotation is under way")
	}
	s.Paused = on
	return s, nil
}

// Abort ends a rotation before anything was issued from the next signer: its roots leave the bundle again.
func (s State) Abort(now time.Time) (State, error) {
	switch s.Step {
	case Prepare:
		return s.idle(now), nil
	case Trust, Gate:
		s.Old, s.Next, s.Paused, s.Compromised = []Signer{*s.Next}, nil, false, false
		return s.at(Retire, now), nil
	case Idle:
		return s, errors.New("no rotation is under way")
	}
	return s, fmt.Errorf("the mesh has certificates of signer %s already (step %s): roll back", s.Current.Name, s.Step)
}

// Rollback issues from the signer before again. All of the mesh trusts its roots still, so there is no gate.
func (s State) Rollback(now time.Time) (State, error) {
	switch s.Step {
	case Issue, Renew:
		if s.Compromised {
			return s, fmt.Errorf("others may have the keys of signer %s; swap to a third one when this rotation has ended", s.Old[len(s.Old)-1].Name)
		}
		last := len(s.Old) - 1
		back := s.Old[last]
		s.Old = append(slices.Clone(s.Old[:last]), s.Current)
		s.Current, s.Paused = back, false
		return s.at(Issue, now), nil
	case Idle:
		return s, errors.New("no rotation is under way; swap to the signer that was there before")
	case Retire:
		return s, errors.New("the roots of the signer before are leaving the mesh; wait for the end, and swap to it anew")
	}
	return s, fmt.Errorf("nothing was issued from signer %s yet (step %s): abort", s.Next.Name, s.Step)
}

// Accept lets the rotation go on without a holder: it may lose its connections.
func (s State) Accept(holder string) (State, error) {
	if s.Step == Idle {
		return s, errors.New("no rotation is under way that would wait for anybody")
	}
	if !slices.Contains(s.Accepted, holder) {
		s.Accepted = append(slices.Clone(s.Accepted), holder)
	}
	return s, nil
}
