// Package authzcover finds rules of policies that could be left out: those that match no request, and those that others
// cover, wherever they apply.
package authzcover

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/installer/internal/authzdiff"
)

// maxTogether bounds the rules of a workload among which those are looked for that several others cover together.
const maxTogether = 200

// Workloads are some to which the same rules apply.
type Workloads struct {
	// Name names them in notes.
	Name  string
	Rules *authz.Set
	// Answers has the answers of providers that answer every request, or every TCP connection, alike.
	Answers func(tcp bool) map[string]authz.Answer
}

// view are the rules of workloads: left is without those that are found to be covered.
type view struct {
	Workloads
	left *authz.Set
	// allow has the ALLOW rules.
	allow *index
}

// place is a rule at a view, in a group of its set.
type place struct {
	*view
	group int
	rule  *authz.Rule
	// never says why the rule matches nothing there. Otherwise found are requests that it matches, an HTTP request and
	// a connection, and complete is false if it may match others only.
	never    string
	found    []authz.Request
	complete bool
}

// Covers are the rules of a mesh by name, at all places where they apply.
type Covers struct {
	views  []*view
	places map[string][]*place
}

// Read reads the rules of all workloads and tries requests at each. The error is that of ctx.
func Read(ctx context.Context, all []Workloads) (*Covers, error) {
	c := &Covers{places: map[string][]*place{}}
	for _, w := range all {
		v := &view{Workloads: w, left: w.Rules, allow: newIndex(w.Rules.Allow.Enforced.List)}
		c.views = append(c.views, v)
		for i, g := range w.Rules.ByAction() {
			for _, r := range g.Rules.List {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				p := &place{view: v, group: i, rule: r}
				p.found, p.complete = examples(ctx, r)
				p.never = never(r, p.found, p.complete)
				c.places[r.Name] = append(c.places[r.Name], p)
			}
		}
	}
	return c, ctx.Err()
}

// Never says why a rule matches nothing at any place; empty if it may.
func (c *Covers) Never(r *authz.Rule) string {
	all := c.places[r.Name]
	if slices.ContainsFunc(all, func(p *place) bool { return p.never == "" }) {
		return ""
	}
	if len(all) > 0 {
		return all[0].never
	}
	return r.Never
}

// Find says by name which rules are covered wherever they apply, and by what. All of them, or any, can be left out:
// each is looked at without those that are found before, but for ALLOW rules where it decides otherwise than these. The
// error is that of ctx.
func (c *Covers) Find(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	names := slices.SortedFunc(maps.Keys(c.places), func(a, b string) int { return Order(c.places[a][0].rule, c.places[b][0].rule) })
	for _, by := range []func(*place, context.Context) string{(*place).coveredByOne, (*place).coveredTogether} {
		for _, name := range names {
			if out[name] != "" {
				continue
			}
			var texts []string
			for _, p := range c.places[name] {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				if p.never != "" {
					continue
				}
				text := ""
				if p.complete {
					text = by(p, ctx)
				}
				if texts = append(texts, text); text == "" {
					break
				}
			}
			if len(texts) == 0 || slices.Contains(texts, "") || ctx.Err() != nil {
				continue
			}
			slices.Sort(texts)
			out[name] = strings.Join(slices.Compact(texts), "; elsewhere ")
			for _, p := range c.places[name] {
				p.left = without(p.left, p.rule)
			}
		}
	}
	return out, ctx.Err()
}

// Notes say what was not looked at.
func (c *Covers) Notes() (out []string) {
	for _, v := range c.views {
		if n := v.count(); n > maxTogether {
			out = append(out, fmt.Sprintf("at %s %d rules apply: whether several of them together cover another one is looked at up to %d rules",
				v.Name, n, maxTogether))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.places)) {
		if p := c.places[name][0]; p.never == "" && !p.complete {
			out = append(out, ruleText(p.rule)+" compares more than can be tried: whether others cover it is not known")
		}
	}
	return out
}

// Order is that of the objects, and of the rules in them.
func Order(a, b *authz.Rule) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Policy, b.Policy), cmp.Compare(a.Index, b.Index))
}

func (v *view) count() (n int) {
	for _, g := range v.Rules.ByAction() {
		n += len(g.Rules.List)
	}
	return n
}

// without is a set without a rule. Policies stay: an ALLOW policy without rules denies.
func without(set *authz.Set, r *authz.Rule) *authz.Set {
	return set.Map(func(o *authz.Rule) *authz.Rule {
		if o == r {
			return nil
		}
		return o
	})
}

// least is the set in which the rule matters most, if some of those that are found to be covered are left out: no other
// rule is in it that decides as this one does, and every rule that decides otherwise is.
func (p *place) least(g authz.ActionRules) *authz.Set {
	if g.Action == authz.Allow {
		return p.left
	}
	set := *p.left
	set.Allow = p.Rules.Allow
	return &set
}

