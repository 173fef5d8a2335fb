package agenttest

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// AnotherUser is a user of the machine who is neither root nor the agent's.
const AnotherUser = 65534

// As calls f as another user: files and sockets that f opens are that user's. It skips the test if it may not.
func As(t *testing.T, uid int, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act as another user")
	}
	done := make(chan error)
	go func() {
		// The thread is locked and not unlocked, so it ends with the goroutine and its user with it.
		runtime.LockOSThread()
		for _, call := range []struct{ number, id uintptr }{{unix.SYS_SETRESGID, uintptr(uid)}, {unix.SYS_SETRESUID, uintptr(uid)}} {
			if _, _, errno := unix.RawSyscall(call.number, ^uintptr(0), call.id, ^uintptr(0)); errno != 0 {
				done <- errno
				return
			}
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
