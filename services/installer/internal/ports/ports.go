// Package ports looks for free TCP ports and for who holds a busy one.
package ports

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// Check tells whether an address can be listened on now; if it is taken the error is a *BusyError. Other errors, like missing rights, are left
// to the process that will listen, which can say more.
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

// listening is TCP_LISTEN in /proc/net/tcp.
const listening = "0A"

// holder finds the process that listens on the address; 0 if it is not to be seen.
func holder(addr netip.AddrPort) (pid int, command string) {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return 0, ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != listening {
			continue
		}
		local, ok := parseHex(fields[1])
		if !ok || local.Port() != addr.Port() || local.Addr() != addr.Addr() && !local.Addr().IsUnspecified() {
			continue
		}
		return socketOwner(fields[9])
	}
	return 0, ""
}

// parseHex reads "0A00007F:1F90": the address as the machine keeps it, the port in network order (proc_net_tcp).
func parseHex(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	if !ok || err != nil || len(b) != 4 {
		return netip.AddrPort{}, false
	}
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], binary.NativeEndian.Uint32(b))
	return netip.AddrPortFrom(netip.AddrFrom4(a), uint16(n)), true
}

// socketOwner finds the process that has the socket open.
func socketOwner(inode string) (pid int, command string) {
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, ""
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != "socket:["+inode+"]" {
			continue
		}
		dir := filepath.Dir(filepath.Dir(link))
		pid, _ = strconv.Atoi(filepath.Base(dir))
		comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
		return pid, strings.TrimSpace(string(comm))
	}
	return 0, ""
}

// Ports of 127.0.0.1 for applications lie below the range that the kernel takes ports for outgoing connections from (32768 and up by
// default), so that none is taken between being chosen and being listened on.
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
