package redirect

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// In runs f on a thread in the network namespace of a file, such as /var/run/netns/x or /proc/1/ns/net. What f starts
// runs there, too. It needs CAP_SYS_ADMIN.
func In(namespace string, f func() error) error {
	file, err := os.Open(namespace)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer file.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace %s: %w", namespace, err)
			return
		}
		done <- f()
	}()
	return <-done
}
