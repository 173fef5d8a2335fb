// Package routematch has the meaning of a route's match, an HTTPMatchRequest of Istio's API: Matches decides a request
// by it, Covers says whether one match takes every request that another would take, and Disjoint whether it takes none
// of them.
package routematch

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// Request is what matches look at.
type Request struct {
	Method string
	// Path as it is sent, without the query.
	Path string
	// Query is the text after the "?". Names and values are compared as they are sent; the first value of a name
	// counts.
	Query  string
	Header http.Header
}

// Match is a match that was read. It is immutable.
type Match struct {
	path            value
	elements        bool
	method          value
	headers, params map[string]value
}

// kind is how a value is compared.
type kind byte

const (
	anything kind = iota
	exact
	prefix
	regex
)

// value is a condition on a text.
type value struct {
	kind  kind
	text  string
	regex *regexp.Regexp
}

// New reads a match; nil matches everything. If elements is true, a prefix of the path matches whole elements: "/a"
// matches "/a" and "/a/b", not "/ab". Of the fields it reads uri, method, headers and queryParams, which are all that
// objects of the Gateway API become. The error names another one that the match has, or a regular expression that
// cannot be compiled.
func New(in *networking.HTTPMatchRequest, elements bool) (*Match, error) {
	for field, given := range map[string]bool{
		"authority": in.GetAuthority() != nil, "scheme": in.GetScheme() != nil, "withoutHeaders": len(in.GetWithoutHeaders()) > 0,
		"ignoreUriCase": in.GetIgnoreUriCase(),
	} {
		if given {
			return nil, fmt.Errorf("%s is not read here", field)
		}
	}
	out := &Match{elements: elements}
	var err error
	if out.path, err = read("uri", in.GetUri()); err != nil {
		return nil, err
	}
	if elements && out.path.kind == prefix {
		out.path.text = strings.TrimRight(out.path.text, "/")
	}
	if out.path.kind == prefix && (out.path.text == "" || out.path.text == "/") || out.path.kind == regex && out.path.text == ".*" {
		out.path = value{}
	}
	if out.method, err = read("method", in.GetMethod()); err != nil {
		return nil, err
	}
	if out.headers, err = readAll("headers", in.GetHeaders(), http.CanonicalHeaderKey); err != nil {
		return nil, err
	}
	out.params, err = readAll("queryParams", in.GetQueryParams(), func(name string) string { return name })
	return out, err
}

func read(field string, in *networking.StringMatch) (value, error) {
	switch t := in.GetMatchType().(type) {
	case nil:
		return value{}, nil
	case *networking.StringMatch_Exact:
		return value{kind: exact, text: t.Exact}, nil
	case *networking.StringMatch_Prefix:
		return value{kind: prefix, text: t.Prefix}, nil
	case *networking.StringMatch_Regex:
		re, err := regexp.Compile("^(?:" + t.Regex + ")$")
		if err != nil {
			return value{}, fmt.Errorf("%s: %w", field, err)
		}
		return value{kind: regex, text: t.Regex, regex: re}, nil
	default:
		return value{}, fmt.Errorf("%s: a match of type %T is not read here", field, t)
	}
}

func readAll(field string, in map[string]*networking.StringMatch, name func(string) string) (map[string]value, error) {
	out := make(map[string]value, len(in))
	for _, key := range slices.Sorted(maps.Keys(in)) {
		v, err := read(fmt.Sprintf("%s[%q]", field, key), in[key])
		if err != nil {
			return nil, err
		}
		out[name(key)] = v
	}
	return out, nil
}

// Matches reports whether a request satisfies the match.
func (m *Match) Matches(r Request) bool {
	if !m.path.matches(r.Path, m.elements) || !m.method.matches(r.Method, false) {
		return false
	}
	for name, want := range m.headers {
		values, given := r.Header[name]
		if !given || !want.matches(strings.Join(values, ","), false) {
			return false
		}
	}
	for name, want := range m.params {
		got, given := first(r.Query, name)
		if !given || !want.matches(got, false) {
			return false
		}
	}
	return true
}

// first returns the first value of a parameter.
func first(query, wanted string) (value string, given bool) {
	for part := range strings.SplitSeq(query, "&") {
		if name, value, _ := strings.Cut(part, "="); name == wanted && part != "" {
			return value, true
		}
	}
	return "", false
}