// decides reports whether the group of the rule decides about requests.
func (p *place) decides(g authz.ActionRules) bool { return !g.DryRun && g.Action != authz.Audit }

// matters reports whether one of the requests that were found is decided otherwise without the rule, also if all ALLOW
// rules are there.
func (p *place) matters(g authz.ActionRules) bool {
	return slices.ContainsFunc(p.found, func(req authz.Request) bool {
		req.Answers = p.Answers(req.TCP)
		with := *p.least(g)
		with.Allow.Enforced.List = p.allow.rules(req)
		return authzdiff.Differ(with.Decide(req), without(&with, p.rule).Decide(req))
	})
}

// coveredByOne names another rule that matches all that the rule matches, and decides it in the same way.
func (p *place) coveredByOne(ctx context.Context) string {
	g := p.left.ByAction()[p.group]
	decides := p.decides(g)
	if decides && p.matters(g) {
		return ""
	}
	covers := func(other *authz.Rule) bool {
		return lists.All(p.found, other.Matches) && same(ctx, alone(other), alone(other, p.rule), noAnswers)
	}
	others := g.Rules.List
	if decides && g.Action == authz.Allow {
		others = p.allow.rules(p.found[0])
	}
	for _, other := range others {
		// Of two equal rules the later one is covered.
		if other != p.rule && covers(other) &&
			(Order(other, p.rule) < 0 || !same(ctx, alone(p.rule), alone(p.rule, other), noAnswers)) {
			return ruleText(other)
		}
	}
	if decides && g.Action != authz.Deny {
		for _, other := range p.left.Deny.Enforced.List {
			if covers(other) {
				return ruleText(other) + ", which denies"
			}
		}
	}
	return ""
}

// coveredTogether says whether several other rules decide all that the rule matches, in the same way.
func (p *place) coveredTogether(ctx context.Context) string {
	g := p.left.ByAction()[p.group]
	if !p.decides(g) || p.count() > maxTogether {
		return ""
	}
	set := p.least(g)
	switch {
	case p.matters(g) || !same(ctx, set, without(set, p.rule), p.Answers):
		return ""
	case g.Action == authz.Deny:
		return "other rules, which deny it or do not allow it"
	}
	return "several rules together"
}

// alone is a set of DENY rules, by which requests are told that these match.
func alone(rules ...*authz.Rule) *authz.Set {
	set := &authz.Set{}
	set.Deny.Enforced.List = rules
	return set
}

// same reports whether two sets decide all requests alike.
func same(ctx context.Context, a, b *authz.Set, answers func(tcp bool) map[string]authz.Answer) bool {
	for _, tcp := range []bool{false, true} {
		known := answers(tcp)
		r := authzdiff.Compare(ctx, a, b, authzdiff.Options{TCP: tcp, Answers: [2]map[string]authz.Answer{known, known}})
		if len(r.Changes)+len(r.Bounded) > 0 {
			return false
		}
	}
	return true
}

func noAnswers(bool) map[string]authz.Answer { return nil }

// examples returns an HTTP request and a connection that a rule matches, as far as it matches any.
func examples(ctx context.Context, r *authz.Rule) (out []authz.Request, complete bool) {
	complete = true
	for _, tcp := range []bool{false, true} {
		result := authzdiff.Compare(ctx, alone(), alone(r), authzdiff.Options{TCP: tcp})
		complete = complete && len(result.Bounded) == 0
		for _, c := range result.Changes {
			out = append(out, c.Request)
		}
	}
	return out, complete
}

// never says why a rule matches no request, of which examples found some; empty if it may.
func never(r *authz.Rule, found []authz.Request, complete bool) string {
	switch {
	case r.HTTP == nil && r.TCP == nil:
		return r.Never
	case !complete || len(found) > 0:
		return ""
	case beyondASCII(r):
		return "it asks for a path with characters beyond ASCII, which proxies see percent-encoded: write é as %C3%A9"
	}
	return "what it asks for excludes each other"
}

// beyondASCII reports whether a rule asks for a path that has characters that paths do not have.
func beyondASCII(r *authz.Rule) bool {
	return r.HTTP != nil && slices.ContainsFunc(slices.Concat(r.HTTP.From, r.HTTP.To, []authz.Clause{r.HTTP.When}), func(c authz.Clause) bool {
		return slices.ContainsFunc(c, func(m authz.Match) bool {
			return m.Field == authz.Path && !m.Not && lists.All(m.Values, func(v authz.Value) bool {
				return strings.ContainsFunc(v.Text, func(r rune) bool { return r > '~' })
			})
		})
	})
}

func ruleText(r *authz.Rule) string {
	return fmt.Sprintf("rule %d of %s/%s", r.Index, r.Namespace, r.Policy)
}
