package sts

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// init keeps TestMain on the process's first thread.
func init() { runtime.LockOSThread() }

// TestMain runs the tests while the first thread is in a network namespace of its own, as one of a program that enters
// Pods' namespaces may be: the tables of connections are those of the thread that asks.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			fmt.Fprintln(os.Stderr, "the first thread stays in the namespace of the others:", err)
		}
	}
	os.Exit(m.Run())
}
