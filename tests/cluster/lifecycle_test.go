// Package cluster tests that the cluster of `make cluster-up` comes, ends and leaves nothing, whatever ends it.
package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/cluster/internal/harness"
)

func TestMain(m *testing.M) {
	if os.Getenv("CLUSTER_BIN") == "" {
		fmt.Fprintln(os.Stderr, "tests skipped: CLUSTER_BIN names no directory with the program cluster and its images: run `make test-cluster`")
		return
	}
	os.Exit(m.Run())
}

// upLimit bounds the start of a cluster.
const upLimit = time.Minute

// rig runs the program cluster with a directory of its own.
type rig struct {
	t   *testing.T
	dir harness.Dir
}

func newRig(t *testing.T) *rig {
	t.Helper()
	d, err := harness.NewDir(filepath.Join(t.TempDir(), "cluster"))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t, d}
	t.Cleanup(func() {
		if t.Failed() { // for who reads only the output
			for _, log := range []string{"cluster", "kubelet", "containerd"} {
				raw, _ := os.ReadFile(d.Log(log))
				t.Logf("%s.log ends with\n%s", log, raw[max(0, len(raw)-3000):])
			}
		}
		if _, err := r.run("down"); err != nil {
			t.Error(err)
		}
	})
	return r
}

func program(name string) string { return filepath.Join(os.Getenv("CLUSTER_BIN"), name) }

// command is the program cluster with arguments.
func (r *rig) command(name string, args ...string) *exec.Cmd {
	return exec.Command(program("cluster"), append([]string{name, "--dir", string(r.dir)}, args...)...)
}

// run runs it to its end; the error has what it printed.
func (r *rig) run(name string, args ...string) (string, error) {
	out, err := r.command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cluster %s: %w: %s", name, err, out)
	}
	return string(out), nil
}

