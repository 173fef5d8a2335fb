package commands

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"fairlead.dev/tests/internal/kubeapi"
)

// kubelet is what an API server asks of a node: logs, and connections to ports of Pods. It runs no Pods.
type kubelet struct {
	// ports are where connections to a Pod's port lead, by "<pod>:<port>", and logs those of containers, by
	// "<namespace>/<pod>/<container>".
	ports, logs map[string]string
}

// node makes a Node whose kubelet answers in this process.
func (k *kubelet) node(t *testing.T, s *kubeapi.Server) {
	t.Helper()
	server := httptest.NewTLSServer(k)
	t.Cleanup(server.Close)
	host, text, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	nodes := s.Client(t).CoreV1().Nodes()
	n, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	if _, err := nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// runs makes a Pod on the node, which runs as far as the API server knows.
func (k *kubelet) runs(t *testing.T, s *kubeapi.Server, pod *corev1.Pod) {
	t.Helper()
	pod.Spec.NodeName = "node"
	pods := s.Client(t).CoreV1().Pods(pod.Namespace)
	made, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Phase = corev1.PodRunning
	for _, c := range made.Spec.Containers {
		made.Status.ContainerStatuses = append(made.Status.ContainerStatuses,
			corev1.ContainerStatus{Name: c.Name, Ready: true, Image: c.Image, ImageID: "x"})
	}
	if _, err := pods.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch kind {
	case "containerLogs":
		text, ok := k.logs[rest]
		if !ok {
			http.Error(w, "the container has no log", http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, text)
	case "portForward":
		_, pod, _ := strings.Cut(rest, "/")
		k.forward(w, r, pod)
	default:
		http.NotFound(w, r)
	}
}

func (k *kubelet) forward(w http.ResponseWriter, r *http.Request, pod string) {
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return
	}
	var mu sync.Mutex
	failures := map[string]httpstream.Stream{}
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		mu.Lock()
		defer mu.Unlock()
		id, port := stream.Headers().Get("requestID"), stream.Headers().Get("port")
		if stream.Headers().Get("streamType") == "error" {
			failures[id] = stream
		} else {
			go k.connect(pod+":"+port, stream, failures[id])
		}
		return nil
	})
	if conn != nil {
		<-conn.CloseChan()
	}
}

func (k *kubelet) connect(to string, data, failure httpstream.Stream) {
	defer data.Close()
	defer failure.Close()
	conn, err := net.Dial("tcp", k.ports[to])
	if err != nil {
		fmt.Fprintf(failure, "error forwarding to %s: connection refused", to)
		return
	}
	defer conn.Close()
	go func() { _, _ = io.Copy(conn, data) }()
	_, _ = io.Copy(data, conn)
}
