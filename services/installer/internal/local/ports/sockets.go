package ports

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// listening is the state TCP_LISTEN in /proc/net/tcp.
const listening = "0A"

// socket is a listening TCP socket.
type socket struct {
	addr  netip.AddrPort
	inode string
}

// link is what file descriptors of the socket link to.
func (s socket) link() string { return "socket:[" + s.inode + "]" }

// owner finds the process that has the socket open; 0 if it is not to be seen.
func (s socket) owner() (pid int, command string) {
	processes, _ := procfs.AllProcs()
	for _, p := range processes {
		if targets, _ := p.FileDescriptorTargets(); slices.Contains(targets, s.link()) {
			command, _ = p.Comm()
			return p.PID, command
		}
	}
	return 0, ""
}

// sockets lists the listening TCP sockets of the network namespace.
func sockets() []socket {
	var list []socket
	for _, table := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || fields[3] != listening {
				continue
			}
			if addr, ok := parseHex(fields[1]); ok {
				list = append(list, socket{addr: addr, inode: fields[9]})
			}
		}
		_ = f.Close()
	}
	return list
}

// holder returns the process that listens on the address, 0 if it is not visible, and whether it does so on all
// addresses.
func holder(addr netip.AddrPort) (wildcard bool, pid int, command string) {
	for _, s := range sockets() {
		if s.addr.Port() == addr.Port() && (s.addr.Addr() == addr.Addr() || s.addr.Addr().IsUnspecified()) {
			pid, command = s.owner()
			return s.addr.Addr().IsUnspecified(), pid, command
		}
	}
	return false, 0, ""
}

// Listening lists the TCP addresses on which the processes of a process group listen, sorted; group is its leader's
// pid. Processes of other users are not visible.
func Listening(group int) []netip.AddrPort {
	links := map[string]bool{}
	processes, _ := procfs.AllProcs()
	for _, p := range processes {
		if stat, err := p.Stat(); err != nil || stat.PGRP != group {
			continue
		}
		targets, _ := p.FileDescriptorTargets()
		for _, target := range targets {
			links[target] = true
		}
	}
	var list []netip.AddrPort
	for _, s := range sockets() {
		if links[s.link()] {
			list = append(list, s.addr)
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// parseHex parses "0A00007F:1F90": the address in 32-bit words of the machine's byte order, the port in network order
// (proc_net_tcp(5)).
func parseHex(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	if !ok || err != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, false
	}
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	for word := b; len(word) > 0; word = word[4:] {
		binary.BigEndian.PutUint32(word, binary.NativeEndian.Uint32(word))
	}
	addr, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), ok
}
