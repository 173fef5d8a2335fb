package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// What <linux/sock_diag.h> and <linux/inet_diag.h> say.
const (
	sockDiagByFamily = 20
	sockDestroy      = 21
	netlinkHeader    = 16
	// A request and an answer each have a connection's id, at these places.
	requestSize, requestID = 56, 8
	answerSize, answerID   = 72, 4
	idSize                 = 48
	established            = 1 << 1
)

// Disconnect cuts the TCP connections that the machine has open, except those that keep wants, as if the other side had reset them. It does nothing
// where the kernel cannot do it.
func (h *Host) Disconnect(keep func(local, remote netip.AddrPort) bool) error {
	err := h.In(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			ids, err := connections(fd, family)
			if err != nil {
				return err
			}
			for _, id := range ids {
				if local, remote := ends(family, id); keep(local, remote) {
					continue
				}
				if err := request(fd, sockDestroy, unix.NLM_F_ACK, family, id); err != nil {
					return err
				}
				if err := answers(fd, func([]byte) {}); err != nil && !errors.Is(err, unix.ENOENT) {
					return err
				}
			}
		}
		return nil
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		err = fmt.Errorf("connections of %s: %w", h.Name, err)
	}
	return err
}

// connections lists the ids of those that are open.
func connections(fd int, family byte) ([][]byte, error) {
	if err := request(fd, sockDiagByFamily, unix.NLM_F_DUMP, family, make([]byte, idSize)); err != nil {
		return nil, err
	}
	var ids [][]byte
	err := answers(fd, func(answer []byte) {
		if len(answer) >= answerSize && answer[0] == family {
			ids = append(ids, append([]byte(nil), answer[answerID:answerID+idSize]...))
		}
	})
	return ids, err
}

func request(fd int, kind, flags uint16, family byte, id []byte) error {
	m := make([]byte, netlinkHeader+requestSize)
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint16(m[4:], kind)
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST|flags)
	body := m[netlinkHeader:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], established)
	copy(body[requestID:], id)
	return unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// answers reads to the end of a dump, or to the acknowledgement.
func answers(fd int, each func(answer []byte)) error {
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return err
		}
		for rest := buf[:n]; len(rest) >= netlinkHeader; {
			length := int(binary.NativeEndian.Uint32(rest))
			if length < netlinkHeader || length > len(rest) {
				return unix.EBADMSG
			}
			body := rest[netlinkHeader:length]
			switch binary.NativeEndian.Uint16(rest[4:]) {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				if len(body) < 4 {
					return unix.EBADMSG
				}
				if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
					return unix.Errno(-code)
				}
				return nil
			}
			each(body)
			rest = rest[min((length+3)&^3, len(rest)):]
		}
	}
}

// ends are the addresses of a connection's id.
func ends(family byte, id []byte) (local, remote netip.AddrPort) {
	at := func(port, address int) netip.AddrPort {
		size := 4
		if family == unix.AF_INET6 {
			size = 16
		}
		ip, _ := netip.AddrFromSlice(id[address : address+size])
		return netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(id[port:]))
	}
	return at(0, 4), at(2, 20)
}
