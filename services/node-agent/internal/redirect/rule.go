package redirect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/lists"
)

// chain is a chain of rules. A backend turns it into what its program or the kernel takes.
type chain struct {
	name string
	// hook is nil for a chain that others jump to; those belong to the table of NAT.
	hook  *hook
	rules []rule
}

// hook is where the kernel calls a chain, in nftables' words.
type hook struct {
	// kind is nat, filter or route.
	kind string
	// at is output or prerouting.
	at       string
	priority int
}

// rule is a rule: the actions apply, in order, to the packets that all matches match.
type rule struct {
	matches []match
	actions []action
}

// field is what a match compares.
type field int

const (
	inInterface field = iota
	outInterface
	source
	destination
	protocol   // of layer 4
	tcpPort    // destination port of TCP
	udpPort    // destination port of UDP
	anyPort    // destination port of TCP or UDP; a match on protocol comes before it
	ownerUser  // of the local socket
	ownerGroup // of the local socket
	packetMark
	connectionMark
	replyDirection // the packet goes against the direction of its connection
	invalidState   // the packet belongs to no connection
)

// match compares a field with one value or a set of values, all of one list.
type match struct {
	field field
	// not inverts the match.
	not bool
	// set is how nftables writes the values: in braces.
	set      bool
	names    []string
	numbers  []uint32
	prefixes []netip.Prefix
}

// verb is what an action does.
type verb int

const (
	accept verb = iota // ends the chains of this hook in this table
	back               // returns to the chain that jumped here
	drop
	jump
	goTo
	redirectTo // the port of this machine
	tproxyTo   // the port of this machine, both addresses unchanged
	notrack
	markPacket
	markConnection
)

// action is what happens to a packet.
type action struct {
	verb   verb
	chain  string
	number uint32
}

// rule adds a rule that does something to what all matches match.
func (c *chain) rule(do []action, matches ...match) {
	c.rules = append(c.rules, rule{matches: matches, actions: do})
}

func do(verbs ...verb) []action {
	return lists.Map(verbs, func(v verb) action { return action{verb: v} })
}

func toChain(v verb, name string) []action { return []action{{verb: v, chain: name}} }

func toPort(v verb, port uint16) []action { return []action{{verb: v, number: uint32(port)}} }

// is matches one number.
func is(f field, n uint32) match { return match{field: f, numbers: []uint32{n}} }

// isNot matches all numbers but one.
func isNot(f field, n uint32) match { return match{field: f, not: true, numbers: []uint32{n}} }

// in matches the numbers of a list.
func in[T uint16 | uint32](f field, list []T) match {
	return match{field: f, set: true, numbers: lists.Map(list, func(n T) uint32 { return uint32(n) })}
}

// notIn matches all numbers but those of a list.
func notIn[T uint16 | uint32](f field, list ...T) match {
	m := in(f, list)
	m.not = true
	return m
}

// tcp and loopback are matches that many rules have.
var (
	tcp         = is(protocol, unix.IPPROTO_TCP)
	tcpOrUDP    = in(protocol, []uint32{unix.IPPROTO_TCP, unix.IPPROTO_UDP})
	notTCP      = isNot(protocol, unix.IPPROTO_TCP)
	intoLo      = match{field: inInterface, names: []string{"lo"}}
	outOfLo     = match{field: outInterface, names: []string{"lo"}}
	replies     = match{field: replyDirection}
	noLoopback4 = match{field: destination, not: true, prefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	noLoopback6 = match{field: destination, not: true, prefixes: []netip.Prefix{netip.MustParsePrefix("::1/128")}}
)

// from matches a source address.
func from(address string) match {
	a := netip.MustParseAddr(address)
	return match{field: source, prefixes: []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}}
}

// interfaces returns a match for each interface. It makes no set, nor does owners: the library for netlink says of each
// set that its elements are big-endian, and nft would list those that are not as something else.
func interfaces(f field, names []string) []match {
	return lists.Map(names, func(n string) match { return match{field: f, names: []string{n}} })
}

