package cluster

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/cluster/internal/harness"
)

// echo is a Pod on a node that runs the tests' echo once, with an argument in YAML.
const echo = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  nodeName: %[2]s
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
    - name: echo
      image: fairlead/echo:dev
      imagePullPolicy: Never
      args: [%[3]s]
      env: [{name: HOST, value: 0.0.0.0}, {name: PORT, value: "8080"}]
`

// serve runs echo on a node until it is ready, with a Service of its name, and returns its address.
func (r *rig) serve(name, node string) string {
	r.t.Helper()
	r.apply(fmt.Sprintf(echo, name, node, name) + "      readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}\n")
	r.must("exec", "kubectl", "expose", "pod", name, "--port=8080")
	r.must("exec", "kubectl", "wait", "--for=condition=Ready", "--timeout=60s", "pod/"+name)
	return r.must("exec", "kubectl", "get", "pod", name, "-o", "jsonpath={.status.podIP}")
}

// calls asserts that a Pod on a node gets an answer from a host.
func (r *rig) calls(name, node, host string) {
	r.t.Helper()
	r.apply(fmt.Sprintf(echo, name, node, "call, http://"+net.JoinHostPort(host, "8080")+"/x"))
	testkit.Eventually(r.t, testkit.Patience, func() error {
		phase := r.must("exec", "kubectl", "get", "pod", name, "-o", "jsonpath={.status.phase}")
		switch phase {
		case "Succeeded":
			return nil
		case "Failed":
			r.t.Fatalf("%s on %s calls %s: %s", name, node, host, r.must("exec", "kubectl", "logs", name))
		}
		return fmt.Errorf("Pod %s is %s", name, phase)
	})
}

func (r *rig) apply(document string) {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
		r.t.Fatal(err)
	}
	testkit.Eventually(r.t, testkit.Patience, func() error { // no pod may run before there is the default service account
		_, err := r.run("exec", "kubectl", "apply", "-f", file)
		return err
	})
}

func TestASecondNodeJoinsAndLeaves(t *testing.T) {
	r := newRig(t)
	r.refuses("make cluster-up", "join")
	r.refuses("make cluster-up", "leave")
	r.up()
	nodes := func() string {
		return r.must("exec", "kubectl", "get", "nodes,leases.coordination.k8s.io,csinodes", "-A", "--no-headers", "-o",
			"custom-columns=NAME:.metadata.name")
	}
	t.Log(strings.TrimSpace(r.must("join")))
	if out := r.must("join"); !strings.Contains(out, "there already") {
		t.Errorf("a second join says %s", out)
	}
	r.must("exec", "kubectl", "wait", "--for=condition=Ready", "--timeout=0", "node/"+harness.SecondNode)

	// An image that comes now comes to both nodes.
	image := filepath.Join(t.TempDir(), "echo.tar")
	if out, err := exec.Command(program("image"), "-binary", program("echo"), "-name", "fairlead/echo:dev", "-out",
		image).CombinedOutput(); err != nil {
		t.Fatalf("image: %v %s", err, out)
	}
	r.must("load", image)
	here, there := r.serve("here", "node"), r.serve("there", harness.SecondNode)
	r.calls("to-there", "node", there)
	r.calls("to-here", harness.SecondNode, here)
	// The same by Service and name, both from and at either node.
	r.calls("to-service-there", "node", "there.default.svc.cluster.local")
	r.calls("to-service-here", harness.SecondNode, "here.default.svc.cluster.local")
	if out := r.must("exec", "kubectl", "logs", "to-here"); !strings.Contains(out, `200 OK {"pod"`) {
		t.Errorf("the log of a Pod of the second node is %s", out)
	}

	second := r.namespacesOfSecond()
	r.must("leave")
	if left := processesIn(t, second); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if now := nodes(); strings.Contains(now, harness.SecondNode) {
			return fmt.Errorf("of the node is left: %s", now)
		}
		return nil
	})
	if out := r.must("exec", "kubectl", "get", "pods", "-o", "name"); out != "pod/here\npod/to-service-there\npod/to-there\n" {
		t.Errorf("Pods are left: %s", out)
	}

	// It joins again with all images, also after its process 1 was killed, and ends with the cluster.
	r.must("join")
	r.calls("again", harness.SecondNode, here)
	again := r.namespacesOfSecond()
	pid, err := r.second().Up()
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	(&rig{t, r.second()}).ends()
	if left := processesIn(t, again); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	r.must("join")
	second = r.namespacesOfSecond()
	r.must("down")
	if left := processesIn(t, second); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	r.leavesNothing()
	for _, g := range cgroups(t) {
		if strings.Contains(g, r.second().Cgroup()) {
			t.Errorf("control group %s is left", g)
		}
	}
}

// second is the directory of the second node.
func (r *rig) second() harness.Dir { return harness.Dir(r.dir.Path("second")) }

func (r *rig) namespacesOfSecond() []string {
	r.t.Helper()
	pid, err := r.second().Up()
	if err != nil {
		r.t.Fatal(err)
	}
	return namespacesOf(r.t, pid)
}

func TestAJoinThatFailsHalfWaySaysWhyAndLeavesOnlyLogs(t *testing.T) {
	r := newRig(t)
	r.up()
	join := r.command("join")
	join.Env = append(os.Environ(), "KUBE_BIN="+withoutKubelet(t))
	out, err := join.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "kubelet ended") {
		t.Errorf("a join whose kubelet fails: %v %s", err, out)
	}
	if _, err := os.Stat(string(r.second())); !os.IsNotExist(err) {
		t.Errorf("the node's files are left: %v", err)
	}
	if raw, err := os.ReadFile(r.dir.Path("log", harness.SecondNode, "cluster.log")); err != nil ||
		!strings.Contains(string(raw), "kubelet ended") {
		t.Errorf("the node's log is %s, %v", raw, err)
	}
	if out := r.must("exec", "kubectl", "get", "nodes", "-o", "name"); out != "node/node\n" {
		t.Errorf("nodes are %s", out)
	}
}

// withoutKubelet is a KUBE_BIN in which the kubelet ends at once.
func withoutKubelet(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, from := range filepath.SplitList(os.Getenv("KUBE_BIN")) {
		err := fs.WalkDir(os.DirFS(from), ".", func(name string, e fs.DirEntry, err error) error {
			switch {
			case err != nil || e.IsDir():
				return err
			case name == "kubelet":
				return os.Symlink("/bin/false", filepath.Join(dir, name))
			}
			return os.Symlink(filepath.Join(from, name), filepath.Join(dir, name))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
