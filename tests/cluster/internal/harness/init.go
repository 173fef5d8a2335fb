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
	return processOne(d, "up", append([]string{"node", "--dir", string(d)}, images...))
}

// InitSecond is process 1 of the cluster's second node, in namespaces that Join has made, with files of Join. It is to
// Second what Init is to Node.
func InitSecond(d Dir) error {
	return processOne(d.second(), "join", []string{"second", "--dir", string(d)}, secondFiles...)
}

// processOne is a process 1, with its identity in a directory; maker is the command that starts it, child the one that
// it runs, and files are those that the child gets besides.
func processOne(d Dir, maker string, child []string, files ...uintptr) error {
	if os.Getpid() != 1 {
		return fmt.Errorf("only `cluster %s` runs this command", maker)
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
	node, err := syscall.ForkExec("/proc/self/exe", append([]string{"cluster"}, child...), &syscall.ProcAttr{
		Env: os.Environ(), Files: append([]uintptr{0, 1, 2}, files...),
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
