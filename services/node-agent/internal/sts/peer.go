package sts

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// userListener admits connections of some users of this machine only, by the kernel's table of connections. Others are
// closed.
type userListener struct {
	net.Listener
	uids []uint32
	log  *slog.Logger
}

// Accept implements net.Listener.
func (l userListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(conn)
		if err == nil && !slices.Contains(l.uids, uid) {
			err = fmt.Errorf("user %d", uid)
		}
		if err == nil {
			return conn, nil
		}
		l.log.Warn("connection to the STS refused", "error", err)
		_ = conn.Close()
	}
}

// peerUID returns the user who has opened the other end of a loopback connection.
func peerUID(conn net.Conn) (uint32, error) {
	local, err := addrPort(conn.LocalAddr())
	if err != nil {
		return 0, err
	}
	remote, err := addrPort(conn.RemoteAddr())
	if err != nil {
		return 0, err
	}
	// Not /proc/net, which is the first thread's: that one may be in another network namespace.
	for _, table := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		f, err := os.Open(table)
		if errors.Is(err, os.ErrNotExist) { // no IPv6
			continue
		}
		if err != nil {
			return 0, err
		}
		uid, err := findUID(f, remote, local)
		_ = f.Close()
		if err == nil {
			return uid, nil
		}
	}
	return 0, fmt.Errorf("the connection from %s is not in this machine's tables", remote)
}

func addrPort(a net.Addr) (netip.AddrPort, error) {
	p, err := netip.ParseAddrPort(a.String())
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port()), err
}

// findUID looks in a table of connections for the one from own to other; proc(5) has its format.
func findUID(table io.Reader, own, other netip.AddrPort) (uint32, error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 {
			continue
		}
		if a, err := tableAddress(fields[1]); err != nil || a != own {
			continue
		}
		if a, err := tableAddress(fields[2]); err != nil || a != other {
			continue
		}
		if fields[9] == "0" { // the socket is closed: the kernel then says root, whoever has opened it
			return 0, errors.New("its other end has been closed")
		}
		uid, err := strconv.ParseUint(fields[7], 10, 32)
		return uint32(uid), err
	}
	return 0, errors.Join(lines.Err(), errors.New("not found"))
}

// tableAddress parses "0100007F:1F90": words of 32 bits in the machine's order, which is little endian on the machines
// that Envoy runs on, and the port.
func tableAddress(text string) (netip.AddrPort, error) {
	ip, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(ip)
	if err != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, fmt.Errorf("address %q", text)
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addr, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), nil
}
