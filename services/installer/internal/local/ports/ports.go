// Package ports looks for free TCP ports and for who holds a busy one.
package ports

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"strconv"
	"syscall"
)

// BusyError says that an address is taken.
type BusyError struct {
	Addr netip.AddrPort
	// For is what wanted it.
	For string
	// PID and Command of the holder; PID is 0 if it is another user's process.
	PID     int
	Command string
	Remedy  string
}

// Error implements error.
func (e *BusyError) Error() string {
	holder := "a process of another user"
	if e.PID > 0 {
		holder = fmt.Sprintf("pid %d (%s)", e.PID, e.Command)
	}
	return fmt.Sprintf("address %s, needed by %s, is held by %s; %s", e.Addr, e.For, holder, e.Remedy)
}

// Check tells whether an address can be listened on now; if it is taken the error is a *BusyError. Other errors, like
// missing rights, are left to the process that will listen, which can say more.
func Check(addr netip.AddrPort, wantedBy, remedy string) error {
	lis, err := net.Listen("tcp4", addr.String())
	if err == nil {
		return lis.Close()
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return nil
	}
	busy := &BusyError{Addr: addr, For: wantedBy, Remedy: remedy}
	busy.PID, busy.Command = holder(addr)
	return busy
}

// Ports of 127.0.0.1 for applications lie below the range that the kernel takes ports for outgoing connections from
// (32768 and up by default), so that none is taken between being chosen and being listened on.
const (
	firstFree = 20000
	lastFree  = 32000
)

// Free hands out free TCP ports of 127.0.0.1, each once.
type Free struct{ next, left int }

// NewFree begins at a port that depends on seed, so that two meshes on one machine rarely meet.
func NewFree(seed string) *Free {
	h := fnv.New32a()
	_, _ = h.Write([]byte(seed))
	return &Free{next: firstFree + int(h.Sum32())&0x7fffffff%(lastFree-firstFree), left: lastFree - firstFree}
}

// Port returns the next free port.
func (f *Free) Port() (uint16, error) {
	for ; f.left > 0; f.left-- {
		port := f.next
		if f.next++; f.next >= lastFree {
			f.next = firstFree
		}
		lis, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			f.left--
			return uint16(port), lis.Close()
		}
	}
	return 0, fmt.Errorf("no port of 127.0.0.1 from %d to %d is free", firstFree, lastFree)
}
