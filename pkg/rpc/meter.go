package rpc

import (
	"encoding/binary"
	"time"
)

// Parts of HTTP/2 (RFC 9113, sections 4.1 and 6) and of gRPC's framing that the meter needs.
const (
	clientPreface       = 24
	frameHeader         = 9
	frameData           = 0x0
	frameHeaders        = 0x1
	frameContinuation   = 0x9
	flagPadded          = 0x8
	flagEndHeaders      = 0x4
	messagePrefix       = 5
	frameOverhead       = 128     // memory of gRPC for one DATA frame beside its payload, measured
	unpooledFrame       = 1 << 10 // a payload up to this length gets a buffer of its size,
	pageFrame           = 4 << 10 // a longer one a pooled buffer of this size, or of maxFrame
	maxFrame            = 16 << 10
	messageMinimumSpeed = 256 << 10 // bytes a second at which a long message must arrive
)

// meter follows the bytes that a client sends on one connection, frame by frame, and adds up what its calls make the
// server hold: frames that no handler has received yet, and the rest of messages that have begun, which gRPC lets the
// client send whatever their length. It never fails: the transport behind it refuses what is not HTTP/2. It is not safe
// for concurrent use.
type meter struct {
	// maxMessage is the longest message that the server accepts. A longer one has no rest: its call is refused.
	maxMessage int

	preface int // bytes of the client's preface still to come
	header  [frameHeader]byte
	have    int // bytes of header
	left    int // bytes of the frame's payload still to come
	// padded is set until the length of the padding has been read. data is what is left of a DATA frame's payload
	// without padding.
	padded bool
	data   int
	call   *callMeter // the call of the DATA frame; nil for other frames

	calls map[uint32]*callMeter
	// lastBlock is the stream of the header block that ended last. blocks is how many have ended since open was called.
	lastBlock uint32
	blocks    int

	// held is how many bytes all calls together make the server hold.
	held int
	// unfinished is how many calls have a message that has begun and not ended.
	unfinished int
}

// callMeter is the part of one call.
type callMeter struct {
	prefix [messagePrefix]byte
	have   int // bytes of prefix
	left   int // bytes of the message still to come
	rest   int // the same, or 0 for a message that is too long; part of meter.held
	// begun is when the first byte of the unfinished message arrived; allowed is how much longer than the timeout it
	// may take.
	begun   time.Time
	allowed time.Duration

	// frames are those that the handler has not received yet, from index first on; cost is their sum.
	frames []heldFrame
	first  int
	cost   int
}

type heldFrame struct{ left, cost int }

func newMeter(maxMessage int) meter { return meter{maxMessage: maxMessage, preface: clientPreface} }

// feed counts what was read, up to the end of the first header block, and returns how many bytes that is. The caller
// hands on no more than that before it feeds again; so lastBlock is the stream of the call for which the tap runs.
func (m *meter) feed(p []byte, now time.Time) int {
	total := len(p)
	for len(p) > 0 {
		switch {
		case m.preface > 0:
			n := min(m.preface, len(p))
			m.preface, p = m.preface-n, p[n:]
		case m.have < frameHeader:
			n := copy(m.header[m.have:], p)
			m.have, p = m.have+n, p[n:]
			if m.have == frameHeader && m.begin() {
				return total - len(p)
			}
		default:
			n := min(m.left, len(p))
			m.payload(p[:n], now)
			m.left, p = m.left-n, p[n:]
			if m.left == 0 && m.end() {
				return total - len(p)
			}
		}
	}
	return total
}

func (m *meter) streamID() uint32 { return binary.BigEndian.Uint32(m.header[5:]) &^ (1 << 31) }

// begin reads a frame's header. It reports whether a header block ends with it, which is so for an empty frame only.
func (m *meter) begin() bool {
	m.left = int(m.header[0])<<16 | int(m.header[1])<<8 | int(m.header[2])
	m.call, m.padded, m.data = nil, false, 0
	if m.header[3] == frameData && m.left > 0 {
		if m.call = m.calls[m.streamID()]; m.call != nil {
			m.padded = m.header[4]&flagPadded != 0
			m.data = m.left
			m.hold(m.call, m.left)
		}
	}
	return m.left == 0 && m.end()
}

// end is called at the end of a frame and reports whether it is the last of a header block.
func (m *meter) end() bool {
	m.have, m.call = 0, nil
	if kind := m.header[3]; (kind != frameHeaders && kind != frameContinuation) || m.header[4]&flagEndHeaders == 0 {
		return false
	}
	m.lastBlock = m.streamID()
	m.blocks++
	return true
}

