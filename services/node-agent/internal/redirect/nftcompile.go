package redirect

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// register is the one that all expressions use.
const register = 1

// compiler makes the expressions of one rule, in the order in which nft makes them.
type compiler struct {
	exprs []expr.Any
	// family and protocol are those that the rule already compares.
	family, protocol uint32
	// addSet makes an anonymous set.
	addSet func(s *nftables.Set, elements []nftables.SetElement) error
}

// compile returns the expressions of a rule.
func compile(r rule, addSet func(*nftables.Set, []nftables.SetElement) error) ([]expr.Any, error) {
	c := &compiler{addSet: addSet}
	for _, m := range r.matches {
		if err := c.match(m); err != nil {
			return nil, err
		}
	}
	for _, a := range r.actions {
		c.action(a)
	}
	return c.exprs, nil
}

func (c *compiler) add(e ...expr.Any) { c.exprs = append(c.exprs, e...) }

func native(n uint32) []byte { return binaryutil.NativeEndian.PutUint32(n) }
func single(n uint32) []byte { return []byte{byte(n)} }
func port(n uint32) []byte   { return binary.BigEndian.AppendUint16(nil, uint16(n)) }

// interfaceKey is a name as the kernel compares it.
func interfaceKey(name string) []byte {
	out := make([]byte, unix.IFNAMSIZ)
	copy(out, name)
	return out
}

func keys(numbers []uint32, encode func(uint32) []byte) [][]byte {
	out := make([][]byte, len(numbers))
	for i, n := range numbers {
		out[i] = encode(n)
	}
	return out
}

func (c *compiler) match(m match) error {
	switch m.field {
	case inInterface, outInterface:
		key := expr.MetaKeyIIFNAME
		if m.field == outInterface {
			key = expr.MetaKeyOIFNAME
		}
		names := make([][]byte, len(m.names))
		for i, n := range m.names {
			names[i] = interfaceKey(n)
		}
		c.add(&expr.Meta{Key: key, Register: register})
		return c.compare(m.not, nftables.TypeIFName, names)
	case source, destination:
		return c.address(m)
	case protocol:
		if len(m.numbers) == 1 && !m.not {
			c.protocol = m.numbers[0]
		}
		c.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register})
		return c.compare(m.not, nftables.TypeInetProto, keys(m.numbers, single))
	case tcpPort:
		c.wantProtocol(unix.IPPROTO_TCP)
		return c.ports(m)
	case udpPort:
		c.wantProtocol(unix.IPPROTO_UDP)
		return c.ports(m)
	case anyPort:
		return c.ports(m)
	case ownerUser:
		c.add(&expr.Meta{Key: expr.MetaKeySKUID, Register: register})
		return c.compare(m.not, nftables.TypeUID, keys(m.numbers, native))
	case ownerGroup:
		c.add(&expr.Meta{Key: expr.MetaKeySKGID, Register: register})
		return c.compare(m.not, nftables.TypeGID, keys(m.numbers, native))
	case packetMark:
		c.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: register})
		return c.compare(m.not, nftables.TypeMark, keys(m.numbers, native))
	case connectionMark:
		c.add(&expr.Ct{Key: expr.CtKeyMARK, Register: register})
		return c.compare(m.not, nftables.TypeMark, keys(m.numbers, native))
	case replyDirection:
		c.add(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: register})
		return c.compare(m.not, nftables.TypeCTDir, [][]byte{{1}})
	default: // invalidState
		c.add(&expr.Ct{Key: expr.CtKeySTATE, Register: register},
			&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: native(expr.CtStateBitINVALID), Xor: native(0)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: native(0)})
		return nil
	}
}

// wantProtocol compares the protocol of layer 4, unless the rule already has.
func (c *compiler) wantProtocol(number uint32) {
	if c.protocol != number {
		c.protocol = number
		c.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: single(number)})
	}
}

