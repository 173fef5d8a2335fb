package authzdiff

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"fairlead.dev/pkg/authz"
)

// variable is a part of a request that rules compare, or several that only matter together. Values are such that every
// value that a request may have meets the same matches as one of them.
type variable struct {
	name    string
	matches []int
	values  []value
}

// value is a class of values of a variable. met says which of its matches it meets.
type value struct {
	set func(*authz.Request)
	met []bool
	// text is that of an identity.
	text string
}

// Names of variables. Those of headers, claims and metadata follow.
const (
	principal = "principal"
	host      = "host"
	method    = "method"
	path      = "path"
	sni       = "sni"
	token     = "token"
)

// variableOf names the variable of a match.
func variableOf(m *authz.Match) string {
	switch m.Field {
	case authz.Principal:
		return principal
	case authz.Host:
		return host
	case authz.Method:
		return method
	case authz.Path:
		return path
	case authz.SNI:
		return sni
	case authz.RequestPrincipal:
		return token
	case authz.Claim:
		if len(m.Key) == 1 && (m.Key[0] == "iss" || m.Key[0] == "sub") {
			return token
		}
		return "claim " + strings.Join(m.Key, "\x00")
	case authz.Header:
		switch name := m.Key[0]; name {
		case ":authority", "host":
			return host
		case ":method":
			return method
		case ":path":
			return path
		default:
			return "header " + name
		}
	case authz.Metadata:
		return "metadata " + strings.Join(m.Key, "\x00")
	case authz.SourceIP:
		return "source address"
	case authz.RemoteIP:
		return "remote address"
	case authz.DestinationIP:
		return "destination address"
	default:
		return "port"
	}
}

// Domains of values, as regular expressions. Envoy answers a path that has characters beyond ASCII with 400: clients
// send these percent-encoded.
const (
	anyText      = "(?s:.*)"
	principals   = "spiffe://[^/]+/ns/[^/]+/sa/[^/]+"
	methods      = "[A-Za-z]+"
	hosts        = "[^/?# ]+"
	paths        = `/[!-"$->@-~]*`
	pathsAndMore = `/[!-"$-~]*`
)

// maxLists bounds the classes of the lists that a claim may be.
const maxLists = 512

// builder makes the values of variables.
type builder struct {
	o       Options
	matches []*authz.Match
	// bounded are reasons why not all classes were found.
	bounded []string
	// ended reports whether nobody waits for the answer.
	ended func() bool
}

// variable makes the variable of a name; indexes are those of its matches.
func (b *builder) variable(name string, indexes []int) *variable {
	v := &variable{name: name, matches: indexes}
	var of []*authz.Match
	for _, i := range indexes {
		of = append(of, b.matches[i])
	}
	var candidates []value
	first := of[0]
	switch name {
	case principal:
		candidates = b.strings(of, principals, append([]string{""}, b.o.Identities...), func(r *authz.Request, s string) { r.Principal = s })
	case host:
		candidates = b.strings(of, hosts, []string{""}, func(r *authz.Request, s string) { r.Host = s })
	case method:
		candidates = b.strings(of, methods, []string{"GET", "POST", "PUT", "DELETE"}, func(r *authz.Request, s string) { r.Method = s })
	case path:
		domain := paths
		if slices.ContainsFunc(of, func(m *authz.Match) bool { return m.Field == authz.Header }) {
			domain = pathsAndMore
		}
		candidates = b.strings(of, domain, []string{"/"}, func(r *authz.Request, s string) { r.Path = s })
	case sni:
		candidates = b.strings(of, anyText, []string{""}, func(r *authz.Request, s string) { r.SNI = s })
	case token:
		candidates = b.token(of)
	default:
		switch first.Field {
		case authz.Header:
			candidates = append([]value{{set: func(*authz.Request) {}}},
				b.strings(of, anyText, nil, func(r *authz.Request, s string) { r.Headers[first.Key[0]] = []string{s} })...)
		case authz.Claim:
			candidates = b.list(of, b.texts(of), func(r *authz.Request, list []any) { setClaim(r, first.Key, list) })
		case authz.Metadata:
			candidates = b.metadata(of)
		case authz.Port:
			candidates = b.ports(of)
		default:
			candidates = addresses(of)
		}
	}
	seen := map[string]bool{}
	for _, c := range candidates {
		if b.ended() {
			break
		}
		r := blank()
		c.set(&r)
		met := make([]bool, len(of))
		for i, m := range of {
			met[i] = m.Matches(&r)
		}
		if k := fmt.Sprint(met); !seen[k] {
			seen[k] = true
			v.values = append(v.values, value{set: c.set, met: met, text: c.text})
		}
	}
	return v
}

