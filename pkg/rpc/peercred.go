package rpc

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// checkPeerUID checks the user at the other end of a unix socket (SO_PEERCRED: the user at the time of connect).
func checkPeerUID(conn net.Conn, allowed []uint32) error {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("peer's user is unknown: not a unix socket")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return fmt.Errorf("peer's user: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return fmt.Errorf("peer's user: %w", err)
	}
	if credErr != nil {
		return fmt.Errorf("peer's user: %w", credErr)
	}
	if !uidAllowed(cred.Uid, allowed) {
		return fmt.Errorf("peer's user %d is not allowed", cred.Uid)
	}
	return nil
}