func (c *compiler) ports(m match) error {
	c.add(&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
	return c.compare(m.not, nftables.TypeInetService, keys(m.numbers, port))
}

func (c *compiler) address(m match) error {
	family, length, offset, key := uint32(unix.NFPROTO_IPV4), uint32(4), uint32(12), nftables.TypeIPAddr
	if m.is6() {
		family, length, offset, key = unix.NFPROTO_IPV6, 16, 8, nftables.TypeIP6Addr
	}
	if m.field == destination {
		offset += length
	}
	if c.family != family {
		c.family = family
		c.add(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register}, &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: single(family)})
	}
	c.add(&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length})
	if len(m.prefixes) > 1 {
		return c.lookup(m.not, &nftables.Set{KeyType: key, Interval: true}, intervals(m.prefixes))
	}
	p := m.prefixes[0]
	if !p.IsSingleIP() {
		mask := make([]byte, length)
		for i := range p.Bits() {
			mask[i/8] |= 0x80 >> (i % 8)
		}
		c.add(&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: length, Mask: mask, Xor: make([]byte, length)})
	}
	return c.compare(m.not, key, [][]byte{p.Addr().AsSlice()})
}

// intervals are the elements of a set of ranges that do not overlap: where each begins, and the first address after it.
// Ranges that adjoin become one.
func intervals(prefixes []netip.Prefix) []nftables.SetElement {
	sorted := slices.SortedFunc(slices.Values(prefixes), func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	var out []nftables.SetElement
	// As nft does: the kernel looks for the last element that is not above an address, and needs one for the lowest.
	if lowest := sorted[0].Addr(); !lowest.IsUnspecified() {
		out = append(out, nftables.SetElement{Key: make([]byte, lowest.BitLen()/8), IntervalEnd: true})
	}
	var after netip.Addr // the range before
	for _, p := range sorted {
		if after.IsValid() && after == p.Addr() {
			out = out[:len(out)-1]
		} else {
			out = append(out, nftables.SetElement{Key: p.Addr().AsSlice()})
		}
		if after = last(p).Next(); after.IsValid() {
			out = append(out, nftables.SetElement{Key: after.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

// last is the highest address of a range.
func last(p netip.Prefix) netip.Addr {
	raw := p.Addr().AsSlice()
	for i := p.Bits(); i < len(raw)*8; i++ {
		raw[i/8] |= 0x80 >> (i % 8)
	}
	out, _ := netip.AddrFromSlice(raw)
	return out
}

// compare compares the register with one value, or looks it up in a set of several.
func (c *compiler) compare(not bool, key nftables.SetDatatype, values [][]byte) error {
	if len(values) == 1 {
		op := expr.CmpOpEq
		if not {
			op = expr.CmpOpNeq
		}
		c.add(&expr.Cmp{Op: op, Register: register, Data: values[0]})
		return nil
	}
	elements := make([]nftables.SetElement, len(values))
	for i, v := range values {
		elements[i] = nftables.SetElement{Key: v}
	}
	return c.lookup(not, &nftables.Set{KeyType: key}, elements)
}

func (c *compiler) lookup(not bool, set *nftables.Set, elements []nftables.SetElement) error {
	set.Anonymous, set.Constant = true, true
	if err := c.addSet(set, elements); err != nil {
		return err
	}
	c.add(&expr.Lookup{SourceRegister: register, SetName: set.Name, SetID: set.ID, Invert: not})
	return nil
}

func (c *compiler) action(a action) {
	verdict := func(kind expr.VerdictKind) { c.add(&expr.Verdict{Kind: kind, Chain: a.chain}) }
	number := func(data []byte) { c.add(&expr.Immediate{Register: register, Data: data}) }
	switch a.verb {
	case accept:
		verdict(expr.VerdictAccept)
	case back:
		verdict(expr.VerdictReturn)
	case drop:
		verdict(expr.VerdictDrop)
	case jump:
		verdict(expr.VerdictJump)
	case goTo:
		verdict(expr.VerdictGoto)
	case redirectTo:
		number(port(a.number))
		c.add(&expr.Redir{RegisterProtoMin: register})
	case tproxyTo:
		number(port(a.number))
		c.add(&expr.TProxy{Family: unix.NFPROTO_UNSPEC, RegPort: register})
	case notrack:
		c.add(&expr.Notrack{})
	case markPacket:
		number(native(a.number))
		c.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: register, SourceRegister: true})
	case markConnection:
		number(native(a.number))
		c.add(&expr.Ct{Key: expr.CtKeyMARK, Register: register, SourceRegister: true})
	}
}
