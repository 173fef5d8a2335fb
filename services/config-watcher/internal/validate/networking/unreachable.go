package networking

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/manifest"
)

// unreachable warns of rules and matches that get no traffic because an earlier one takes all of it. A rule that
// delegates is no such earlier one: requests that its delegate does not match go to the rules after it.
func (c Checker) unreachable(vs *networking.VirtualService) {
	var http, tls, tcp routeList
	for at, r := range manifest.Items("spec.http", vs.Http) {
		http.addRule(c, at, len(r.Match), r.Delegate == nil)
		for j, m := range r.Match {
			http.addMatch(c, manifest.Index(at+".match", j), m, r.Delegate == nil)
		}
	}
	for at, r := range manifest.Items("spec.tls", vs.Tls) {
		tls.addRule(c, at, len(r.Match), true)
		for j, m := range r.Match {
			tls.addMatch(c, manifest.Index(at+".match", j), m, true)
		}
	}
	for at, r := range manifest.Items("spec.tcp", vs.Tcp) {
		tcp.addRule(c, at, len(r.Match), true)
		for j, m := range r.Match {
			tcp.addMatch(c, manifest.Index(at+".match", j), m, true)
		}
	}
}

// routeList is what the rules of one list have taken so far.
type routeList struct {
	// all is the path of the first rule or match that takes everything.
	all string
	// same maps the conditions of a match to its path.
	same map[string]string
	// prefixes maps, for matches by path prefix, the other conditions and then the prefix to the path of the match.
	// lengths are the lengths of the prefixes, sorted.
	prefixes map[string]map[string]string
	lengths  []int
}

func (r *routeList) warn(c Checker, at, by string) {
	c.Remark(at, "is never reached: "+strings.TrimPrefix(by, "spec.")+" takes the same traffic", "remove it, or move it up")
}

// addRule adds a rule with a number of matches; takes is false if the rule leaves traffic to those after it.
func (r *routeList) addRule(c Checker, at string, matches int, takes bool) {
	switch {
	case r.all != "":
		r.warn(c, at, r.all)
	case matches == 0 && takes:
		r.all = at
	}
}

func (r *routeList) addMatch(c Checker, at string, m proto.Message, takes bool) {
	if r.all != "" {
		if !strings.HasPrefix(r.all, at[:strings.LastIndexByte(at, '.')+1]) { // otherwise addRule has warned of the whole rule
			return
		}
		r.warn(c, at, r.all)
		return
	}
	key, rest, path, prefix := conditions(m)
	if by := r.coveredBy(key, rest, path); by != "" {
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
	if rest == "" && (path == "" || path == "/") && prefix {
		r.all = at
	}
	if prefix {
		if r.prefixes[rest] == nil {
			r.prefixes[rest] = map[string]string{}
		}
		r.prefixes[rest][path] = at
		if i, found := slices.BinarySearch(r.lengths, len(path)); !found {
			r.lengths = slices.Insert(r.lengths, i, len(path))
		}
	}
}

// coveredBy returns the earlier match that takes all that a match of these conditions would take.
func (r *routeList) coveredBy(key, rest, path string) string {
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

// conditions returns the conditions of a match as text: key has all of them; rest has those without the path, and path
// the path's text, if it is compared by prefix or exactly. prefix is true if it is compared by prefix.
func conditions(m proto.Message) (key, rest, path string, prefix bool) {
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
	if err != nil { // text that is not UTF-8, for which the object is refused
		return fmt.Sprint(m)
	}
	return string(b)
}
