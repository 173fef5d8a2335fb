package authzdiff

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fairlead.dev/pkg/authz"
)

// maxNodes bounds the classes of requests that are followed at once.
const maxNodes = 100_000

// problem is the comparison of two sets, whose rules are numbered together: a rule that both have is one.
type problem struct {
	builder
	sets      [2]*authz.Set
	clauses   []clause
	rules     []rule
	lists     [2]lists
	variables []*variable
	// local is the place of each match within its variable, and at that of the variable.
	local, at []int
}

// clause has matches, by number. last is the last variable of them, -1 if there is none.
type clause struct {
	matches []int
	last    int
}

// rule has the numbers of its clauses; each part is true if one of its clauses is, or it has none.
type rule struct{ from, to, when []int }

// lists are the rules of a set, in the order of evaluation.
type lists struct {
	custom      []custom
	deny, allow []int
	allows      bool
}

// custom are the rules that ask a provider. refuses is true if it is known to refuse everything.
type custom struct {
	provider string
	refuses  bool
	rules    []int
}

func newProblem(ctx context.Context, before, after *authz.Set, o Options) *problem {
	p := &problem{builder: builder{o: o, ended: func() bool { return ctx.Err() != nil }}, sets: [2]*authz.Set{before, after}}
	matchOf, clauseOf, ruleOf := map[string]int{}, map[string]int{}, map[string]int{}
	number := func(m authz.Match) int {
		k := matchKey(&m)
		i, ok := matchOf[k]
		if !ok {
			i = len(p.matches)
			matchOf[k] = i
			p.matches = append(p.matches, &m)
		}
		return i
	}
	part := func(owner string, list []authz.Clause) (out []int) {
		for n, c := range list {
			var all []int
			for _, m := range c {
				all = append(all, number(m))
			}
			k := fmt.Sprint(owner, n, all)
			i, ok := clauseOf[k]
			if !ok {
				i = len(p.clauses)
				clauseOf[k] = i
				p.clauses = append(p.clauses, clause{matches: all})
			}
			out = append(out, i)
		}
		return out
	}
	numbers := func(rules authz.Rules) (out []int) {
		for _, r := range rules.List {
			f := r.HTTP
			if o.TCP {
				f = r.TCP
			}
			if f == nil {
				continue
			}
			made := rule{part(r.Name+" from", f.From), part(r.Name+" to", f.To), part(r.Name+" when", []authz.Clause{f.When})}
			k := fmt.Sprint(r.Name, made)
			i, ok := ruleOf[k]
			if !ok {
				i = len(p.rules)
				ruleOf[k] = i
				p.rules = append(p.rules, made)
			}
			out = append(out, i)
		}
		return out
	}
	for i, s := range p.sets {
		l := lists{deny: numbers(s.Deny.Enforced), allow: numbers(s.Allow.Enforced), allows: len(s.Allow.Enforced.Policies) > 0}
		for _, c := range s.Custom {
			if answer := o.Answers[i][c.Name]; answer != authz.Allows {
				l.custom = append(l.custom, custom{c.Name, answer == authz.Refuses, numbers(c.Enforced)})
			}
		}
		p.lists[i] = l
	}
	p.divide()
	return p
}

// matchKey names what a match compares.
func matchKey(m *authz.Match) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d %q %t", m.Field, m.Key, m.Not)
	for _, v := range m.Values {
		fmt.Fprintf(&out, " %d%q%t %d%q%t %s %d %t", v.String.Kind, v.String.Text, v.String.IgnoreCase, v.Subject.Kind, v.Subject.Text,
			v.Subject.IgnoreCase, v.CIDR, v.Port, v.List)
	}
	return out.String()
}

