package rpc

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// frames writes HTTP/2 as a client does.
type frames struct {
	*http2.Framer
	bytes.Buffer
}

func newFrames(t testing.TB) *frames {
	t.Helper()
	f := &frames{}
	f.Framer = http2.NewFramer(&f.Buffer, nil)
	f.WriteString(http2.ClientPreface)
	must(t, f.WriteSettings())
	return f
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f *frames) headers(t testing.TB, id uint32) {
	t.Helper()
	must(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("block"), EndHeaders: true}))
}

func (f *frames) data(t testing.TB, id uint32, p []byte) {
	t.Helper()
	must(t, f.WriteData(id, false, p))
}

func message(size int) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), make([]byte, size)...)
}

// feedAll feeds p in pieces of size, and opens every call.
func feedAll(m *meter, p []byte, size int, now time.Time) {
	for len(p) > 0 {
		was := m.lastBlock
		n := m.feed(p[:min(size, len(p))], now)
		p = p[n:]
		if m.lastBlock != was {
			m.open()
		}
	}
}

func TestMeter(t *testing.T) {
	const maxMessage = 1 << 20
	cost := func(payload int) int { return payload + frameOverhead }
	for name, tc := range map[string]struct {
		write      func(*frames)
		held       int
		unfinished int
		taken      int // by the handler of call 1
		after      int
	}{
		"nothing": {write: func(*frames) {}},
		"a whole message": {
			write: func(f *frames) { f.headers(t, 1); f.data(t, 1, message(100)) },
			held:  cost(105), taken: 105,
		},
		"one that is taken in part": {
			write: func(f *frames) { f.headers(t, 1); f.data(t, 1, append(message(100), message(50)...)) },
			held:  cost(160), taken: 105, after: cost(160),
		},
		"the beginning of one": {
			write: func(f *frames) { f.headers(t, 1); f.data(t, 1, message(5000)[:1000]) },
			held:  cost(1000) + 4005, unfinished: 1, after: cost(1000) + 4005,
		},
		"the beginning of one that is too long": {
			write: func(f *frames) { f.headers(t, 1); f.data(t, 1, message(2 * maxMessage)[:1000]) },
			held:  cost(1000), unfinished: 1, after: cost(1000),
		},
		"part of a prefix": {
			write: func(f *frames) { f.headers(t, 1); f.data(t, 1, make([]byte, 3)) },
			held:  cost(3), unfinished: 1, after: cost(3),
		},
		"byte for byte": {
			write: func(f *frames) {
				f.headers(t, 1)
				for _, b := range message(100) {
					f.data(t, 1, []byte{b})
				}
			},
			held: 105 * cost(1), taken: 100, after: 5 * cost(1),
		},
		"frames from a pool": {
			write: func(f *frames) { f.headers(t, 1); f.data(t, 1, message(4091)); f.data(t, 1, message(5000)) },
			held:  cost(4096) + cost(16384), taken: 4096, after: cost(16384),
		},
		"padding": {
			write: func(f *frames) {
				f.headers(t, 1)
				must(t, f.WriteDataPadded(1, false, message(5), make([]byte, 200)))
				must(t, f.WriteDataPadded(1, false, nil, make([]byte, 200)))
			},
			held: cost(211), taken: 10,
		},
		"a call that nobody has admitted": {
			write: func(f *frames) { f.data(t, 7, message(100)) },
		},
		"empty frames and empty messages": {
			write: func(f *frames) { f.headers(t, 1); f.data(t, 1, nil); f.data(t, 1, message(0)) }, held: cost(5), taken: 5,
		},
		"two calls, headers in parts": {
			write: func(f *frames) {
				f.headers(t, 1)
				must(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte("block")}))
				must(t, f.WriteContinuation(3, true, nil))
				f.data(t, 3, message(200)[:100])
				f.data(t, 1, message(100))
			},
			held: cost(100) + 105 + cost(105), unfinished: 1, taken: 105, after: cost(100) + 105,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFrames(t)
			tc.write(f)
			for _, size := range []int{1, 2, 7, 4096, 1 << 20} {
				m := newMeter(maxMessage)
				feedAll(&m, f.Bytes(), size, time.Now())
				if m.held != tc.held || m.unfinished != tc.unfinished {
					t.Errorf("in pieces of %d: %d bytes and %d unfinished, want %d and %d", size, m.held, m.unfinished, tc.held, tc.unfinished)
				}
				if c := m.calls[1]; c != nil {
					m.taken(c, tc.taken)
				}
				if m.held != tc.after {
					t.Errorf("in pieces of %d: %d bytes after %d were taken, want %d", size, m.held, tc.taken, tc.after)
				}
				for id, c := range m.calls {
					m.close(id, c)
				}
				if m.held != 0 || m.unfinished != 0 {
					t.Errorf("in pieces of %d: %d bytes and %d unfinished are left", size, m.held, m.unfinished)
				}
			}
		})
	}
}

