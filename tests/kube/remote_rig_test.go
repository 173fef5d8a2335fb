package kube

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

// reader is the kubeconfig of a service account of the remote cluster that may read what config-watcher reads.
func reader(t testing.TB, s *kubeapi.Server, account string) string {
	t.Helper()
	path := s.ServiceAccount(t, meshNamespace, account)
	s.Grant(t, kubeapi.ServiceAccountSubject(meshNamespace, account),
		kubeapi.Rule("", []string{"services", "pods", "nodes", "namespaces"}, "get", "list", "watch"),
		kubeapi.Rule("discovery.k8s.io", []string{"endpointslices"}, "get", "list", "watch"),
		kubeapi.Rule("multicluster.x-k8s.io", []string{"serviceexports", "serviceimports"}, "get", "list", "watch"))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// remoteSecret writes a Secret as `istioctl create-remote-secret` does; without a kubeconfig it is removed.
func remoteSecret(t testing.TB, s *kubeapi.Server, name, cluster, kubeconfig string) {
	t.Helper()
	secrets := s.Client(t).CoreV1().Secrets(meshNamespace)
	_ = secrets.Delete(t.Context(), name, metav1.DeleteOptions{}) // it may not be there
	if kubeconfig == "" {
		return
	}
	_, err := secrets.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"istio/multiCluster": "true"},
			Annotations: map[string]string{"networking.istio.io/cluster": cluster}},
		Data: map[string][]byte{cluster: []byte(kubeconfig)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// rotate replaces the kubeconfig of a remote Secret in place.
func rotate(t testing.TB, s *kubeapi.Server, name, cluster, kubeconfig string) {
	t.Helper()
	secrets := s.Client(t).CoreV1().Secrets(meshNamespace)
	secret, err := secrets.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret.Data = map[string][]byte{cluster: []byte(kubeconfig)}
	if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// remoteIs waits until a remote cluster is in a state, and its message has a part.
func (w *watcher) remoteIs(cluster, state, part string) (last *configv1.RemoteCluster) {
	w.t.Helper()
	admin := w.admin()
	testkit.Eventually(w.t, patience, func() error {
		res, err := admin.ListRemoteClusters(w.t.Context(), &configv1.ListRemoteClustersRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		for _, c := range res.GetClusters() {
			if c.GetId() == cluster && strings.HasSuffix(c.GetState().String(), "_"+state) && strings.Contains(c.GetMessage(), part) {
				last = c
				return nil
			}
		}
		return fmt.Errorf("no cluster %s in state %s: %v", cluster, state, res)
	})
	return last
}

// endpointsSeen follows the endpoints of one cluster of Envoy.
type endpointsSeen struct {
	t  testing.TB
	mu sync.Mutex
	// all is "" before the first answer.
	all string
	// never are endpoints that an answer may not lack.
	never []string
}

// followEndpoints subscribes, as a Pod of a cluster, to the endpoints of a cluster of Envoy.
func followEndpoints(t testing.TB, w *watcher, xds, cluster, pod, account, name string) *endpointsSeen {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream := testkit.Must(adstest.OpenDelta(ctx, w.dialADS(xds, account),
		adstest.Node(adstest.Sidecar("10.9.9.9", pod, "shop"), map[string]any{"CLUSTER_ID": cluster})))(t)
	testkit.NoError(t, stream.Subscribe(resource.EndpointType, name))
	seen := &endpointsSeen{t: t}
	go func() {
		_ = stream.Follow(func(m *discovery.DeltaDiscoveryResponse) error { // ends with the test
			for _, r := range m.GetResources() {
				seen.take(r)
			}
			return nil
		})
	}()
	return seen
}

func (e *endpointsSeen) take(r *discovery.Resource) {
	var m endpointv3.ClusterLoadAssignment
	if err := r.GetResource().UnmarshalTo(&m); err != nil {
		e.t.Error(err)
		return
	}
	out := []string{}
	for _, l := range m.GetEndpoints() {
		for _, ep := range l.GetLbEndpoints() {
			at := ep.GetEndpoint().GetAddress().GetSocketAddress()
			text := strings.TrimSuffix(fmt.Sprintf("%s:%d %s", at.GetAddress(), at.GetPortValue(), l.GetLocality().GetRegion()), " ")
			if l.GetPriority() > 0 {
				text += " last"
			}
			out = append(out, text)
		}
	}
	slices.Sort(out)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, must := range e.never {
		if !slices.Contains(out, must) {
			e.t.Errorf("%s is missing in an answer: %v", must, out)
		}
	}
	e.all = "[" + strings.Join(out, ", ") + "]"
}

func (e *endpointsSeen) now() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all
}

// neverMisses has the test fail if an answer lacks one of these endpoints from now on.
func (e *endpointsSeen) neverMisses(endpoints ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.never = endpoints
}

// become waits until the endpoints are these, each "address:port region", with " last" if others go before it.
func (e *endpointsSeen) become(what string, want ...string) {
	e.t.Helper()
	text := "[" + strings.Join(want, ", ") + "]"
	testkit.Eventually(e.t, patience, func() error {
		if got := e.now(); got != text {
			return fmt.Errorf("%s: endpoints %s, want %s", what, got, text)
		}
		return nil
	})
}

// stay checks that the endpoints are these all the time.
func (e *endpointsSeen) stay(d time.Duration, want ...string) {
	e.t.Helper()
	text := "[" + strings.Join(want, ", ") + "]"
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if got := e.now(); got != text {
			e.t.Fatalf("endpoints %s, want %s to stay", got, text)
		}
	}
}
