package envoy

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The capability is dropped from one thread, which ends with its goroutine.
func TestMayAdministerNetwork(t *testing.T) {
	if os.Getuid() == 0 {
		if err := MayAdministerNetwork(); err != nil {
			t.Error(err)
		}
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			result <- err
			return
		}
		result <- MayAdministerNetwork()
	}()
	if err := <-result; !errors.Is(err, ErrNoNetAdmin) {
		t.Errorf("without the capability: %v", err)
	}
}
