package ports

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// listening is the state TCP_LISTEN in /proc/net/tcp.
const listening = "0A"

// socket is a listening TCP socket.
type socket struct {
	addr  netip.AddrPort
	inode string
}

// sockets lists the listening TCP sockets of the network namespace.
func sockets() []socket {
	var list []socket
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
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

// holder returns the process that listens on the address; 0 if it is not visible.
func holder(addr netip.AddrPort) (pid int, command string) {
	for _, s := range sockets() {
		if s.addr.Port() == addr.Port() && (s.addr.Addr() == addr.Addr() || s.addr.Addr().IsUnspecified()) {
			return socketOwner(s.inode)
		}
	}
	return 0, ""
}

// Listening lists the TCP addresses on which the processes of a process group listen, sorted; group is its leader's
// pid. Processes of other users are not visible.
func Listening(group int) []netip.AddrPort {
	inodes := map[string]bool{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		if processGroup(stat) != group {
			continue
		}
		links, _ := filepath.Glob(filepath.Join(filepath.Dir(stat), "fd", "*"))
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil {
				inodes[target] = true
			}
		}
	}
	var list []netip.AddrPort
	for _, s := range sockets() {
		if inodes["socket:["+s.inode+"]"] {
			list = append(list, s.addr)
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// processGroup reads the process group from /proc/PID/stat; 0 if the process is gone. The command's name, in
// parentheses, may hold spaces (proc_pid_stat).
func processGroup(stat string) int {
	raw, err := os.ReadFile(stat)
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:])) // state, parent, group
	if len(fields) < 3 {
		return 0
	}
	group, _ := strconv.Atoi(fields[2])
	return group
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
