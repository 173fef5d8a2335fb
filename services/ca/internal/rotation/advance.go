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
	// not, or why it does so no longer.
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
	// Unsure is why Behind and Unrenewed may not be all, "" if they are: records that are missing, a replica that has
	// not been heard of.
	Unsure string
}

// maxNamed is how many holders Waits names.
const maxNamed = 20

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

// Holders are those that the step waits for: the gate for who does not trust the next roots, renew for who has a
// certificate of the signer before. They are without those that were accepted.
func (s State) Holders(o Observation, now time.Time) []string {
	var names []string
	switch {
	case s.Step == Gate, s.Step == Retire && s.Compromised:
		names = o.Behind
	case s.Step == Renew && (!s.Compromised || now.Before(s.Since.Add(CompromisedGrace))):
		names = o.Unrenewed
	}
	if len(s.Accepted) == 0 {
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(s.Accepted, name) })
}

// Waits says, in sentences, what the step waits for; nothing if it is done. Of many holders it names some.
func (s State) Waits(o Observation, now time.Time) []string {
	out := s.Unmet(o)
	lagging, says := s.Holders(o, now), "%s does not trust the roots of the next signer yet"
	switch s.Step {
	case Renew:
		says = "%s has a certificate of the signer before"
	case Retire:
		says = "%s trusts roots still whose keys others may have"
	}
	for _, name := range lagging[:min(len(lagging), maxNamed)] {
		out = append(out, fmt.Sprintf(says, name))
	}
	if more := len(lagging) - maxNamed; more > 0 {
		out = append(out, fmt.Sprintf("the same holds for %d more", more))
	}
	return out
}

// Unmet is Waits without the holders.
func (s State) Unmet(o Observation) []string {
	var out []string
	wait := func(ok bool, format string, args ...any) {
		if !ok {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	sure := func() { wait(o.Unsure == "", "not all holders of certificates are known: %s", o.Unsure) }
	published := slices.Equal(o.Published, s.Roots())
	switch s.Step {
	case Prepare:
		wait(len(o.Prepared) > 0, "signer %s has issued no certificate yet%s", s.Next.Name, because(o.Problem))
	case Trust:
		wait(published, "the bundle with the roots of signer %s is not published yet%s", s.Next.Name, because(o.Problem))
	case Gate:
		wait(published && o.Generation >= s.Gated, "the bundle with the roots of signer %s is not published", s.Next.Name)
		wait(o.Problem == "", "signer %s issues no certificates now%s", s.Next.Name, because(o.Problem))
		sure()
	case Issue:
		for _, replica := range o.Replicas {
			wait(false, "replica %s does not issue from signer %s yet", replica, s.Current.Name)
		}
	case Renew:
		if !s.Compromised {
			sure()
		}
	case Retire:
		wait(published, "the bundle without the roots of signers before is not published yet%s", because(o.Problem))
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
