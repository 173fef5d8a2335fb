package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"fairlead.dev/tests/internal/kubeapi"
)

// Exec replaces this process by a command in the cluster's network, with KUBECONFIG, CLUSTER_KUBECONFIG, CLUSTER_CNI
// (the node's directories of CNI, bin and net.d), CLUSTER_ROOT (its file system), CLUSTER_PROGRAM and CLUSTER_DIR (this
// program, and the --dir it needs for join and leave), CLUSTER_BALANCERS (the range of the addresses that a balancer
// gives) set and kubectl in its PATH.
func Exec(d Dir, command []string) error {
	if err := checkRoot(); err != nil {
		return err
	}
	pid, err := d.Up()
	if err != nil {
		return fmt.Errorf("%w; `make cluster-up` starts one", err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	kubectl, err := kubeapi.Program("kubectl")
	if err != nil {
		return err
	}
	// The command takes the namespace of the thread that starts it.
	runtime.LockOSThread()
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the cluster's network: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	at, err := d.addresses()
	if err != nil {
		return err
	}
	own := map[string]string{
		"KUBECONFIG": d.Kubeconfig(), "CLUSTER_KUBECONFIG": d.Kubeconfig(), "CLUSTER_CNI": d.CNI(), "CLUSTER_PROGRAM": self,
		"CLUSTER_DIR": string(d), "CLUSTER_BALANCERS": at.balancers.String(),
		"CLUSTER_ROOT": fmt.Sprintf("/proc/%d/root", pid), "PATH": os.Getenv("PATH") + ":" + filepath.Dir(kubectl),
	}
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if _, ours := own[name]; !ours {
			env = append(env, v)
		}
	}
	for name, value := range own {
		env = append(env, name+"="+value)
	}
	return syscall.Exec(path, command, env)
}
