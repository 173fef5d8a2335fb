package kube

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

// services and routes are together the 10,000 objects of TestTenThousandObjects.
const services, routes = 8000, 2000

// parallel calls f with 0 to n-1, from several goroutines.
func parallel(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	const workers = 16
	next, failed := make(chan int), make(chan error, workers)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			var first error
			for i := range next {
				if err := f(i); err != nil && first == nil {
					first = err
				}
			}
			failed <- first
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	for range workers {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
}

// watchesOf counts the watches that an API server serves for config-watchers' kinds.
func watchesOf(t *testing.T, client kubernetes.Interface) map[string]string {
	t.Helper()
	raw, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "apiserver_longrunning_requests{") && strings.Contains(line, `verb="WATCH"`) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
			out[name] = value
		}
	}
	return out
}

// routeWatches is the number of watches of VirtualServices, which only config-watchers have.
func routeWatches(t *testing.T, client kubernetes.Interface) int {
	t.Helper()
	n := 0
	for name, value := range watchesOf(t, client) {
		var v float64
		if strings.Contains(name, `resource="virtualservices"`) {
			if _, err := fmt.Sscan(value, &v); err != nil {
				t.Fatal(err)
			}
			n += int(v)
		}
	}
	return n
}

func TestTenThousandObjects(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	m := newMesh(t, s)
	client := s.Client(t)
	began := time.Now()
	parallel(t, services+routes, func(i int) error {
		if i < services {
			o := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s-%d", i)},
				// Addresses of the API server's range would be used up.
				Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
			}
			_, err := client.CoreV1().Services(appsNamespace).Create(t.Context(), o, metav1.CreateOptions{})
			return err
		}
		_, err := m.client.Resource(virtualServices).Namespace(appsNamespace).Create(t.Context(), route(i-services, "first"),
			metav1.CreateOptions{})
		return err
	})
	t.Logf("%d objects are created after %.1f s", services+routes, time.Since(began).Seconds())

	var w *watcher
	var v *view
	testkit.Quick(t, 20*time.Second, func() time.Duration {
		if w != nil {
			w.stop()
		}
		began := time.Now()
		w = startWatcher(t, s.Kubeconfig)
		took := time.Since(began)
		t.Logf("config-watcher is ready after %.1f s", took.Seconds())
		return took
	})
	v = w.subscribe()
	counted := func() {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			if s, r := v.count("Service"), v.count("VirtualService"); s < services || r != routes {
				return fmt.Errorf("%d Services, %d VirtualServices", s, r)
			}
			return nil
		})
	}
	counted()
	if st, err := testkit.ProcessStatus(w.process.PID()); err != nil {
		t.Error(err)
	} else {
		t.Logf("it uses %d MiB, at most %d MiB so far", st.VmRSS>>20, st.VmHWM>>20)
	}

	t.Run("subscribers add no watch, and each config-watcher has one of a kind", func(t *testing.T) {
		one := w.metric("source_kind_watches")
		if n := routeWatches(t, client); n != 1 {
			t.Errorf("the API server serves %d watches of VirtualServices to one config-watcher", n)
		}
		w.subscribe()
		w.subscribe()
		others := []*watcher{startWatcher(t, s.Kubeconfig), startWatcher(t, s.Kubeconfig)}
		for _, other := range others {
			if n := other.metric("source_kind_watches"); n != one {
				t.Errorf("%v watches, the first config-watcher has %v", n, one)
			}
		}
		if n := w.metric("source_kind_watches"); n != one {
			t.Errorf("%v watches with three subscribers, %v with one", n, one)
		}
		if n := routeWatches(t, client); n != 3 {
			t.Errorf("the API server serves %d watches of VirtualServices to three config-watchers", n)
		}
		for _, other := range others {
			other.stop()
		}
	})

	t.Run("a storm of changes coalesces, and nothing is lost", func(t *testing.T) {
		before := w.metric("revision_sequence")
		parallel(t, routes, func(i int) error {
			_, err := m.client.Resource(virtualServices).Namespace(appsNamespace).Patch(t.Context(), fmt.Sprintf("r-%d", i), types.MergePatchType,
				[]byte(`{"metadata": {"labels": {"state": "second"}}}`), metav1.PatchOptions{})
			return err
		})
		testkit.Eventually(t, patience, func() error {
			for i := range routes {
				key := fmt.Sprintf("VirtualService %s/r-%d", appsNamespace, i)
				if got := v.get(key).GetIstioConfig().GetLabels()["state"]; got != "second" {
					return fmt.Errorf("%s is %q", key, got)
				}
			}
			return nil
		})
		if n := w.metric("revision_sequence") - before; n > routes {
			t.Errorf("%v revisions of %d changes", n, routes)
		} else {
			t.Logf("%v revisions of %d changes", n, routes)
		}
	})

	t.Run("a restart of the API server changes nothing", func(t *testing.T) {
		removed, sequence := v.removals(), w.metric("revision_sequence")
		s.Restart(t)
		s.Apply(t, "{apiVersion: v1, kind: Service, metadata: {name: after, namespace: "+appsNamespace+
			"}, spec: {ports: [{name: http, port: 80}]}}")
		v.has("Service apps/after.apps.svc.cluster.local", nil)
		counted()
		if n := v.removals() - removed; n != 0 {
			t.Errorf("%d resources were removed", n)
		}
		if n := w.metric("revision_sequence") - sequence; n > 3 {
			t.Errorf("%v revisions for one new Service", n)
		}
	})

	t.Run("all of a kind are deleted at once", func(t *testing.T) {
		if err := m.client.Resource(virtualServices).Namespace(appsNamespace).DeleteCollection(t.Context(), metav1.DeleteOptions{},
			metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, patience, func() error {
			if n := v.count("VirtualService"); n != 0 {
				return fmt.Errorf("%d VirtualServices are left", n)
			}
			return nil
		})
		v.has("Service apps/after.apps.svc.cluster.local", func(r *configv1.Resource) bool { return v.count("Service") >= services })
	})
}

