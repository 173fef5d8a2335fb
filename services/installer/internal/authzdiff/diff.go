// Package authzdiff finds the requests about which two sets of rules decide otherwise. It does not try requests: it
// divides the values of every part of a request into classes that no rule tells apart, and follows the classes, part by
// part, as long as the rules that are left of both sets differ. So it misses no change, but for what Result.Bounded
// names.
package authzdiff

import (
	"cmp"
	"context"
	"slices"

	"fairlead.dev/pkg/authz"
)

// Options bound what requests there are.
type Options struct {
	// TCP compares decisions about connections whose requests the proxy does not see.
	TCP bool
	// Identities are those of callers that are known: changes name those concerned.
	Identities []string
	// Ports are those of the workloads.
	Ports []uint32
	// Answers of providers that are known, by name: those before the change, and those after it.
	Answers [2]map[string]authz.Answer
}

// Change is a class of requests about which the sets decide otherwise: those that one rule decided before, or none, and
// another one, or none, decides now. Where not all callers can send one of the requests, there are several changes.
type Change struct {
	// Request represents the class.
	Request  authz.Request
	Old, New authz.Decision
	// Anybody is true if no rule asks who calls. Otherwise Callers are the known identities for which there are such
	// requests, "" among them for callers without a certificate, and Others is an identity that is not known; "" for
	// none.
	Anybody bool
	Callers []string
	Others  string
}

// Result are all changes, sorted by the rules that decide.
type Result struct {
	Changes []Change
	// Bounded says why there may be more; empty if there are none.
	Bounded []string
}

// Compare compares two sets of rules. The result is Bounded if ctx ends before it is complete.
func Compare(ctx context.Context, before, after *authz.Set, o Options) Result {
	o.Identities = slices.Compact(slices.Sorted(slices.Values(o.Identities)))
	p := newProblem(ctx, before, after, o)
	found := p.explore()
	slices.SortStableFunc(found, func(a, b Change) int {
		return cmp.Or(-cmp.Compare(a.New.Outcome, b.New.Outcome), cmp.Compare(Key(a.Old), Key(b.Old)), cmp.Compare(Key(a.New), Key(b.New)),
			cmp.Compare(a.Request.Principal, b.Request.Principal))
	})
	if p.ended() {
		p.bounded = append(p.bounded, "the comparison was interrupted")
	}
	slices.Sort(p.bounded)
	return Result{Changes: found, Bounded: slices.Compact(p.bounded)}
}

// Key names what decides: decisions with one key have one outcome, of one rule.
func Key(d authz.Decision) string {
	out := d.Outcome.String() + " " + d.Action
	if d.Rule != nil {
		out += " " + d.Rule.Name
	}
	for _, p := range d.Providers {
		out += " " + p
	}
	return out
}

// Differ reports whether decisions have other consequences.
func Differ(a, b authz.Decision) bool {
	return a.Outcome != b.Outcome || !slices.Equal(a.Providers, b.Providers)
}
