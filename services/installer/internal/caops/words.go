package caops

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/installer/internal/table"
)

// Idle is the step of a ca without a rotation.
const Idle = "idle"

// steps say what each step waits for.
var steps = map[string]string{
	Idle:      "no rotation is under way",
	"prepare": "the next signer makes its keys and issues a certificate, which the ca checks",
	"trust":   "the roots of the next signer go into the trust bundle",
	"gate":    "every holder of a certificate comes to trust the next signer's roots",
	"issue":   "every replica of the ca issues from the new signer",
	"renew":   "every certificate of the signer before is replaced",
	"retire":  "roots that no certificate needs leave the trust bundle",
}

// laggards say what those do not have that a step waits for.
var laggards = map[string]string{
	"gate":   "do not trust the next roots yet",
	"renew":  "have a certificate of the signer before",
	"retire": "trust roots still that are to go",
}

// Lines are a status as people read it; now is for how long ago things were.
func Lines(s *caapi.Status, now time.Time) []string {
	out := rows(
		"trust domain", s.TrustDomain,
		"trust bundle", fmt.Sprintf("generation %d of epoch %d, acknowledged by %s", s.Generation, s.Epoch, acknowledged(s.Holders)),
		"step", flat(s.Step)+since(s.Since, now)+because(steps[s.Step]),
		"rotation", begun(s, now),
		"paused", when(s.Paused, "yes; `fairlead ca rotate --resume` goes on"),
		"compromised", when(s.Compromised, "yes: the renewal ends an hour after it began, also for those who have not renewed"),
		"accepted", strings.Join(s.Accepted, ", "),
		"leader", leader(s),
		"unknown", unknown(s.Holders),
	)
	out = append(out, bullets("waits", waits(s))...)
	out = append(out, bullets("problems", s.Problems)...)
	out = append(out, signers(s)...)
	out = append(out, replicas(s, now)...)
	return append(out, lagging(s)...) // the longest is last
}

// named is how many holders one line names.
const named = 3

// Summary is a status in one line: the step, and what it waits for.
func Summary(s *caapi.Status) string {
	text := flat(s.Step)
	if s.Paused {
		text += ", paused"
	}
	parts := waits(s)
	if n := s.Lagging.Total; n > 0 {
		names := lists.Map(s.Lagging.First[:min(named, len(s.Lagging.First))], func(h caapi.Holder) string { return h.Name })
		if n > len(names) {
			names = append(names, "…")
		}
		parts[len(parts)-1] += ": " + strings.Join(names, ", ")
	}
	for _, p := range s.Problems {
		parts = append(parts, "problem: "+p)
	}
	return flat(text + because(strings.Join(parts, "; ")))
}

// waits are what the step waits for; the last one counts holders, if there are some.
func waits(s *caapi.Status) []string {
	all := slices.Clone(s.Waits)
	if n := s.Lagging.Total; n > 0 {
		all = append(all, count(n, "holder", "holders")+" that "+singular(n, cmp.Or(laggards[s.Step], "have something to do")))
	}
	return all
}

// singular makes words about several be of one.
func singular(n int, words string) string {
	if n != 1 {
		return words
	}
	return strings.NewReplacer("do not", "does not", "have ", "has ", "trust roots", "trusts roots").Replace(words)
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// rows prints names with the values that are not empty.
func rows(pairs ...string) (out []string) {
	for pair := range slices.Chunk(pairs, 2) {
		if value := flat(pair[1]); value != "" {
			out = append(out, fmt.Sprintf("%-14s %s", pair[0]+":", value))
		}
	}
	return out
}

func bullets(head string, list []string) (out []string) {
	if len(list) == 0 {
		return nil
	}
	out = append(out, "", head+":")
	for _, text := range list {
		out = append(out, "  - "+flat(text))
	}
	return out
}

func begun(s *caapi.Status, now time.Time) string {
	if s.Began.IsZero() {
		return ""
	}
	return "began" + strings.TrimPrefix(since(s.Began, now), " since") + because(s.Reason)
}

func leader(s *caapi.Status) string {
	if s.Leader == "" || s.Leader == s.Replica {
		return cmp.Or(s.Leader, "none; "+s.Replica+" answers")
	}
	return s.Leader + "; this is what " + s.Replica + " says"
}

func acknowledged(h caapi.Holders) string {
	return fmt.Sprintf("%d of %s", h.Acknowledged, count(h.Total, "holder", "holders"))
}

func unknown(h caapi.Holders) string {
	if h.UnknownUntil.IsZero() {
		return ""
	}
	return "until " + stamp(h.UnknownUntil) + " certificates may be in use that the ca has no record of" + because(h.UnknownReason)
}

func lagging(s *caapi.Status) []string {
	if len(s.Lagging.First) == 0 {
		return nil
	}
	tab := &table.Table{Header: []string{"HOLDER", "EXPIRES", "GENERATION", "SIGNER", "IDENTITY"}}
	for _, h := range s.Lagging.First {
		identity := h.Identity
		if strings.HasPrefix(h.Name, identity) {
			identity = "" // the name has it, and the serial number
		}
		tab.Add(h.Name, stamp(h.NotAfter), fmt.Sprint(h.Generation), fmt.Sprint(h.Signer), identity)
	}
	out := append([]string{""}, tab.Lines()...)
	if more := s.Lagging.Total - len(s.Lagging.First); more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return out
}

func signers(s *caapi.Status) []string {
	tab := &table.Table{Header: []string{"SIGNER", "NAME", "ROLE", "KIND", "ROOTS", "HOLDERS", "ENDS", "PROBLEM"}}
	for _, signer := range s.Signers {
		var roots []string
		for _, r := range signer.Roots {
			roots = append(roots, Short(r))
		}
		tab.Add(fmt.Sprint(signer.ID), signer.Name, signer.Role, signer.Kind, strings.Join(roots, ","), fmt.Sprint(s.Holders.BySigner[signer.ID]),
			stamp(signer.NotAfter), signer.Problem)
	}
	return append([]string{""}, tab.Lines()...)
}

func replicas(s *caapi.Status, now time.Time) []string {
	if len(s.Replicas) == 0 {
		return nil
	}
	tab := &table.Table{Header: []string{"REPLICA", "LEADS", "SIGNER", "SEEN", "PROBLEM"}}
	for _, r := range s.Replicas {
		tab.Add(r.Name, when(r.Name == s.Leader, "yes"), fmt.Sprint(r.Signer), age(r.Seen, now), r.Problem)
	}
	return append([]string{""}, tab.Lines()...)
}

// shortHash is how many hexadecimal digits of a root's fingerprint tables have.
const shortHash = 12

// Short is the beginning of a root's fingerprint.
func Short(r caapi.Root) string { return r.SHA256[:min(len(r.SHA256), shortHash)] }

// RootsTable lists roots.
func RootsTable(roots []caapi.Root) *table.Table {
	tab := &table.Table{Header: []string{"SHA256", "ENDS", "SUBJECT"}}
	for _, r := range roots {
		tab.Add(r.SHA256, stamp(r.NotAfter), r.Subject)
	}
	return tab
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// age is how long ago t was, in whole seconds. The clocks of two machines may differ: it is never negative.
func age(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return max(now.Sub(t), 0).Truncate(time.Second).String() + " ago"
}

func since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf(" since %s (%s)", stamp(t), age(t, now))
}

func because(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

func when(on bool, text string) string {
	if on {
		return text
	}
	return ""
}

// flat makes a text one line.
func flat(text string) string { return strings.Join(strings.Fields(text), " ") }