// route is a VirtualService of a state.
func route(i int, state string) *unstructured.Unstructured {
	host := fmt.Sprintf("s-%d", i)
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
		"metadata": map[string]any{"name": fmt.Sprintf("r-%d", i), "namespace": appsNamespace, "labels": map[string]any{"state": state}},
		"spec": map[string]any{
			"hosts": []any{host}, "http": []any{map[string]any{"route": []any{map[string]any{"destination": map[string]any{"host": host}}}}},
		},
	}}
}

// listRequests is the number of lists of VirtualServices that an API server has answered.
func listRequests(t *testing.T, client kubernetes.Interface) (n float64) {
	t.Helper()
	raw, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "apiserver_request_total{") && strings.Contains(line, `resource="virtualservices"`) &&
			strings.Contains(line, `verb="LIST"`) {
			var v float64
			if _, err := fmt.Sscan(line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1:], &v); err != nil {
				t.Fatal(err)
			}
			n += v
		}
	}
	return n
}

// TestFirstList: an API server that can stream the first list is asked for that, another one for pages.
func TestFirstList(t *testing.T) {
	const objects, page = 1200, 500
	for name, c := range map[string]struct {
		args     []string
		requests float64
	}{
		"streamed": {nil, 0},
		"in pages": {[]string{"--feature-gates=WatchList=false"}, (objects + page - 1) / page},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubeapi.Start(t, kubeapi.Options{Args: c.args})
			m, client := newMesh(t, s), s.Client(t)
			parallel(t, objects, func(i int) error {
				_, err := m.client.Resource(virtualServices).Namespace(appsNamespace).Create(t.Context(), route(i, "first"), metav1.CreateOptions{})
				return err
			})
			before := listRequests(t, client)
			w := startWatcher(t, s.Kubeconfig)
			if n := w.metric("source_kind_objects", `kind="VirtualService.networking.istio.io"`); n != objects {
				t.Errorf("%v objects", n)
			}
			if n := listRequests(t, client) - before; n != c.requests {
				t.Errorf("%v lists, want %v", n, c.requests)
			}
			if strings.Contains(w.process.Log(), "kind cannot be read") {
				t.Error("it says that a kind cannot be read")
			}
		})
	}
}