func (v value) matches(text string, elements bool) bool {
	switch v.kind {
	case exact:
		return text == v.text
	case prefix:
		rest, ok := strings.CutPrefix(text, v.text)
		return ok && (!elements || rest == "" || rest[0] == '/')
	case regex:
		return v.regex.MatchString(text)
	default:
		return true
	}
}

// Covers reports whether m matches every request that other matches. It may be false although m does, of regular
// expressions that differ.
func (m *Match) Covers(other *Match) bool {
	return m.coversPath(other) && m.method.covers(other.method) && coversAll(m.headers, other.headers) && coversAll(m.params, other.params)
}

func (m *Match) coversPath(other *Match) bool {
	if m.path.kind != prefix || other.path.kind != prefix {
		return m.path.kind == anything || other.path.kind == exact && m.path.matches(other.path.text, m.elements) || m.path.same(other.path)
	}
	rest, ok := strings.CutPrefix(other.path.text, m.path.text)
	switch {
	case !ok || !m.elements:
		return ok
	case rest == "":
		return other.elements
	default:
		return rest[0] == '/'
	}
}

func coversAll(own, others map[string]value) bool {
	for name, v := range own {
		if other, given := others[name]; !given || !v.covers(other) {
			return false
		}
	}
	return true
}

func (v value) same(other value) bool { return v.kind == other.kind && v.text == other.text }

func (v value) covers(other value) bool {
	switch {
	case v.kind == anything, v.same(other):
		return true
	case other.kind == exact:
		return v.matches(other.text, false)
	default:
		return v.kind == prefix && other.kind == prefix && strings.HasPrefix(other.text, v.text)
	}
}

// Disjoint reports whether no request matches both. It may be false although none does, of regular expressions.
func (m *Match) Disjoint(other *Match) bool {
	return m.path.disjoint(other.path, m.elements, other.elements) || m.method.disjoint(other.method, false, false) ||
		disjointAny(m.headers, other.headers) || disjointAny(m.params, other.params)
}

func disjointAny(own, others map[string]value) bool {
	for name, v := range own {
		if other, given := others[name]; given && v.disjoint(other, false, false) {
			return true
		}
	}
	return false
}

// disjoint reports whether no text satisfies both; elements and otherElements are those of the matches.
func (v value) disjoint(other value, elements, otherElements bool) bool {
	switch {
	case v.kind == exact:
		return !other.matches(v.text, otherElements)
	case other.kind == exact:
		return !v.matches(other.text, elements)
	case v.kind == prefix && other.kind == prefix:
		return !strings.HasPrefix(v.text, other.text) && !strings.HasPrefix(other.text, v.text)
	default:
		return false
	}
}

// String writes the conditions for people: `path /a/*, method GET, header X=1`; "everything" without any.
func (m *Match) String() string {
	var out []string
	switch {
	case m.path.kind == prefix && m.elements:
		out = append(out, "path "+m.path.text+"/*")
	case m.path.kind != anything:
		out = append(out, "path "+m.path.String())
	}
	if m.method.kind != anything {
		out = append(out, "method "+m.method.String())
	}
	for _, list := range []struct {
		word   string
		values map[string]value
	}{{"header ", m.headers}, {"query ", m.params}} {
		for _, name := range slices.Sorted(maps.Keys(list.values)) {
			out = append(out, list.word+name+"="+list.values[name].String())
		}
	}
	if len(out) == 0 {
		return "everything"
	}
	return strings.Join(out, ", ")
}

func (v value) String() string {
	switch v.kind {
	case anything:
		return "*"
	case prefix:
		return v.text + "*"
	case regex:
		return "~" + v.text
	default:
		return v.text
	}
}

// Samples are parts of requests that the match may take or may miss by little: paths, a method if it wants one, the
// headers and the query that it wants. Of regular expressions there is no sample but their text.
func (m *Match) Samples() (paths []string, method string, header http.Header, query string) {
	path := m.path.text
	if m.path.kind == regex {
		path = strings.TrimSuffix(path, ".*")
	}
	if strings.HasPrefix(path, "/") {
		paths = []string{path, path + "x", path + "/", path + "/x", path[:max(1, len(path)-1)], strings.TrimSuffix(path, "/") + "/x/y"}
	}
	header = http.Header{}
	for name, v := range m.headers {
		header.Set(name, strings.TrimSuffix(v.text, ".*"))
	}
	var parts []string
	for name, v := range m.params {
		parts = append(parts, name+"="+strings.TrimSuffix(v.text, ".*"))
	}
	slices.Sort(parts)
	return paths, m.method.text, header, strings.Join(parts, "&")
}
