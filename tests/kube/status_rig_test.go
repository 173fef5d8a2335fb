package kube

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/tests/internal/kubeapi"
)

// startReplicas starts two config-watchers that are each other's peers: leader is the one that writes.
func startReplicas(t *testing.T, s *kubeapi.Server) (leader, other *watcher) {
	t.Helper()
	ca := testkit.PKI(t)
	leader, other = newReplica(t, ca, s.Kubeconfig), newReplica(t, ca, s.Kubeconfig)
	leader.args, other.args = append(leader.args, "--peers", other.grpc), append(other.args, "--peers", leader.grpc)
	leader.start()
	leader.ready()
	testkit.Eventually(t, patience, func() error {
		if leader.metric("status_leader") != 1 {
			return fmt.Errorf("the only replica does not lead")
		}
		return nil
	})
	other.start()
	other.ready()
	return leader, other
}

// proxy is a client of ADS in place of a workload's Envoy.
type proxy struct {
	mu sync.Mutex
	// refuse, if not empty, is a cluster that the proxy rejects with the words.
	refuse, words string
	// leave ends the connection.
	leave func()
}

// rejects makes the proxy reject every further version of a cluster.
func (p *proxy) rejects(cluster, words string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse, p.words = cluster, words
}

// dialADS connects to an xds-server as a workload of namespace shop.
func (w *watcher) dialADS(address, account string) *grpc.ClientConn {
	w.t.Helper()
	conn := testkit.Must(rpc.Dial(rpc.ClientConfig{Target: address,
		TLS: tlsconf.Client(w.ca.NewSVID("shop", account), w.ca.ID(meshNamespace, "xds-server")), MaxRecvBytes: 32 << 20}))(w.t)
	w.t.Cleanup(func() { _ = conn.Close() }) // the test is over
	return conn
}

// connectProxy connects a workload of namespace shop, whose service account and WorkloadEntry have its name.
// metadata is added to its node.
func connectProxy(t testing.TB, w *watcher, address, name, ip string, metadata map[string]any) *proxy {
	t.Helper()
	return connectNode(t, w, address, adstest.Sidecar(ip, name, "shop"), name, metadata)
}

// connectNode connects a node of namespace shop with a service account.
func connectNode(t testing.TB, w *watcher, address, node, name string, metadata map[string]any) *proxy {
	t.Helper()
	conn := w.dialADS(address, name)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	late := time.AfterFunc(patience, cancel)
	stream, err := adstest.OpenDelta(ctx, conn, adstest.Node(node, metadata))
	if err != nil || !late.Stop() {
		t.Fatalf("the xds-server does not answer: %v", err)
	}
	testkit.NoError(t, stream.Subscribe(resource.ClusterType, "*"))
	p := &proxy{leave: cancel}
	go func() {
		_ = stream.Follow(func(m *discovery.DeltaDiscoveryResponse) error { // ends with the test
			p.mu.Lock()
			defer p.mu.Unlock()
			if slices.ContainsFunc(m.GetResources(), func(r *discovery.Resource) bool { return r.GetName() == p.refuse }) {
				return errors.New(p.words)
			}
			return nil
		})
	}()
	return p
}

// kubectlWait runs `kubectl wait --for=condition=...` and returns how long it took.
func kubectlWait(t testing.TB, s *kubeapi.Server, condition, object string, timeout time.Duration) time.Duration {
	t.Helper()
	path, err := kubeapi.Program("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	out, err := exec.Command(path, "--kubeconfig", s.Kubeconfig, "-n", "shop", "wait", "--for=condition="+condition, object,
		"--timeout="+timeout.String()).CombinedOutput()
	if err != nil {
		t.Fatalf("after %s: %v: %s\n%s", time.Since(began).Round(time.Millisecond), err, out, statusText(t, s, object))
	}
	return time.Since(began)
}

// statusText is the status of "destinationrules/name" in namespace shop: "<generation>" and "<type>=<status>/<reason>
// <observedGeneration>: <message>", one a line.
func statusText(t testing.TB, s *kubeapi.Server, object string) string {
	t.Helper()
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	plural, name, _ := strings.Cut(object, "/")
	return statusOf(t, client, schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: plural}, "shop", name)
}

func statusOf(t testing.TB, client dynamic.Interface, resource schema.GroupVersionResource, namespace, name string) string {
	t.Helper()
	o, err := client.Resource(resource).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	st, _ := o.Object["status"].(map[string]any)
	lines := []string{fmt.Sprint("generation ", o.GetGeneration(), ", observed ", st["observedGeneration"])}
	conditions, _ := st["conditions"].([]any)
	for _, c := range conditions {
		m, _ := c.(map[string]any)
		lines = append(lines, fmt.Sprintf("%v=%v/%v %v: %v", m["type"], m["status"], m["reason"], m["observedGeneration"], m["message"]))
	}
	return strings.Join(lines, "\n")
}

// statusHas waits until a status has all of the texts, and returns how long that took.
func statusHas(t testing.TB, s *kubeapi.Server, object string, want ...string) time.Duration {
	t.Helper()
	began := time.Now()
	testkit.Eventually(t, patience, func() error {
		got := statusText(t, s, object)
		for _, w := range want {
			if !strings.Contains(got, w) {
				return fmt.Errorf("no %q in\n%s", w, got)
			}
		}
		return nil
	})
	return time.Since(began)
}