func blank() authz.Request {
	return authz.Request{Headers: map[string][]string{}, Metadata: map[string]map[string]any{}, Method: "GET", Path: "/"}
}

// strings returns values of a text: the given ones first, and those that the matches tell apart.
func (b *builder) strings(of []*authz.Match, domain string, given []string, set func(*authz.Request, string)) []value {
	texts := slices.Clone(given)
	var languages []language
	for _, m := range of {
		for _, v := range m.Values {
			languages = append(languages, language{v.String, m.Field == authz.Path})
			if v.String.Kind == authz.Exact && m.Field != authz.Path {
				texts = append(texts, v.String.Text)
			}
		}
	}
	found, complete := b.samples(domain, languages)
	if !complete {
		b.bound(variableOf(of[0]))
	}
	var out []value
	for _, s := range append(texts, found...) {
		out = append(out, value{set: func(r *authz.Request) { set(r, s) }, text: s})
	}
	return out
}

func (b *builder) bound(name string) {
	b.bounded = append(b.bounded, fmt.Sprintf("the values of %s are more than can be tried", strings.ReplaceAll(name, "\x00", " ")))
}

// texts returns strings that the matches tell apart.
func (b *builder) texts(of []*authz.Match) []string {
	var languages []language
	for _, m := range of {
		for _, v := range m.Values {
			languages = append(languages, language{match: v.String})
		}
	}
	found, complete := b.samples(anyText, languages)
	if !complete {
		b.bound(variableOf(of[0]))
	}
	return found
}

// list returns values of what may be a list of strings: none, one of texts, and those lists of several that meet others
// together than their items do alone.
func (b *builder) list(of []*authz.Match, texts []string, set func(*authz.Request, []any)) []value {
	type list struct {
		items []any
		met   string
	}
	// met says which matches some item of a list meets, whether that is wanted or not.
	met := func(items []any) string {
		r := blank()
		set(&r, items)
		var out []byte
		for _, m := range of {
			out = append(out, map[bool]byte{true: 1}[m.Matches(&r) != m.Not])
		}
		return string(out)
	}
	lists := []list{{nil, met(nil)}}
	seen := map[string]bool{lists[0].met: true}
	var single []any
	for _, s := range texts {
		if l := (list{[]any{s}, met([]any{s})}); !seen[l.met] {
			seen[l.met] = true
			lists = append(lists, l)
			single = append(single, s)
		}
	}
	for i := 1; i < len(lists); i++ {
		for _, s := range single {
			items := append(slices.Clone(lists[i].items), s)
			l := list{items, met(items)}
			if seen[l.met] {
				continue
			}
			if len(lists) >= maxLists {
				b.bound(variableOf(of[0]) + " as a list")
				i = len(lists)
				break
			}
			seen[l.met] = true
			lists = append(lists, l)
		}
	}
	var out []value
	for _, l := range lists {
		if l.items == nil {
			out = append(out, value{set: func(*authz.Request) {}})
			continue
		}
		out = append(out, value{set: func(r *authz.Request) { set(r, l.items) }})
	}
	return out
}

