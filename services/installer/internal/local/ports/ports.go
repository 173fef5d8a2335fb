// Package ports finds out which loopback addresses are free for `fairlead up`: Reserve and ReserveAuto reserve a range
// for a mesh, Free hands out ports of 127.0.0.1, Check says which process holds a busy address, and Listening lists the
// addresses on which a process listens.
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

// BusyError says that another process listens on an address.
type BusyError struct {
	Addr netip.AddrPort
	// For names the process that needs the address.
	For string
	// Wildcard is true if the process listens on all addresses, so that the port is taken in every range.
	Wildcard bool
	// PID and Command of the process that listens; PID is 0 if it is another user's.
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
	if e.Wildcard {
		return fmt.Sprintf("port %d, needed by %s, is held on all addresses by %s; stop it: no --loopback-range is free of it", e.Addr.Port(),
			e.For, holder)
	}
	return fmt.Sprintf("address %s, needed by %s, is held by %s; %s", e.Addr, e.For, holder, e.Remedy)
}

// Check returns a *BusyError if the address is in use. It returns nil on other errors, such as missing rights: the
// process that will listen reports these.
func Check(addr netip.AddrPort, wantedBy, remedy string) error {
	lis, err := net.Listen("tcp4", addr.String())
	if err == nil {
		return lis.Close()
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return nil
	}
	busy := &BusyError{Addr: addr, For: wantedBy, Remedy: remedy}
	busy.Wildcard, busy.PID, busy.Command = holder(addr)
	return busy
}

// Ports of Free lie below the range from which the kernel takes ports of outgoing connections (32768 and up by
// default), which could take one before the process listens on it.
const (
	firstFree = 20000
	lastFree  = 32000
)

// Free hands out free TCP ports of 127.0.0.1, each once.
type Free struct{ next, left int }

// NewFree returns a Free that begins at a port depending on seed, so that two meshes on one machine rarely try the
// same.
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