// divide makes the variables: those of rules that only one set has first, as they end the search soonest, and the
// principal last, so that all callers are found for whom there is a change.
func (p *problem) divide() {
	shared := map[int]int{}
	for i := range p.lists {
		for _, r := range p.lists[i].all() {
			shared[r] |= 1 << i
		}
	}
	weight := map[string]int{}
	byName := map[string][]int{}
	for i, m := range p.matches {
		name := variableOf(m)
		byName[name] = append(byName[name], i)
	}
	for i, r := range p.rules {
		for _, c := range slices.Concat(r.from, r.to, r.when) {
			for _, m := range p.clauses[c].matches {
				name := variableOf(p.matches[m])
				if weight[name]++; shared[i] != 3 {
					weight[name] += 1000
				}
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(byName), func(a, b string) int {
		switch {
		case a == principal:
			return 1
		case b == principal:
			return -1
		case weight[a] != weight[b]:
			return weight[b] - weight[a]
		}
		return strings.Compare(a, b)
	})
	p.local, p.at = make([]int, len(p.matches)), make([]int, len(p.matches))
	for n, name := range names {
		for i, m := range byName[name] {
			p.local[m], p.at[m] = i, n
		}
		p.variables = append(p.variables, p.variable(name, byName[name]))
	}
	for i := range p.clauses {
		p.clauses[i].last = -1
		for _, m := range p.clauses[i].matches {
			p.clauses[i].last = max(p.clauses[i].last, p.at[m])
		}
	}
}

func (l *lists) all() []int {
	out := slices.Concat(l.deny, l.allow)
	for _, c := range l.custom {
		out = append(out, c.rules...)
	}
	return out
}

// States of a clause, and of a rule.
const (
	open byte = iota
	yes
	no
)

// node is a class of requests, of which the variables of earlier layers are known.
type node struct {
	clauses []byte
	parent  *node
	value   int
}

// explore follows the variables.
func (p *problem) explore() []Change {
	first := &node{clauses: make([]byte, len(p.clauses))}
	for i, c := range p.clauses {
		if c.last < 0 {
			first.clauses[i] = yes
		}
	}
	found := map[string]*finding{}
	layer := []*node{}
	if p.settle(first, 0, found) {
		layer = append(layer, first)
	}
	for depth, v := range p.variables {
		var next []*node
		seen := map[string]bool{}
		limit := max(1000, min(maxNodes, 200<<20/(len(p.clauses)+100)))
		for _, n := range layer {
			for i := range v.values {
				if p.ended() {
					return nil
				}
				child := p.child(n, depth, i)
				if !p.settle(child, depth+1, found) || seen[string(child.clauses)] {
					continue
				}
				if len(next) >= limit {
					p.bounded = append(p.bounded, fmt.Sprintf("there are more than %d classes of requests to follow", limit))
					break
				}
				seen[string(child.clauses)] = true
				next = append(next, child)
			}
		}
		layer = next
	}
	var out []Change
	for _, k := range slices.Sorted(maps.Keys(found)) {
		out = append(out, p.changes(found[k])...)
	}
	return out
}

// child is the class of a node's requests in which a variable has one of its values.
func (p *problem) child(n *node, depth, value int) *node {
	out := &node{clauses: slices.Clone(n.clauses), parent: n, value: value}
	met := p.variables[depth].values[value].met
	for i, c := range p.clauses {
		if out.clauses[i] != open {
			continue
		}
		for _, m := range c.matches {
			if p.at[m] == depth && !met[p.local[m]] {
				out.clauses[i] = no
				break
			}
		}
		if out.clauses[i] == open && c.last <= depth {
			out.clauses[i] = yes
		}
	}
	return out
}

// state is that of a rule in a node.
func (p *problem) state(n *node, r int) byte {
	out := yes
	for _, part := range [][]int{p.rules[r].from, p.rules[r].to, p.rules[r].when} {
		if len(part) == 0 {
			continue
		}
		best := no
		for _, c := range part {
			switch n.clauses[c] {
			case yes:
				best = yes
			case open:
				if best == no {
					best = open
				}
			}
		}
		switch best {
		case no:
			return no
		case open:
			out = open
		}
	}
	return out
}

// settle reports whether a node must be followed. It records a change that is certain, and makes nodes equal that
// differ in what no longer matters.
func (p *problem) settle(n *node, depth int, found map[string]*finding) bool {
	states := make([]byte, len(p.rules))
	for i := range p.rules {
		states[i] = p.state(n, i)
	}
	var rest [2]remains
	for i := range p.lists {
		rest[i] = p.remains(&p.lists[i], states)
	}
	if rest[0].equal(&rest[1]) {
		return false
	}
	if rest[0].refused && rest[1].refused {
		return false
	}
	if rest[0].settled && rest[1].settled {
		if rest[0].outcome != rest[1].outcome {
			p.record(n, depth, &rest, found)
		}
		return false
	}
	matters := make([]bool, len(p.rules))
	for i := range rest {
		for _, l := range rest[i].lists {
			for _, r := range l.rules {
				matters[r] = true
			}
		}
	}
	keep := make([]bool, len(p.clauses))
	for i, r := range p.rules {
		if !matters[i] {
			continue
		}
		for _, part := range [][]int{r.from, r.to, r.when} {
			met := slices.ContainsFunc(part, func(c int) bool { return n.clauses[c] == yes })
			for _, c := range part {
				keep[c] = true
				if met {
					n.clauses[c] = yes
				}
			}
		}
	}
	for i := range n.clauses {
		if !keep[i] {
			n.clauses[i] = no
		}
	}
	return true
}

// remains is what may still decide in a set. If it is settled, outcome names the consequence and key what decides.
type remains struct {
	lists        []remaining
	settled      bool
	outcome, key string
	// refused is true if the request is denied, by whatever.
	refused bool
}

// remaining are the rules of a list that may match, up to the first that does. refuses is that of custom.
type remaining struct {
	name    string
	rules   []int
	state   byte
	refuses bool
}

func remainingOf(name string, list []int, states []byte) remaining {
	out := remaining{name: name, state: no}
	for _, r := range list {
		if states[r] == no {
			continue
		}
		out.rules = append(out.rules, r)
		if states[r] == yes {
			if len(out.rules) == 1 {
				out.state = yes
			}
			return out
		}
		out.state = open
	}
	return out
}

func (p *problem) remains(l *lists, states []byte) (out remains) {
	deny, allow := remainingOf("deny", l.deny, states), remainingOf("allow", l.allow, states)
	var asking []remaining
	for _, c := range l.custom {
		if r := remainingOf("custom "+c.provider, c.rules, states); r.state != no {
			r.refuses = c.refuses
			asking = append(asking, r)
		}
	}
	decided := func(outcome, key string, lists ...remaining) remains {
		return remains{lists, true, outcome, outcome + " " + key, outcome == denied}
	}
	// The first providers whose answer is known to be no decide before everything else.
	for i, a := range asking {
		if !a.refuses {
			continue
		}
		if a.state == yes && !slices.ContainsFunc(asking[:i], func(r remaining) bool { return r.state == open && r.refuses }) {
			return decided(denied, a.key(), a)
		}
		return remains{lists: append(asking, deny, p.withAllows(l, allow))}
	}
	switch {
	case deny.state == yes:
		return decided(denied, deny.key(), deny)
	case deny.state == no && l.allows && allow.state == no:
		return decided(denied, "no rule", remaining{name: "none"})
	case deny.state == open || allow.state == open || slices.ContainsFunc(asking, func(r remaining) bool { return r.state == open }):
		refused := l.allows && allow.state == no
		if refused {
			asking = nil
		}
		return remains{lists: append(asking, deny, p.withAllows(l, allow)), refused: refused}
	}
	if len(asking) > 0 {
		outcome := "asks"
		for _, a := range asking {
			outcome += " " + a.name
		}
		return decided(outcome, asking[0].key(), append(slices.Clone(asking), p.withAllows(l, allow))...)
	}
	return decided("allowed", allow.key(), p.withAllows(l, allow))
}

const denied = "denied"

// withAllows tells an ALLOW list without rules from none.
func (p *problem) withAllows(l *lists, r remaining) remaining {
	if l.allows {
		r.name = "allows"
	}
	return r
}

func (r remaining) key() string {
	if len(r.rules) == 0 {
		return ""
	}
	return fmt.Sprint(r.name, " ", r.rules[0])
}

func (r *remains) equal(o *remains) bool {
	return slices.EqualFunc(r.lists, o.lists, func(a, b remaining) bool {
		return a.name == b.name && a.refuses == b.refuses && slices.Equal(a.rules, b.rules)
	})
}
