package rotation

import (
	"fmt"
	"slices"
	"time"
)

// Observation is what the ca sees at one time. Holders are the names of those who have certificates that are valid
// still: identity, and Pod or address.
type Observation struct {
	// Prepared has the roots of Next in PEM once it has issued a certificate that passed every check. Problem is why
	// not.
	Prepared []string
	Problem  string
	// Generation is that of the newest published bundle, Published its roots as State.Roots has them.
	Generation uint64
	Published  []string
	// Behind are the holders that have not acknowledged Generation, with whatever else must have the roots: webhooks,
	// remote clusters, machines.
	Behind []string
	// Replicas are those that do not issue from Current yet, or that nobody has heard of for a while.
	Replicas []string
	// Unrenewed are the holders whose only certificate is of one of Old.
	Unrenewed []string
}

// Advance returns the state that follows when the step is done, and the state itself, with false, while it is not.
func (s State) Advance(o Observation, now time.Time) (State, bool) {
	if s.Paused || s.Step == Idle || len(s.Waits(o, now)) > 0 {
		return s, false
	}
	switch s.Step {
	case Prepare:
		next := *s.Next
		next.Roots = slices.Sorted(slices.Values(o.Prepared))
		s.Next = &next
		return s.at(Trust, now), true
	case Trust:
		s.Gated = o.Generation
		return s.at(Gate, now), true
	case Gate:
		s.Old = append(slices.Clone(s.Old), s.Current)
		s.Current, s.Next = *s.Next, nil
		return s.at(Issue, now), true
	case Issue:
		return s.at(Renew, now), true
	case Renew:
		return s.at(Retire, now), true
	case Retire:
		return s.idle(now), true
	}
	return s, false
}

// Waits says, in sentences, what the step waits for; nothing if it is done.
func (s State) Waits(o Observation, now time.Time) []string {
	var out []string
	wait := func(ok bool, format string, args ...any) {
		if !ok {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	holders := func(names []string, format string) {
		for _, name := range names {
			wait(slices.Contains(s.Accepted, name), format, name)
		}
	}
	published := slices.Equal(o.Published, s.Roots())
	switch s.Step {
	case Prepare:
		wait(len(o.Prepared) > 0, "signer %s has issued no certificate yet%s", s.Next.Name, because(o.Problem))
	case Trust:
		wait(published, "the bundle with the roots of signer %s is not published yet%s", s.Next.Name, because(o.Problem))
	case Gate:
		wait(published && o.Generation >= s.Gated, "the bundle with the roots of signer %s is not published", s.Next.Name)
		holders(o.Behind, "%s does not trust the roots of the next signer yet")
	case Issue:
		for _, replica := range o.Replicas {
			wait(false, "replica %s does not issue from signer %s yet", replica, s.Current.Name)
		}
	case Renew:
		if !s.Compromised || now.Before(s.Since.Add(CompromisedGrace)) {
			holders(o.Unrenewed, "%s has a certificate of the signer before")
		}
	case Retire:
		wait(published, "the bundle without the roots of signers before is not published yet%s", because(o.Problem))
		if s.Compromised {
			holders(o.Behind, "%s trusts roots still whose keys others may have")
		}
	case Idle:
	}
	return out
}

func because(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + problem
}
