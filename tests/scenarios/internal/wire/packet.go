package wire

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// segment is what is read of a TCP segment.
type segment struct {
	from, to netip.AddrPort
	syn, ack bool
	sequence uint32
	// length is that of the whole payload, payload its beginning.
	length  int
	payload []byte
}

const (
	ip4Header = 20
	ip6Header = 40
	tcpHeader = 20
	flagSYN   = 0x02
	flagACK   = 0x10
)

// parse reads a packet that begins with its IP header, and may be cut.
func parse(p []byte) (segment, bool) {
	if len(p) < ip4Header {
		return segment{}, false
	}
	var from, to netip.Addr
	var head, total int
	switch p[0] >> 4 {
	case 4:
		head, total = int(p[0]&0x0f)*4, int(binary.BigEndian.Uint16(p[2:]))
		from, to = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
	case 6:
		if len(p) < ip6Header {
			return segment{}, false
		}
		head, total = ip6Header, ip6Header+int(binary.BigEndian.Uint16(p[4:]))
		from, to = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
	default:
		return segment{}, false
	}
	if head < ip4Header || len(p) < head+tcpHeader {
		return segment{}, false
	}
	tcp := p[head:]
	data := int(tcp[12]>>4) * 4
	if data < tcpHeader || total < head+data {
		return segment{}, false
	}
	s := segment{
		from: netip.AddrPortFrom(from, binary.BigEndian.Uint16(tcp)), to: netip.AddrPortFrom(to, binary.BigEndian.Uint16(tcp[2:])),
		sequence: binary.BigEndian.Uint32(tcp[4:]), syn: tcp[13]&flagSYN != 0, ack: tcp[13]&flagACK != 0, length: total - head - data,
	}
	if data < len(tcp) {
		s.payload = tcp[data:min(len(tcp), data+s.length)]
	}
	return s, true
}

// classOf tells TLS by the header of a record: of a handshake, or of data if the beginning was missed.
func classOf(payload []byte) Class {
	if len(payload) >= 3 && (payload[0] == 0x16 || payload[0] == 0x17) && payload[1] == 3 && payload[2] <= 4 {
		return TLS
	}
	return Plaintext
}

var proxyV2 = []byte("\r\n\r\n\x00\r\nQUIT\n")

// afterProxyHeader is what follows a PROXY protocol header, if there is one; more is false if nothing has come yet.
func afterProxyHeader(b []byte) (rest []byte, more bool) {
	rest = b
	switch {
	case bytes.HasPrefix(b, []byte("PROXY ")):
		_, after, ended := bytes.Cut(b, []byte("\r\n"))
		if !ended {
			return nil, false
		}
		rest = after
	case bytes.HasPrefix(b, proxyV2):
		if len(b) < len(proxyV2)+4 {
			return nil, false
		}
		length := len(proxyV2) + 4 + int(binary.BigEndian.Uint16(b[len(proxyV2)+2:]))
		if len(b) < length {
			return nil, false
		}
		rest = b[length:]
	}
	return rest, len(rest) > 0
}
