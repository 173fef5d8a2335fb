package harness

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Init is the cluster's process 1, in namespaces that Up has made. It runs Node in a child and waits for every orphan
// until the child ends; what it returns is how.
func Init(d Dir, images []string) error {
	if os.Getpid() != 1 {
		return errors.New("only `cluster up` runs `cluster init`")
	}
	if err := d.writeIdentity(); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	node, err := syscall.ForkExec("/proc/self/exe", append([]string{"cluster", "node", "--dir", string(d)}, images...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for children: %w", err)
		case pid == node && status.Signaled():
			return fmt.Errorf("the node was ended by signal %d", status.Signal())
		case pid == node:
			return fmt.Errorf("the node ended with status %d", status.ExitStatus())
		}
	}
}
