package cluster

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// neighbour starts a cluster with an index, with the image of echo.
func neighbour(t *testing.T, index int, image string) *rig {
	t.Helper()
	r := newRig(t)
	t.Log(strings.TrimSpace(r.must("up", "--index", fmt.Sprint(index), program("pause.tar"), program("coredns.tar"))))
	r.must("load", image)
	return r
}

func (r *rig) node() netip.Addr {
	r.t.Helper()
	ip, err := netip.ParseAddr(r.must("exec", "kubectl", "get", "node", "node", "-o", "jsonpath={.status.addresses[0].address}"))
	if err != nil {
		r.t.Fatal(err)
	}
	return ip
}

// misses asserts that a Pod gets no answer from a host.
func (r *rig) misses(name, url string) {
	r.t.Helper()
	r.apply(fmt.Sprintf(echo, name, "node", "call, "+url))
	testkit.Eventually(r.t, testkit.Patience, func() error {
		switch phase := r.must("exec", "kubectl", "get", "pod", name, "-o", "jsonpath={.status.phase}"); phase {
		case "Failed":
			return nil
		case "Succeeded":
			r.t.Fatalf("%s reaches %s: %s", name, url, r.must("exec", "kubectl", "logs", name))
			return nil
		default:
			return fmt.Errorf("Pod %s is %s", name, phase)
		}
	})
}

func TestTwoClustersAreJoined(t *testing.T) {
	image := filepath.Join(t.TempDir(), "echo.tar")
	if out, err := exec.Command(program("image"), "-binary", program("echo"), "-name", "fairlead/echo:dev", "-out",
		image).CombinedOutput(); err != nil {
		t.Fatalf("image: %v %s", err, out)
	}
	west, east := neighbour(t, 0, image), neighbour(t, 1, image)
	west.refuses("from 0 to 15", "up", "--index", "16")
	east.refuses("index 1 is up", "up", "--index", "2")
	if ip := west.node(); ip.String() != "192.0.2.10" {
		t.Errorf("the node of index 0 has the address %s", ip)
	}
	// Both have a Pod, and in front of it, at port 8081 of the node, another.
	address := map[*rig]string{}
	for _, r := range []*rig{west, east} {
		r.must("exec", "kubectl", "get", "--raw", "/readyz")
		address[r] = r.serve("server", "node")
		r.apply(strings.ReplaceAll(fmt.Sprintf(echo, "front", "node", "front")+
			"      readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}\n      ports: [{containerPort: 8080, hostPort: 8081}]\n",
			"restartPolicy: Never", "restartPolicy: Always"))
		r.must("exec", "kubectl", "wait", "--for=condition=Ready", "--timeout=60s", "pod/front")
	}
	apart := func(when string) {
		t.Helper()
		for at, other := range map[*rig]*rig{west: east, east: west} {
			if out, err := at.kubectlOf(other, "get", "--raw", "/readyz", "--request-timeout=3s"); err == nil {
				t.Errorf("%s one cluster reaches the other's API server: %s", when, out)
			}
		}
	}
	apart("without a link")

	// Two networks.
	west.must("link", string(east.dir))
	for i, pair := range [][2]*rig{{west, east}, {east, west}} {
		at, other := pair[0], pair[1]
		at.reaches(other)
		at.callsURL(fmt.Sprintf("to-node-%d", i), fmt.Sprintf("http://%s:8081/x", other.node()))
		at.misses(fmt.Sprintf("to-pod-%d", i), fmt.Sprintf("http://%s:8080/x", address[other]))
	}

	// One network, replacing that.
	west.must("link", "--pods", string(east.dir))
	for i, pair := range [][2]*rig{{west, east}, {east, west}} {
		at, other := pair[0], pair[1]
		at.reaches(other)
		at.calls(fmt.Sprintf("routed-%d", i), "node", address[other])
	}

	// A cable that is cut, twice, and mended from the other side.
	west.must("unlink", string(east.dir))
	west.must("unlink", string(east.dir))
	apart("after unlink")
	east.must("link", string(west.dir))
	west.reaches(east)

	// It ends with one of the clusters.
	east.must("down")
	if out := west.must("exec", "ip", "-o", "link"); strings.Contains(out, "cluster1") {
		t.Errorf("the interface to a cluster that has ended is left: %s", out)
	}
	west.refuses("make cluster-up", "link", string(east.dir))
	twin := neighbour(t, 0, image)
	west.refuses("the same index, 0", "link", string(twin.dir))
}

// kubectlOf runs kubectl in the network of a cluster as the administrator of another.
func (r *rig) kubectlOf(other *rig, args ...string) (string, error) {
	return r.run("exec", append([]string{"kubectl", "--kubeconfig", other.dir.Kubeconfig()}, args...)...)
}

// reaches asserts that a cluster reaches another's API server.
func (r *rig) reaches(other *rig) {
	r.t.Helper()
	if out, err := r.kubectlOf(other, "get", "--raw", "/readyz", "--request-timeout=5s"); err != nil || out != "ok" {
		r.t.Errorf("the API server of %s says %q, %v to the cluster in %s", other.dir, out, err, r.dir)
	}
}

// callsURL asserts that a Pod gets an answer.
func (r *rig) callsURL(name, url string) {
	r.t.Helper()
	r.apply(fmt.Sprintf(echo, name, "node", "call, "+url))
	r.must("exec", "kubectl", "wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout="+testkit.Patience.String(), "pod/"+name)
}