func TestMeterDue(t *testing.T) {
	f := newFrames(t)
	f.headers(t, 1)
	f.data(t, 1, message(1 << 20)[:100])
	m, now := newMeter(1<<20), time.Now()
	feedAll(&m, f.Bytes(), 4096, now)
	if got, want := m.due(time.Second), now.Add(5*time.Second); !got.Equal(want) {
		t.Errorf("1 MiB is due at %s, want %s: 1 s and 4 s for its length", got, want)
	}
	m.forgive(time.Minute)
	if got, want := m.due(time.Second), now.Add(65*time.Second); !got.Equal(want) {
		t.Errorf("after a minute that the server kept it waiting: %s, want %s", got, want)
	}
}

// FuzzMeter feeds any bytes: the counts do not depend on the pieces, and nothing is held after all calls have ended.
func FuzzMeter(f *testing.F) {
	for _, size := range []int{0, 10, 5000} {
		frames := newFrames(f)
		frames.headers(f, 1)
		frames.data(f, 1, message(size))
		must(f, frames.WriteDataPadded(1, false, message(size/2), make([]byte, 20)))
		frames.headers(f, 3)
		frames.data(f, 3, message(size)[:size/2])
		must(f, frames.WriteRSTStream(3, http2.ErrCodeCancel))
		f.Add(frames.Bytes(), uint16(7), uint16(100))
	}
	f.Fuzz(func(t *testing.T, p []byte, size, taken uint16) {
		now := time.Now()
		whole, pieces := newMeter(1<<20), newMeter(1<<20)
		feedAll(&whole, p, len(p)+1, now)
		feedAll(&pieces, p, int(size)+1, now)
		if whole.held != pieces.held || whole.unfinished != pieces.unfinished || len(whole.calls) != len(pieces.calls) {
			t.Fatalf("%d bytes, %d unfinished, %d calls as a whole; %d, %d, %d in pieces of %d", whole.held, whole.unfinished, len(whole.calls),
				pieces.held, pieces.unfinished, len(pieces.calls), size+1)
		}
		for id, c := range whole.calls {
			whole.taken(c, int(taken))
			if whole.held < 0 || c.cost < 0 {
				t.Fatalf("%d bytes are held, %d by call %d", whole.held, c.cost, id)
			}
		}
		feedAll(&whole, p, 100, now)
		for id, c := range whole.calls {
			whole.close(id, c)
		}
		if whole.unfinished < 0 || whole.held < 0 {
			t.Fatalf("%d bytes and %d unfinished are left", whole.held, whole.unfinished)
		}
	})
}

// BenchmarkMeter measures a frame of 16 KiB; gRPC itself needs some microseconds for one.
func BenchmarkMeter(b *testing.B) {
	frames := newFrames(b)
	frames.headers(b, 1)
	m := newMeter(1 << 30)
	feedAll(&m, frames.Bytes(), 4096, time.Now())
	frames.Reset()
	frames.data(b, 1, make([]byte, 16<<10))
	p, c := frames.Bytes(), m.calls[1]
	c.left = 1 << 60 // in the middle of a message
	b.ReportAllocs()
	for b.Loop() {
		m.feed(p[:frameHeader], time.Time{})
		m.feed(p[frameHeader:], time.Time{})
		m.taken(c, 16<<10)
	}
}
