package netns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What <linux/sock_diag.h> and <linux/inet_diag.h> say.
const (
	// A request and an answer each have a connection's id, at these places.
	requestSize, requestID = 56, 8
	answerSize, answerID   = 72, 4
	idSize                 = 48
	established            = 1 << 1
)

// Disconnect cuts the TCP connections that the machine has open, except those that keep wants, as if the other side had
// reset them. It does nothing where the kernel cannot do it.
func (h *Host) Disconnect(keep func(local, remote netip.AddrPort) bool) error {
	err := h.In(func() error {
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			ids, err := connections(family)
			if err != nil {
				return err
			}
			for _, id := range ids {
				if local, remote := ends(family, id); keep(local, remote) {
					continue
				}
				if err := ask(nl.SOCK_DESTROY, unix.NLM_F_ACK, family, id, nil); err != nil && !errors.Is(err, unix.ENOENT) {
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
func connections(family byte) (ids [][]byte, err error) {
	err = ask(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, family, make([]byte, idSize), func(answer []byte) bool {
		if len(answer) >= answerSize && answer[0] == family {
			ids = append(ids, bytes.Clone(answer[answerID:answerID+idSize]))
		}
		return true
	})
	return ids, err
}

// ask sends a request to the kernel's socket diagnosis and hands over each answer, to the end of the dump or to the
// acknowledgement.
func ask(kind, flags int, family byte, id []byte, each func(answer []byte) bool) error {
	body := make([]byte, requestSize)
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], established)
	copy(body[requestID:], id)
	request := nl.NewNetlinkRequest(kind, flags)
	request.AddRawData(body)
	return request.ExecuteIter(unix.NETLINK_INET_DIAG, 0, each)
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