// metadata returns values of dynamic metadata, which is a string or a list.
func (b *builder) metadata(of []*authz.Match) []value {
	set := func(r *authz.Request, v any) {
		filter, name := of[0].Key[0], of[0].Key[1]
		if r.Metadata[filter] == nil {
			r.Metadata[filter] = map[string]any{}
		}
		r.Metadata[filter][name] = v
	}
	texts := b.texts(of)
	out := b.list(of, texts, func(r *authz.Request, list []any) { set(r, list) })
	for _, s := range texts {
		out = append(out, value{set: func(r *authz.Request) { set(r, s) }})
	}
	return out
}

// token returns values of the token's issuer and subject, which requestPrincipals compare together.
func (b *builder) token(of []*authz.Match) []value {
	var issuers, subjects []language
	for _, m := range of {
		for _, v := range m.Values {
			switch {
			case m.Field == authz.RequestPrincipal:
				issuers, subjects = append(issuers, language{match: v.String}), append(subjects, language{match: v.Subject})
			case m.Key[0] == "iss":
				issuers = append(issuers, language{match: v.String})
			default:
				subjects = append(subjects, language{match: v.String})
			}
		}
	}
	iss, all := b.samples(anyText, issuers)
	sub, complete := b.samples(anyText, subjects)
	if !all || !complete {
		b.bound("the token's issuer and subject")
	}
	out := []value{{set: func(*authz.Request) {}}}
	for _, i := range iss {
		out = append(out, value{set: func(r *authz.Request) { setClaim(r, []string{"iss"}, i) }})
	}
	for _, s := range sub {
		out = append(out, value{set: func(r *authz.Request) { setClaim(r, []string{"sub"}, s) }})
		for _, i := range iss {
			out = append(out, value{set: func(r *authz.Request) { setClaim(r, []string{"iss"}, i); setClaim(r, []string{"sub"}, s) }})
		}
	}
	return out
}

// setClaim sets a claim within others. What stands in its way is kept: then the claim is not set.
func setClaim(r *authz.Request, path []string, v any) {
	if r.Claims == nil {
		r.Claims = map[string]any{}
	}
	at := r.Claims
	for _, name := range path[:len(path)-1] {
		below, ok := at[name].(map[string]any)
		if !ok && at[name] != nil {
			return
		}
		if !ok {
			below = map[string]any{}
			at[name] = below
		}
		at = below
	}
	if last := path[len(path)-1]; at[last] == nil {
		at[last] = v
	}
}

// ports returns the ports that are compared and one that is not; those of the workloads before.
func (b *builder) ports(of []*authz.Match) []value {
	numbers := append(slices.Clone(b.o.Ports), 1)
	for _, m := range of {
		for _, v := range m.Values {
			numbers = append(numbers, v.Port)
		}
	}
	compared := numbers[len(b.o.Ports)+1:]
	for slices.Contains(compared, numbers[len(b.o.Ports)]) {
		numbers[len(b.o.Ports)]++
	}
	var out []value
	for _, n := range numbers {
		out = append(out, value{set: func(r *authz.Request) { r.Port = n }})
	}
	return out
}

// addresses returns addresses of which each block of addresses that is compared has others within it and beside it:
// what lies in the same blocks begins at the first address of one, or behind the last.
func addresses(of []*authz.Match) []value {
	list := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.IPv4Unspecified(), netip.IPv6Unspecified(), {}}
	for _, m := range of {
		for _, v := range m.Values {
			list = append(list, v.CIDR.Addr())
			if next := last(v.CIDR).Next(); next.IsValid() {
				list = append(list, next)
			}
		}
	}
	var out []value
	for _, a := range list {
		out = append(out, value{set: func(r *authz.Request) {
			switch of[0].Field {
			case authz.SourceIP:
				r.SourceIP = a
			case authz.RemoteIP:
				r.RemoteIP = a
			default:
				r.DestinationIP = a
			}
		}})
	}
	return out
}

// last is the last address of a block.
func last(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for i := p.Bits(); i < len(bytes)*8; i++ {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}