// ranges returns the matches of destinations: one for each family that the list has. It leaves out ranges within
// others, since a set cannot hold overlapping ones.
func ranges(lists ...[]netip.Prefix) []match {
	var out []match
	for _, list := range lists {
		kept := match{field: destination, set: true}
		for i, p := range list {
			within := slices.ContainsFunc(list, func(q netip.Prefix) bool { return q.Bits() < p.Bits() && q.Overlaps(p) })
			if !within && !slices.Contains(list[:i], p) {
				kept.prefixes = append(kept.prefixes, p)
			}
		}
		if len(kept.prefixes) > 0 {
			out = append(out, kept)
		}
	}
	return out
}

// is6 reports whether the match is on IPv6 addresses; is4 the same of IPv4.
func (m match) is6() bool { return len(m.prefixes) > 0 && m.prefixes[0].Addr().Is6() }
func (m match) is4() bool { return len(m.prefixes) > 0 && m.prefixes[0].Addr().Is4() }

// String is the chain's hook in nft's language.
func (h *hook) String() string {
	return fmt.Sprintf("type %s hook %s priority %d", h.kind, h.at, h.priority)
}

// String is the rule in nft's language.
func (r rule) String() string {
	words := append(lists.Map(r.matches, match.String), lists.Map(r.actions, action.String)...)
	return strings.Join(words, " ")
}

// fieldNames are the fields in nft's language; those of addresses follow ip or ip6.
var fieldNames = map[field]string{
	inInterface: "iifname", outInterface: "oifname", source: "saddr", destination: "daddr", protocol: "meta l4proto",
	tcpPort: "tcp dport", udpPort: "udp dport", anyPort: "th dport", ownerUser: "meta skuid", ownerGroup: "meta skgid",
	packetMark: "meta mark", connectionMark: "ct mark", replyDirection: "ct direction reply", invalidState: "ct state invalid",
}

func (m match) String() string {
	name := fieldNames[m.field]
	var values []string
	switch m.field {
	case replyDirection, invalidState:
		return name
	case inInterface, outInterface:
		values = lists.Map(m.names, func(n string) string { return `"` + n + `"` })
	case source, destination:
		if name = "ip " + name; m.is6() {
			name = "ip6 " + fieldNames[m.field]
		}
		values = lists.Map(m.prefixes, func(p netip.Prefix) string {
			if m.set {
				return p.String()
			}
			return p.Addr().String()
		})
	case protocol:
		values = lists.Map(m.numbers, protocolName)
	default:
		values = lists.Map(m.numbers, func(n uint32) string { return fmt.Sprint(n) })
	}
	if m.not {
		name += " !="
	}
	if m.set {
		return name + " { " + strings.Join(values, ", ") + " }"
	}
	return name + " " + values[0]
}

func protocolName(n uint32) string {
	if n == unix.IPPROTO_UDP {
		return "udp"
	}
	return "tcp"
}

func (a action) String() string {
	switch a.verb {
	case accept:
		return "accept"
	case back:
		return "return"
	case drop:
		return "drop"
	case jump:
		return "jump " + a.chain
	case goTo:
		return "goto " + a.chain
	case redirectTo:
		return fmt.Sprintf("redirect to :%d", a.number)
	case tproxyTo:
		return fmt.Sprintf("tproxy to :%d", a.number)
	case notrack:
		return "notrack"
	case markPacket:
		return fmt.Sprintf("meta mark set %d", a.number)
	default:
		return fmt.Sprintf("ct mark set %d", a.number)
	}
}

// script is the transaction in nft's language that replaces the table by one with these chains. It creates the table
// first, since it could not delete an absent one.
func script(all []*chain) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s\ndelete table inet %s\n", tableName, tableName)
	if len(all) == 0 {
		return b.String()
	}
	fmt.Fprintf(&b, "table inet %s {\n", tableName)
	for _, c := range all {
		fmt.Fprintf(&b, "\tchain %s {\n", c.name)
		if c.hook != nil {
			fmt.Fprintf(&b, "\t\t%s;\n", c.hook)
		}
		for _, r := range c.rules {
			fmt.Fprintf(&b, "\t\t%s\n", r)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}
