// Package routerank encodes the order in which the Gateway API has matches of routes tried, as bytes: the least is
// tried first. Host encodes how specific a route's hostname is, Match the rest; Explain says at which step two ranks
// differ.
//
// A rank of Host has three bytes: whether the hostname is exact (0), a wildcard (1) or none (2), and 0xffff less its
// length. A rank of Match has, in this order:
//
//	1 byte   path: 0 exact, 1 prefix, 2 regular expression, 3 any
//	2 bytes  0xffff less the length of a prefix or regular expression, without a "/" at its end; else 0xffff
//	1 byte   0 if the method matters, else 1
//	1 byte   0xff less the number of headers
//	1 byte   0xff less the number of query parameters
//	12 bytes the route's creation: seconds since year 1, nanoseconds
//	n bytes  "<namespace>/<name>" of the route, and a zero byte
//	1 byte   the route's kind
//	4 bytes  index of the rule, index of the match in the rule
//
// All integers are big-endian. The order of paths with regular expressions, about which the specification says nothing,
// is Istio's.
package routerank

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"time"
)

// Path is how a match compares the path.
type Path byte

// Ways to compare paths, in the order of their precedence.
const (
	Exact Path = iota
	Prefix
	Regex
	Any
)

// Route identifies a route and says when it was created.
type Route struct {
	Created         time.Time
	Namespace, Name string
	// Kind is HTTPRoute, GRPCRoute, TLSRoute, TCPRoute or UDPRoute.
	Kind string
}

// Match is what decides the place of a match among all matches of a host.
type Match struct {
	Path Path
	// Value of the path, for a prefix or regular expression.
	Value string
	// Method is true if the match requires an HTTP method.
	Method bool
	// Headers and Params are how many headers and query parameters the match requires. That a GRPCRoute requires the
	// content type of gRPC counts as a header.
	Headers, Params int
	// Rule is the index of the rule in the route, and Index that of the match in the rule.
	Rule, Index int
}

// Host returns the rank of a route's own hostname: exact ones before wildcards, longer ones before shorter ones, and
// none last.
func Host(hostname string) []byte {
	class := byte(0)
	switch {
	case hostname == "":
		class = 2
	case strings.HasPrefix(hostname, "*"):
		class = 1
	}
	return less16([]byte{class}, len(hostname))
}

// Of returns the rank of a match of an HTTPRoute or GRPCRoute.
func (r *Route) Of(m *Match) []byte {
	out := make([]byte, 0, fixed+len(r.Namespace)+len(r.Name)+2)
	out = append(out, byte(m.Path))
	length := 0
	if m.Path == Prefix || m.Path == Regex {
		length = len(strings.TrimSuffix(m.Value, "/"))
	}
	out = less16(out, length)
	method := byte(1)
	if m.Method {
		method = 0
	}
	out = append(out, method, less8(m.Headers), less8(m.Params))
	return r.tail(out, m.Rule, m.Index)
}

// Whole returns the rank of a route whose rules have no matches.
func (r *Route) Whole() []byte {
	return r.tail(make([]byte, 0, fixed+len(r.Namespace)+len(r.Name)+2), 0, 0)
}

// Sizes of parts of a rank.
const (
	matchSize = 6
	timeSize  = 12
	tailSize  = 5 // behind the name
	fixed     = matchSize + timeSize + tailSize
)

// yearOne is year 1 in seconds since 1970, so that the zero time comes first.
const yearOne = -62135596800

func (r *Route) tail(out []byte, rule, index int) []byte {
	out = binary.BigEndian.AppendUint64(out, uint64(max(0, r.Created.Unix()-yearOne))) //nolint:gosec // not negative
	out = binary.BigEndian.AppendUint32(out, uint32(r.Created.Nanosecond()))           //nolint:gosec // below 1e9
	out = append(append(append(append(out, r.Namespace...), '/'), r.Name...), 0)
	out = append(out, byte(slices.Index(kinds, r.Kind)+1))
	out = binary.BigEndian.AppendUint16(out, clamp16(rule))
	return binary.BigEndian.AppendUint16(out, clamp16(index))
}

// Place returns the indices of the rule in its route and of the match in its rule, of a rank of Match; 0 if it is none.
func Place(rank []byte) (rule, match int) {
	if len(rank) < fixed {
		return 0, 0
	}
	end := rank[len(rank)-4:]
	return int(binary.BigEndian.Uint16(end)), int(binary.BigEndian.Uint16(end[2:]))
}

var kinds = []string{"HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"}

func less8(n int) byte { return byte(math.MaxUint8 - min(max(n, 0), math.MaxUint8)) }

func clamp16(n int) uint16 { return uint16(min(max(n, 0), math.MaxUint16)) }

func less16(out []byte, n int) []byte {
	return binary.BigEndian.AppendUint16(out, math.MaxUint16-clamp16(n))
}

// Explain says by which step of the order the first of two matches comes before the second, as the end of a sentence
// about the first: "has an exact path". Each match has the rank of its host and its own; both are of HTTPRoutes or
// GRPCRoutes. It returns "" if the ranks are equal, or if the second comes first.
func Explain(host, match, otherHost, other []byte) string {
	switch c := bytes.Compare(host, otherHost); {
	case c > 0 || c == 0 && bytes.Compare(match, other) >= 0:
		return ""
	case c == 0 && len(match) > fixed && len(other) > fixed:
		return explainMatch(match, other)
	case c == 0 || len(host) == 0:
		return "has the lesser rank" // of no Match or Host
	case host[0] == otherHost[0]:
		return "has the longer hostname"
	case host[0] == 0:
		return "has an exact hostname"
	default:
		return "has a hostname"
	}
}

// explainMatch is Explain for two ranks of Match, of which the first is less.
func explainMatch(match, other []byte) string {
	at := 0
	for at < len(match) && match[at] == other[at] {
		at++
	}
	switch at {
	case 0:
		return [...]string{"has an exact path", "has a path prefix", "has a path"}[min(match[0], byte(Regex))]
	case 1, 2:
		return [...]string{"has the longer path prefix", "has the longer regular expression"}[min(match[0]/byte(Regex), 1)]
	case 3:
		return "requires a method"
	case 4:
		return "requires more headers"
	case 5:
		return "requires more query parameters"
	}
	if at < matchSize+timeSize {
		return "is of the older route"
	}
	name, rest, _ := bytes.Cut(match[matchSize+timeSize:], []byte{0})
	otherName, otherRest, _ := bytes.Cut(other[matchSize+timeSize:], []byte{0})
	switch {
	case !bytes.Equal(name, otherName):
		return "is of the route that comes first by namespace and name"
	case len(rest) < tailSize || len(otherRest) < tailSize:
		return "has the lesser rank"
	case rest[0] != otherRest[0]:
		return "is of an " + kinds[min(max(int(rest[0])-1, 0), len(kinds)-1)]
	case !bytes.Equal(rest[1:3], otherRest[1:3]):
		return "is of an earlier rule"
	default:
		return "is the earlier match of the rule"
	}
}