// hold adds the frame that begins to what its call holds: gRPC allocates its buffer before it reads the payload.
func (m *meter) hold(c *callMeter, payload int) {
	cost := payload
	switch {
	case payload <= unpooledFrame:
	case payload <= pageFrame:
		cost = pageFrame
	case payload <= maxFrame:
		cost = maxFrame
	}
	cost += frameOverhead
	if c.first > len(c.frames)/2 { // the handler has received most of them
		c.frames, c.first = append(c.frames[:0], c.frames[c.first:]...), 0
	}
	c.frames = append(c.frames, heldFrame{left: payload, cost: cost})
	c.cost += cost
	m.held += cost
}

func (m *meter) payload(p []byte, now time.Time) {
	c := m.call
	if c == nil || len(p) == 0 {
		return
	}
	if m.padded {
		m.padded = false
		m.data = max(0, m.data-1-int(p[0]))
		p = p[1:]
		if last := len(c.frames) - 1; last >= c.first { // unless the handler has received it already
			c.frames[last].left = m.data
			if m.data == 0 { // nothing but padding: gRPC drops it
				m.drop(c, last)
			}
		}
	}
	n := min(m.data, len(p))
	m.data -= n
	m.message(c, p[:n], now)
}

// drop removes the newest frame of a call.
func (m *meter) drop(c *callMeter, last int) {
	c.cost -= c.frames[last].cost
	m.held -= c.frames[last].cost
	c.frames = c.frames[:last]
}

// message follows the boundaries of a call's messages.
func (m *meter) message(c *callMeter, p []byte, now time.Time) {
	for len(p) > 0 {
		if c.left > 0 {
			n := min(c.left, len(p))
			m.setRest(c, max(0, c.rest-n))
			if c.left, p = c.left-n, p[n:]; c.left == 0 {
				m.unfinished--
			}
			continue
		}
		if c.have == 0 {
			c.begun, c.allowed = now, 0
			m.unfinished++
		}
		n := copy(c.prefix[c.have:], p)
		c.have, p = c.have+n, p[n:]
		if c.have < messagePrefix {
			continue
		}
		c.have, c.left = 0, int(binary.BigEndian.Uint32(c.prefix[1:]))
		if c.left == 0 {
			m.unfinished--
		}
		if c.left <= m.maxMessage {
			m.setRest(c, c.left)
			c.allowed = time.Duration(c.left) * time.Second / messageMinimumSpeed
		}
	}
}

func (m *meter) setRest(c *callMeter, rest int) {
	m.held += rest - c.rest
	c.rest = rest
}

// open makes the stream whose header block ended last a call; frames of other streams are not counted.
func (m *meter) open() (id uint32, c *callMeter) {
	if m.calls == nil {
		m.calls = map[uint32]*callMeter{}
	}
	c = &callMeter{}
	m.calls[m.lastBlock], m.blocks = c, 0
	return m.lastBlock, c
}

// taken is called when the handler of a call has received a message of n bytes on the wire.
func (m *meter) taken(c *callMeter, n int) {
	for n > 0 && c.first < len(c.frames) {
		f := &c.frames[c.first]
		if f.left > n {
			f.left -= n
			return
		}
		n -= f.left
		c.cost -= f.cost
		m.held -= f.cost
		c.first++
	}
	if c.first == len(c.frames) {
		c.frames, c.first = c.frames[:0], 0
	}
}

// close removes a call and all that it holds.
func (m *meter) close(id uint32, c *callMeter) {
	if m.calls[id] != c {
		return
	}
	delete(m.calls, id)
	if m.call == c {
		m.call = nil
	}
	if c.have > 0 || c.left > 0 {
		m.unfinished--
	}
	m.held -= c.cost + c.rest
}

// due returns when the first of the unfinished messages exceeds its time, which is timeout plus the time for its
// length; zero if there is none.
func (m *meter) due(timeout time.Duration) time.Time {
	var first time.Time
	if m.unfinished == 0 {
		return first
	}
	for _, c := range m.calls {
		if c.have == 0 && c.left == 0 {
			continue
		}
		if d := c.begun.Add(timeout + c.allowed); first.IsZero() || d.Before(first) {
			first = d
		}
	}
	return first
}

// forgive extends the time of every unfinished message by d, for which the server did not read.
func (m *meter) forgive(d time.Duration) {
	for _, c := range m.calls {
		c.begun = c.begun.Add(d)
	}
}
