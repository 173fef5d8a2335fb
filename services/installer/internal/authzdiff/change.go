package authzdiff

import (
	"slices"

	"fairlead.dev/pkg/authz"
)

// finding are the requests of one change, while they are searched for.
type finding struct {
	// at is one of the requests that anybody may send, depth the number of its variables that are known; nil if it
	// matters who calls.
	at    *node
	depth int
	// callers are the values of the principal for which a request without one is among them; requests are in the order
	// in which they were found.
	callers  map[*node][]int
	requests []*node
}

// record notes a change.
func (p *problem) record(n *node, depth int, rest *[2]remains, found map[string]*finding) {
	k := rest[0].key + " > " + rest[1].key
	f := found[k]
	if f == nil {
		f = &finding{callers: map[*node][]int{}}
		found[k] = f
	}
	switch v := p.asked(); {
	case v == nil || depth < len(p.variables):
		if f.at == nil {
			f.at, f.depth = n, depth
		}
	default:
		if f.callers[n.parent] == nil {
			f.requests = append(f.requests, n.parent)
		}
		f.callers[n.parent] = append(f.callers[n.parent], n.value)
	}
}

// asked is the variable of the principal, which is the last; nil if no rule asks who calls.
func (p *problem) asked() *variable {
	if n := len(p.variables); n > 0 && p.variables[n-1].name == principal {
		return p.variables[n-1]
	}
	return nil
}

// changes makes changes of a finding: one if it does not matter who calls, else as few as represent requests of all
// callers.
func (p *problem) changes(f *finding) (out []Change) {
	if f.at != nil {
		c := p.change(f.at, f.depth, -1)
		c.Anybody = true
		return append(out, c)
	}
	done := map[int]bool{}
	left := func(n *node) (callers []int) {
		for _, i := range f.callers[n] {
			if !done[i] {
				callers = append(callers, i)
			}
		}
		return callers
	}
	for {
		var best *node
		for _, n := range f.requests {
			if best == nil || len(left(n)) > len(left(best)) {
				best = n
			}
		}
		callers := left(best)
		if len(callers) == 0 {
			return out
		}
		for _, i := range callers {
			done[i] = true
		}
		out = append(out, p.withCallers(best, callers))
	}
}

// change makes a change of a request that is known up to some variables, and its caller, -1 for any.
func (p *problem) change(n *node, depth, caller int) Change {
	values := make([]int, len(p.variables))
	for d := depth; d > 0; n, d = n.parent, d-1 {
		values[d-1] = n.value
	}
	if caller >= 0 {
		values[len(values)-1] = caller
	}
	r := blank()
	r.TCP = p.o.TCP
	if p.o.TCP {
		r.Method, r.Path = "", ""
	}
	for i, v := range p.variables {
		v.values[values[i]].set(&r)
	}
	c := Change{Request: r}
	for i, d := range []*authz.Decision{&c.Old, &c.New} {
		r.Answers = p.o.Answers[i]
		*d = p.sets[i].Decide(r)
	}
	if !Differ(c.Old, c.New) {
		p.bounded = append(p.bounded, "a claim is compared as a value and by claims within it")
	}
	return c
}

// withCallers makes a change for some callers, by a known one if there is one.
func (p *problem) withCallers(n *node, callers []int) Change {
	v := p.asked()
	var list []string
	chosen, known := callers[0], map[int]bool{}
	for _, identity := range append([]string{""}, p.o.Identities...) {
		i := p.class(v, identity)
		if !slices.Contains(callers, i) {
			continue
		}
		if list = append(list, identity); identity != "" && v.values[i].text == identity && len(known) == 0 {
			chosen = i
		}
		known[i] = true
	}
	c := p.change(n, len(p.variables)-1, chosen)
	c.Callers = list
	for _, i := range callers {
		if !known[i] {
			c.Others = v.values[i].text
			break
		}
	}
	return c
}

// class is the place of the value of the principal that an identity is one of.
func (p *problem) class(v *variable, identity string) int {
	r := blank()
	r.Principal = identity
	return slices.IndexFunc(v.values, func(val value) bool {
		for i, m := range v.matches {
			if p.matches[m].Matches(&r) != val.met[i] {
				return false
			}
		}
		return true
	})
}
