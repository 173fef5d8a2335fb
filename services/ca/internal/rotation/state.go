// Package rotation decides how a mesh moves from one signer to another, or from one root to the next, without a failed
// handshake. It is a state machine without I/O: State is what is written down between its steps, Observation is what
// the ca sees of itself and of the mesh, and State.Advance returns the next State. Commands of an operator are methods
// of State, too. A swap of the signer and a rotation of the root are the same machine; so are their ways back.
//
//	idle ─ Swap ─► prepare ─► trust ─► gate ─► issue ─► renew ─► retire ─► idle
//	                  │         │        │       │        │
//	                  └─────────┴────────┘       └────────┴── Rollback: issue, from the signer before
//	                        Abort: retire
//
//	prepare  the next signer makes its keys and issues a certificate that nobody uses; the ca checks it
//	trust    its roots go into the trust bundle
//	gate     every holder of a certificate verifies with that bundle
//	issue    every replica of the ca issues from the next signer
//	renew    every holder of a certificate of the signer before gets a new one
//	retire   roots that no certificate needs leave the bundle
package rotation

import (
	"encoding/json"
	"slices"
	"time"
)

// Step is where a rotation stands.
type Step string

// The steps, in their order.
const (
	Idle    Step = "idle"
	Prepare Step = "prepare"
	Trust   Step = "trust"
	Gate    Step = "gate"
	Issue   Step = "issue"
	Renew   Step = "renew"
	Retire  Step = "retire"
)

// Signer is one signer of the ca: a configuration and the keys that were made for it. Two rotations to one
// configuration are two Signers.
type Signer struct {
	// ID is never used twice; keys and records of the signer are named by it.
	ID uint64 `json:"id"`
	// Name is that of the configuration.
	Name string `json:"name"`
	// Spec is the configuration.
	Spec json.RawMessage `json:"spec,omitempty"`
	// Roots in PEM verify what it issues, one certificate each; known once it is prepared.
	Roots []string `json:"roots,omitempty"`
	// Kept is what the signer has made and must find again, such as its intermediate; nothing secret.
	Kept json.RawMessage `json:"kept,omitempty"`
}

// State is what the replicas of a ca have in common, and find again after a restart. Its methods return changed copies.
type State struct {
	// Epoch is counted up when a ca is restored from a backup, so that generations from before the backup are no longer
	// mistaken for later ones.
	Epoch uint64 `json:"epoch"`
	// LastID is the greatest ID of a Signer that was ever used.
	LastID uint64 `json:"lastID"`
	// Current issues certificates.
	Current Signer `json:"current"`
	// Next is what a rotation leads to; nil before one, and once it has become Current.
	Next *Signer `json:"next,omitempty"`
	// Old have issued certificates that are in use, or are on their way out of the bundle.
	Old []Signer `json:"old,omitempty"`

	Step Step `json:"step"`
	// Since is when the step began.
	Since time.Time `json:"since"`
	// Began is when the rotation began, Reason why, in words of whoever began it.
	Began  time.Time `json:"began,omitzero"`
	Reason string    `json:"reason,omitempty"`
	// Paused stops Advance; what runs goes on.
	Paused bool `json:"paused,omitempty"`
	// Compromised means that somebody else may have the keys of Old, so that they are not trusted for longer than
	// necessary: whoever has not renewed within CompromisedGrace loses its certificate.
	Compromised bool `json:"compromised,omitempty"`
	// Accepted are holders that gate, renew and retire do not wait for, because an operator said so.
	Accepted []string `json:"accepted,omitempty"`
	// Gated is the generation of the bundle that the gate waits for.
	Gated uint64 `json:"gated,omitempty"`
}

// CompromisedGrace is how long holders have to renew when keys of their signer may be known to others. Agents that are
// told to renew do so within minutes.
const CompromisedGrace = time.Hour

// First is the State of a ca that starts for the first time, with one signer that all of the mesh trusts from the
// beginning.
func First(current Signer, now time.Time) State {
	return State{LastID: current.ID, Current: current, Step: Idle, Since: now}
}

// Roots are those of the trust bundle in this state, sorted, each once.
func (s State) Roots() []string {
	all := slices.Clone(s.Current.Roots)
	if s.Next != nil && s.Step != Prepare {
		all = append(all, s.Next.Roots...)
	}
	if s.Step != Retire {
		for _, old := range s.Old {
			all = append(all, old.Roots...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Tainted are the IDs of the signers whose certificates agents are to replace now; none outside of Renew. At Issue, a
// replica may issue from the signer before still, and an agent of Istio's renews once for each bundle.
func (s State) Tainted() []uint64 {
	if s.Step != Renew {
		return nil
	}
	var out []uint64
	for _, old := range s.Old {
		out = append(out, old.ID)
	}
	return out
}

// at is the state at another step.
func (s State) at(step Step, now time.Time) State {
	s.Step, s.Since = step, now
	return s
}

// idle ends a rotation.
func (s State) idle(now time.Time) State {
	s.Next, s.Old, s.Reason, s.Began, s.Accepted, s.Gated = nil, nil, "", time.Time{}, nil, 0
	s.Paused, s.Compromised = false, false
	return s.at(Idle, now)
}
