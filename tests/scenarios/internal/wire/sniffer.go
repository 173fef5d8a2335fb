// Package wire tells what really ran between two pods: from the bytes on a machine's network device, and from what a
// proxy's access log says of the handshakes that it took part in.
package wire

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Class is what a connection carries.
type Class string

// Classes; a connection that has carried nothing yet has none.
const (
	Plaintext Class = "plaintext"
	TLS       Class = "tls"
)

// Flow is a TCP connection that was seen.
type Flow struct {
	// Client is who opened it.
	Client, Server netip.AddrPort
	Class          Class
	// First and Last are when it carried bytes.
	First, Last time.Time
}

// snapshot is how much of a packet is looked at, most how many connections are remembered.
const (
	snapshot = 512
	most     = 20000
	buffer   = 8 << 20
)

// Sniffer sees the TCP connections of a network device. It is safe for concurrent use.
type Sniffer struct {
	file *os.File
	done chan struct{}

	mu    sync.Mutex
	flows map[pair]*flow
}

// pair is a connection, the client first.
type pair struct{ client, server netip.AddrPort }

type flow struct {
	Flow
	// prefix holds the bytes of a client that has said no more than a PROXY protocol header yet.
	prefix []byte
	// next is the number of the byte that follows them.
	next uint32
}

// Open begins to look. in runs a function on a thread in the network namespace where the device is.
func Open(in func(func() error) error, device string) (*Sniffer, error) {
	fd := -1
	err := in(func() error {
		link, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		// Of no protocol until the filter is there: otherwise what comes before it is let through.
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, filter()),
			enlarge(fd),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: link.Index}),
		)
	})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("look at %s: %w", device, err)
	}
	s := &Sniffer{file: os.NewFile(uintptr(fd), "packets of "+device), done: make(chan struct{}), flows: map[pair]*flow{}}
	go s.run()
	return s, nil
}

// enlarge lets many packets wait. Only the first user namespace may go beyond the limit of the machine.
func enlarge(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer)
	if errors.Is(err, unix.EPERM) {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	}
	return err
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// filter lets through TCP over IPv4 or IPv6. Packets begin with the network header.
func filter() *unix.SockFprog {
	const (
		load     = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		loadByte = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		equal    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		answer   = unix.BPF_RET | unix.BPF_K
		protocol = 0xfffff000 // SKF_AD_OFF + SKF_AD_PROTOCOL
	)
	program := []unix.SockFilter{
		{Code: load, K: protocol},
		{Code: equal, Jt: 0, Jf: 2, K: unix.ETH_P_IP},
		{Code: loadByte, K: 9},
		{Code: equal, Jt: 3, Jf: 4, K: unix.IPPROTO_TCP},
		{Code: equal, Jt: 0, Jf: 3, K: unix.ETH_P_IPV6},
		{Code: loadByte, K: 6},
		{Code: equal, Jt: 0, Jf: 1, K: unix.IPPROTO_TCP},
		{Code: answer, K: snapshot},
		{Code: answer, K: 0},
	}
	return &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]} //nolint:gosec // nine
}

// Close ends it.
func (s *Sniffer) Close() error {
	err := s.file.Close()
	<-s.done
	return err
}

func (s *Sniffer) run() {
	defer close(s.done)
	packet := make([]byte, snapshot)
	for {
		n, err := s.file.Read(packet)
		if err != nil {
			if errors.Is(err, unix.ENETDOWN) {
				continue
			}
			return
		}
		if seg, ok := parse(packet[:n]); ok {
			s.take(seg, time.Now())
		}
	}
}

// take notes a segment.
func (s *Sniffer) take(seg segment, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := pair{seg.from, seg.to}
	switch {
	case seg.syn && !seg.ack:
		if len(s.flows) > most {
			maps.DeleteFunc(s.flows, func(_ pair, f *flow) bool { return now.Sub(f.Last) > time.Minute })
		}
		s.flows[key] = &flow{Flow: Flow{Client: seg.from, Server: seg.to}}
		return
	case seg.length == 0:
		return
	}
	f, fromClient := s.flows[key], true
	if f == nil {
		f, fromClient = s.flows[pair{seg.to, seg.from}], false
	}
	if f == nil { // its beginning was missed; a client has the higher port
		fromClient = seg.from.Port() > seg.to.Port()
		if !fromClient {
			key = pair{seg.to, seg.from}
		}
		f = &flow{Flow: Flow{Client: key.client, Server: key.server}}
		s.flows[key] = f
	}
	if f.First.IsZero() {
		f.First = now
	}
	f.Last = now
	if f.Class == "" {
		f.classify(&seg, fromClient)
	}
}

// classify looks at the first bytes; those of a server can be first only where there is no TLS.
func (f *flow) classify(seg *segment, fromClient bool) {
	if !fromClient {
		f.Class = classOf(seg.payload)
		return
	}
	if f.prefix != nil && seg.sequence != f.next {
		return // sent again
	}
	f.prefix, f.next = append(f.prefix, seg.payload...), seg.sequence+uint32(seg.length) //nolint:gosec // wraps around, as it shall
	rest, more := afterProxyHeader(f.prefix)
	if !more && len(f.prefix) < snapshot {
		return
	}
	f.Class, f.prefix = classOf(rest), nil
}

// Flows has the connections that carried bytes since a time.
func (s *Sniffer) Flows(since time.Time) []Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	var flows []Flow
	for _, f := range s.flows {
		if f.Class != "" && !f.Last.Before(since) {
			flows = append(flows, f.Flow)
		}
	}
	return flows
}