func (r *rig) must(name string, args ...string) string {
	r.t.Helper()
	out, err := r.run(name, args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rig) up() string {
	r.t.Helper()
	return r.must("up", program("pause.tar"), program("coredns.tar"))
}

func (r *rig) pid() int {
	r.t.Helper()
	pid, err := r.dir.Up()
	if err != nil {
		r.t.Fatal(err)
	}
	return pid
}

// refuses asserts that a command fails and says something.
func (r *rig) refuses(says, name string, args ...string) {
	r.t.Helper()
	if out, err := r.run(name, args...); err == nil || !strings.Contains(err.Error(), says) {
		r.t.Errorf("%s says %q, %v; want an error with %q", name, out, err, says)
	}
}

// ends waits until the cluster has ended by itself.
func (r *rig) ends() {
	r.t.Helper()
	testkit.Eventually(r.t, testkit.Patience, func() error {
		if _, err := r.dir.PID(); !errors.Is(err, harness.ErrNotUp) {
			return fmt.Errorf("the cluster goes on: %w", err)
		}
		return nil
	})
}

func TestClusterIsUpWithin60s(t *testing.T) {
	before := machine(t)
	r := newRig(t)
	testkit.Quick(t, upLimit, func() time.Duration {
		began := time.Now()
		out := r.up()
		took := time.Since(began)
		t.Log(strings.TrimSpace(out))
		if out := r.must("exec", "kubectl", "get", "nodes", "--no-headers"); !strings.Contains(out, " Ready ") {
			t.Errorf("the nodes are %s", out)
		}
		pid, groups := r.pid(), fmt.Sprint(cgroups(t))
		if !strings.Contains(groups, r.dir.Cgroup()) {
			t.Errorf("control groups are %s", groups)
		}
		namespaces := namespacesOf(t, pid)
		began = time.Now()
		r.must("down")
		t.Logf("down after %.1f s", time.Since(began).Seconds())
		if left := processesIn(t, namespaces); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
		}
		return took
	})
	if _, err := os.Stat(string(r.dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	// What others do on the machine meanwhile ends.
	testkit.Eventually(t, testkit.Patience, func() error {
		for what, now := range machine(t) {
			for line := range strings.Lines(now) {
				if !strings.Contains(before[what], line) {
					return fmt.Errorf("%s: new is %s", what, line)
				}
			}
		}
		return nil
	})
}

func TestEveryEndOfAClusterIsClear(t *testing.T) {
	r := newRig(t)
	if out := r.must("down"); !strings.Contains(out, "no cluster is up") {
		t.Errorf("down without up says %s", out)
	}
	r.refuses("make cluster-up", "exec", "true")
	r.refuses("make cluster-up", "load", program("pause.tar"))

	r.up()
	pid := r.pid()
	if out := r.up(); !strings.Contains(out, "up already") || r.pid() != pid {
		t.Errorf("a second up says %s; process 1 was %d and is %d", out, pid, r.pid())
	}
	r.must("load", program("pause.tar"))
	r.refuses("no-such.tar", "load", program("no-such.tar"))

	// A component that dies ends the cluster, and is named.
	if err := syscall.Kill(componentOf(t, pid, "kube-scheduler"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.ends()
	r.refuses("ended by itself", "exec", "true")
	if raw, err := os.ReadFile(r.dir.Log("cluster")); err != nil || !bytes.Contains(raw, []byte("kube-scheduler ended")) {
		t.Errorf("cluster.log is %s, %v", raw, err)
	}

	// The next up removes what is left; so does down after process 1 was killed.
	r.up()
	pid = r.pid()
	namespaces := namespacesOf(t, pid)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.ends()
	if left := processesIn(t, namespaces); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	r.refuses("ended by itself", "exec", "true")
	if out := r.must("down"); !strings.Contains(out, "nothing of one is left") {
		t.Errorf("down says %s", out)
	}
	r.leavesNothing()
}

// leavesNothing asserts that there is no control group and no file of the cluster, but for those named.
func (r *rig) leavesNothing(but ...string) {
	r.t.Helper()
	for _, g := range cgroups(r.t) {
		if strings.Contains(g, r.dir.Cgroup()) {
			r.t.Errorf("control group %s is left", g)
		}
	}
	entries, err := os.ReadDir(string(r.dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Error(err)
	}
	for _, e := range entries {
		if !slices.Contains(but, e.Name()) {
			r.t.Errorf("%s is left", e.Name())
		}
	}
}

func TestAnUpThatFailsHalfWaySaysWhyAndKeepsOnlyLogs(t *testing.T) {
	r := newRig(t)
	r.refuses("no-such.tar: no such file", "up", program("pause.tar"), program("no-such.tar"))
	if _, err := r.dir.PID(); !errors.Is(err, harness.ErrNotUp) {
		t.Errorf("the cluster runs: %v", err)
	}
	r.leavesNothing("log")
}

// begin starts an up, and returns when the API server has been started.
func (r *rig) begin() (up *exec.Cmd, namespaces []string) {
	r.t.Helper()
	up = r.command("up", program("pause.tar"), program("coredns.tar"))
	if err := up.Start(); err != nil {
		r.t.Fatal(err)
	}
	var pid int
	testkit.Eventually(r.t, testkit.Patience, func() (err error) {
		if _, err := os.Stat(r.dir.Log("kube-apiserver")); err != nil {
			return err
		}
		pid, err = r.dir.PID()
		return err
	})
	return up, namespacesOf(r.t, pid)
}

// The half cluster of an up that was killed, which could not end it, does not stay.
func TestDownAndUpAfterAnUpThatWasKilled(t *testing.T) {
	r := newRig(t)
	for _, next := range []func(){func() { r.must("down") }, func() { r.up() }} {
		up, namespaces := r.begin()
		if err := up.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = up.Wait() // it was killed
		next()
		if left := processesIn(t, namespaces); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
		}
	}
	r.pid()
}

func TestAnInterruptedUpLeavesOnlyLogs(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"by Ctrl-C": syscall.SIGINT, "by SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			up, namespaces := r.begin()
			if err := up.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := up.Wait(); up.ProcessState.ExitCode() != 130 {
				t.Errorf("ended with %v, want exit code 130", err)
			}
			if left := processesIn(t, namespaces); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
			r.leavesNothing("log")
		})
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	r := newRig(t)
	for name, tc := range map[string]struct {
		env  string
		says string
	}{
		"packages": {"PATH=/nonexistent", "apt-get install --no-install-recommends containerd"},
		"programs": {"KUBE_BIN=" + t.TempDir(), "tools/build-cached.sh kubernetes etcd"},
	} {
		up := r.command("up")
		up.Env = append(os.Environ(), tc.env)
		if out, err := up.CombinedOutput(); err == nil || !strings.Contains(string(out), tc.says) {
			t.Errorf("without %s: %v %s", name, err, out)
		}
	}
	// Before anything is built, KUBE_BIN included.
	needs := r.command("needs")
	needs.Env = append(os.Environ(), "PATH=/nonexistent", "KUBE_BIN=")
	if out, err := needs.CombinedOutput(); err == nil || !strings.Contains(string(out), "apt-get install --no-install-recommends containerd") {
		t.Errorf("needs: %v %s", err, out)
	}
	// Everybody may read the program here.
	dir, err := os.MkdirTemp("", "cluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	copied := filepath.Join(dir, "cluster")
	raw, err := os.ReadFile(program("cluster"))
	err = errors.Join(err, os.Chmod(dir, 0o755))
	if err == nil {
		err = os.WriteFile(copied, raw, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"up", "down", "load", "exec"} {
		up := exec.Command(copied, command, "--dir", string(r.dir), "true")
		up.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := up.CombinedOutput(); err == nil || !strings.Contains(string(out), "needs root") {
			t.Errorf("%s without root: %v %s", command, err, out)
		}
	}
	r.refuses("something else is at", "up", "--dir", "/var/lib/kubelet")
	r.leavesNothing()
}

// machine is what a cluster could leave on the machine, by kind, one thing a line.
func machine(t *testing.T) map[string]string {
	t.Helper()
	list := func(lines []string) string { return strings.Join(lines, "\n") + "\n" }
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names, files, sysctls []string
	for _, i := range interfaces {
		names = append(names, i.Name)
	}
	for _, dir := range []string{"/run/containerd", "/run/netns", "/var/lib/kubelet", "/var/lib/cni", "/var/lib/containerd", "/var/log/pods",
		"/var/log/containers", "/etc/cni", "/opt/cni", "/etc/resolv.conf"} {
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil {
				files = append(files, path)
			}
			return nil
		})
	}
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
		"kernel/keys/root_maxbytes",
		"net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables", "net/netfilter/nf_conntrack_max", "kernel/hostname",
	} {
		value, _ := os.ReadFile("/proc/sys/" + name)
		sysctls = append(sysctls, name+" = "+strings.TrimSpace(string(value)))
	}
	rules, err := exec.Command("nft", "list", "ruleset").Output()
	if err != nil {
		t.Fatalf("nft list ruleset: %v", err)
	}
	return map[string]string{
		"mounts": string(mounts), "interfaces": list(names), "files": list(files), "sysctls": list(sysctls), "nft rules": string(rules),
		"control groups": list(cgroups(t)),
	}
}

// cgroups are the paths of all control groups.
func cgroups(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && e.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// namespacesOf are the network and process namespaces of a process.
func namespacesOf(t *testing.T, pid int) []string {
	t.Helper()
	var all []string
	for _, kind := range []string{"net", "pid_for_children"} {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, link)
	}
	return all
}

// processesIn lists the processes that have one of the namespaces.
func processesIn(t *testing.T, namespaces []string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		for _, kind := range []string{"net", "pid"} {
			link, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns", kind))
			if err == nil && slices.Contains(namespaces, link) {
				if command, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")); len(
					command) > 0 { // else it has ended, and its parent has not asked
					found = append(found, e.Name()+" "+strings.ReplaceAll(string(command), "\x00", " "))
				}
				break
			}
		}
	}
	return found
}

// componentOf is the machine's number of a process of the cluster.
func componentOf(t *testing.T, pid int, name string) int {
	t.Helper()
	for _, p := range processesIn(t, namespacesOf(t, pid)) {
		number, command, _ := strings.Cut(p, " ")
		path, _, _ := strings.Cut(command, " ")
		if filepath.Base(path) == name {
			n, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s runs", name)
	return 0
}
