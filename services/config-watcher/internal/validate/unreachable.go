package validate

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// unreachable warns of rules that get no traffic, because one before them takes it all. Rules that delegate are no
// reason: what their delegates leave is for the rules behind.
func (c *checker) unreachable(vs *networking.VirtualService) {
	var http, tls, tcp rules
	for i, r := range vs.Http {
		at := index("spec.http", i)
		http.open(c, at, len(r.Match), r.Delegate == nil)
		for j, m := range r.Match {
			http.match(c, index(at+".match", j), m, r.Delegate == nil)
		}
	}
	for i, r := range vs.Tls {
		at := index("spec.tls", i)
		tls.open(c, at, len(r.Match), true)
		for j, m := range r.Match {
			tls.match(c, index(at+".match", j), m, true)
		}
	}
	for i, r := range vs.Tcp {
		at := index("spec.tcp", i)
		tcp.open(c, at, len(r.Match), true)
		for j, m := range r.Match {
			tcp.match(c, index(at+".match", j), m, true)
		}
	}
}

// rules is what one list of rules has taken so far.
type rules struct {
	// all is the first rule or match that takes everything.
	all string
	// same are the matches, by their conditions.
	same map[string]string
	// prefixes are matches of a path's beginning, by their other conditions and then by that beginning; lengths are
	// those of the beginnings.
	prefixes map[string]map[string]string
	lengths  []int
}

func (r *rules) warn(c *checker, at, by string) {
	c.remark(at, "is never reached: "+strings.TrimPrefix(by, "spec.")+" takes the same traffic", "remove it, or move it up")
}

// open begins a rule with so many matches; takes is false if the rule leaves traffic to those behind it.
func (r *rules) open(c *checker, at string, matches int, takes bool) {
	switch {
	case r.all != "":
		r.warn(c, at, r.all)
	case matches == 0 && takes:
		r.all = at
	}
}

func (r *rules) match(c *checker, at string, m proto.Message, takes bool) {
	if r.all != "" {
		if !strings.HasPrefix(r.all, at[:strings.LastIndexByte(at, '.')+1]) { // else the rule itself was told
			return
		}
		r.warn(c, at, r.all)
		return
	}
	key, rest, path, beginning := conditions(m)
	if by := r.taken(key, rest, path); by != "" {
		r.warn(c, at, by)
		return
	}
	if !takes {
		return
	}
	if r.same == nil {
		r.same, r.prefixes = map[string]string{}, map[string]map[string]string{}
	}
	r.same[key] = at
	if rest == "" && (path == "" || path == "/") && beginning {
		r.all = at
	}
	if beginning {
		if r.prefixes[rest] == nil {
			r.prefixes[rest] = map[string]string{}
		}
		r.prefixes[rest][path] = at
		if i, found := slices.BinarySearch(r.lengths, len(path)); !found {
			r.lengths = slices.Insert(r.lengths, i, len(path))
		}
	}
}

// taken returns the match before that takes all that one with these conditions would.
func (r *rules) taken(key, rest, path string) string {
	if by := r.same[key]; by != "" {
		return by
	}
	if path == "" {
		return ""
	}
	for _, n := range r.lengths {
		if n > len(path) {
			break
		}
		for _, others := range []string{rest, ""} {
			if by := r.prefixes[others][path[:n]]; by != "" {
				return by
			}
		}
	}
	return ""
}

// conditions returns the conditions of a match as text: all of them, and, for one whose path is compared letter by
// letter, those other than the path, and the path. beginning is true if the path has only to begin so.
func conditions(m proto.Message) (key, rest, path string, beginning bool) {
	m = proto.Clone(m)
	request, ok := m.(*networking.HTTPMatchRequest)
	if !ok {
		return text(m), "", "", false
	}
	request.Name, request.StatPrefix = "", ""
	key = text(request)
	if request.IgnoreUriCase {
		return key, key, "", false
	}
	uri := request.Uri
	request.Uri = nil
	rest = text(request)
	switch t := uri.GetMatchType().(type) {
	case nil:
		return key, rest, "", true
	case *networking.StringMatch_Prefix:
		return key, rest, t.Prefix, true
	case *networking.StringMatch_Exact:
		return key, rest, t.Exact, false
	default:
		return key, rest, "", false
	}
}

func text(m proto.Message) string {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil { // text that is no UTF-8, of which the object is refused
		return fmt.Sprint(m)
	}
	return string(b)
}
