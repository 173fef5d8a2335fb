package harness

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"fairlead.dev/tests/internal/kubeapi"
)

// Load imports archives of images into the cluster's container runtime. An image of the same name is replaced.
func Load(ctx context.Context, d Dir, archives []string, out io.Writer) error {
	if err := checkRoot(); err != nil {
		return err
	}
	pid, err := d.Up()
	if err != nil {
		return fmt.Errorf("%w; `make cluster-up` starts one", err)
	}
	return load(ctx, fmt.Sprintf("/proc/%d/root%s", pid, containerdSocket), archives, out)
}

// Tag gives every image of the project that has one tag another one, too: for the node, a version of its own.
func Tag(ctx context.Context, d Dir, from, to string) error {
	if err := checkRoot(); err != nil {
		return err
	}
	pid, err := d.Up()
	if err != nil {
		return fmt.Errorf("%w; `make cluster-up` starts one", err)
	}
	ctr := func(args ...string) (string, error) {
		args = append([]string{"--address", fmt.Sprintf("/proc/%d/root%s", pid, containerdSocket), "--namespace", "k8s.io", "images"}, args...)
		said, err := exec.CommandContext(ctx, "ctr", args...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, said)
		}
		return string(said), nil
	}
	all, err := ctr("list", "--quiet")
	if err != nil {
		return err
	}
	tagged := 0
	for image := range strings.FieldsSeq(all) {
		name, found := strings.CutSuffix(image, ":"+from)
		if !found || !strings.Contains(name, "/fairlead/") {
			continue
		}
		tagged++
		if _, err := ctr("tag", "--force", image, name+":"+to); err != nil {
			return err
		}
	}
	if tagged == 0 {
		return fmt.Errorf("no image fairlead/NAME:%s is loaded; `make cluster-load` loads them", from)
	}
	return nil
}

func load(ctx context.Context, socket string, archives []string, out io.Writer) error {
	for _, a := range archives {
		said, err := exec.CommandContext(ctx, "ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", a).CombinedOutput()
		if err != nil {
			return fmt.Errorf("import %s: %w: %s", a, err, said)
		}
		if out != nil {
			fmt.Fprintf(out, "loaded %s\n", filepath.Base(a))
		}
	}
	return nil
}

// Exec replaces this process by a command in the cluster's network, with KUBECONFIG, CLUSTER_KUBECONFIG and
// CLUSTER_CNI (the node's directories of CNI, bin and net.d) set and kubectl in its PATH.
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
	env := []string{"KUBECONFIG=" + d.Kubeconfig(), "CLUSTER_KUBECONFIG=" + d.Kubeconfig(), "CLUSTER_CNI=" + d.CNI(), "PATH=" + os.Getenv("PATH") + ":" + filepath.Dir(kubectl)}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if name != "KUBECONFIG" && name != "CLUSTER_KUBECONFIG" && name != "PATH" {
			env = append(env, v)
		}
	}
	return syscall.Exec(path, command, env)
}
