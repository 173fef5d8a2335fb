package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.dev/tests/internal/wait"
)

// Edge is a Gateway of the Gateway API with one listener for HTTP, whose HTTPRoutes lead to Services that one
// application on loopback stands behind.
type Edge struct {
	// Port is that of the Gateway's listener, Backend that of the application.
	Port, Backend int
}

// Names of the Gateway, which is also that of its namespace, Service and Pod, and where its proxy is.
const (
	EdgeName    = "edge"
	EdgeAddress = "10.9.0.1"
)

const (
	// RoutesPerHost HTTPRoutes have one hostname, and differ in their path.
	RoutesPerHost = 5
	// edgeNamespaces have the routes, all of one hostname in one of them, and edgeServices each.
	edgeNamespaces = 10
	edgeServices   = 10
)

// Resources of the Gateway API.
var (
	HTTPRoutes  = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}
	apiGateways = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"}

	workloadEntries = networking("workloadentries")
)

// HTTPRouteHost and HTTPRoutePath are what HTTPRoute i answers for.
func HTTPRouteHost(i int) string { return fmt.Sprintf("h%d.example.com", i/RoutesPerHost) }

// HTTPRoutePath is the prefix of HTTPRoute i.
func HTTPRoutePath(i int) string { return fmt.Sprintf("/p%d", i%RoutesPerHost) }

func edgeNamespace(n int) string { return fmt.Sprintf("routes-%d", n) }

func httpRouteName(i int) string { return fmt.Sprintf("route-%d", i) }

func httpRouteNamespace(i int) string { return edgeNamespace(i / RoutesPerHost % edgeNamespaces) }

// httpRoute is HTTPRoute i, which adds a header with the text to requests.
func httpRoute(i int, text string) *unstructured.Unstructured {
	return meshObject(HTTPRoutes, "HTTPRoute", httpRouteName(i), httpRouteNamespace(i), map[string]any{
		"parentRefs": []any{map[string]any{"name": EdgeName, "namespace": EdgeName}},
		"hostnames":  []any{HTTPRouteHost(i)},
		"rules": []any{map[string]any{
			"matches": []any{map[string]any{"path": map[string]any{"type": "PathPrefix", "value": HTTPRoutePath(i)}}},
			"filters": []any{map[string]any{"type": "RequestHeaderModifier", "requestHeaderModifier": map[string]any{
				"set": []any{map[string]any{"name": "x-revision", "value": text}}}}},
			"backendRefs": []any{map[string]any{"name": ServiceName(i % edgeServices), "port": int64(80)}},
		}},
	}).Unstructured
}

// LoadEdge defines the kinds by the CustomResourceDefinitions of directories, and creates the Gateway with what its
// routes need.
func (a *API) LoadEdge(ctx context.Context, e Edge, definitions ...string) error {
	for _, d := range definitions {
		if err := a.define(ctx, d); err != nil {
			return err
		}
	}
	namespaces := []string{"istio-system", EdgeName}
	for n := range edgeNamespaces {
		namespaces = append(namespaces, edgeNamespace(n))
	}
	for _, n := range namespaces {
		if _, err := a.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n}},
			metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	// The proxy has no certificate of a mesh.
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "istio"}, Data: map[string]string{"mesh": "enableAutoMtls: false"}}
	if _, err := a.Client.CoreV1().ConfigMaps("istio-system").Create(ctx, settings, metav1.CreateOptions{}); err != nil {
		return err
	}
	selector := map[string]string{"app": "server"}
	for n := range edgeNamespaces {
		for i := range edgeServices {
			s := NewService(ServiceName(i), edgeNamespace(n), selector)
			s.Spec.Ports[0].TargetPort = intstr.FromInt(e.Backend)
			if _, err := a.Client.CoreV1().Services(edgeNamespace(n)).Create(ctx, s, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		// No endpoint of Kubernetes may be on loopback.
		w := meshObject(workloadEntries, "WorkloadEntry", "server", edgeNamespace(n), map[string]any{
			"address": "127.0.0.1", "labels": map[string]any{"app": "server"}})
		if _, err := a.Dynamic.Resource(w.resource).Namespace(edgeNamespace(n)).Create(ctx, w.Unstructured, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return a.loadGateway(ctx, e)
}

// loadGateway creates the Gateway, with a Service and a Pod that somebody else has made for it.
func (a *API) loadGateway(ctx context.Context, e Edge) error {
	at := map[string]string{"gateway": EdgeName}
	service := NewService(EdgeName, EdgeName, at)
	service.Spec.Ports[0].Port, service.Spec.Ports[0].TargetPort = int32(e.Port), intstr.FromInt(e.Port) //nolint:gosec // a port
	if _, err := a.Client.CoreV1().Services(EdgeName).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return err
	}
	pods := a.Client.CoreV1().Pods(EdgeName)
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: EdgeName, Labels: at},
		Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "istio-proxy", Image: "proxy"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: EdgeAddress, PodIPs: []corev1.PodIP{{IP: EdgeAddress}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return err
	}
	gateway := meshObject(apiGateways, "Gateway", EdgeName, EdgeName, map[string]any{
		"gatewayClassName": "istio",
		"addresses":        []any{map[string]any{"type": "Hostname", "value": Host(EdgeName, EdgeName)}},
		"listeners": []any{map[string]any{"name": "http", "port": int64(e.Port), "protocol": "HTTP",
			"allowedRoutes": map[string]any{"namespaces": map[string]any{"from": "All"}}}},
	})
	_, err = a.Dynamic.Resource(apiGateways).Namespace(EdgeName).Create(ctx, gateway.Unstructured, metav1.CreateOptions{})
	return err
}

// CreateHTTPRoutes creates the HTTPRoutes from one number to before another, many at the same time.
func (a *API) CreateHTTPRoutes(ctx context.Context, from, to int) error {
	return parallel(ctx, to-from, func(ctx context.Context, i int) error { return a.CreateHTTPRoute(ctx, from+i) })
}

// DeleteHTTPRoutes deletes them in the same way; those that are not there it leaves out.
func (a *API) DeleteHTTPRoutes(ctx context.Context, from, to int) error {
	return parallel(ctx, to-from, func(ctx context.Context, i int) error {
		return ignoreNotFound(a.DeleteHTTPRoute(ctx, from+i))
	})
}

// CreateHTTPRoute creates HTTPRoute i.
func (a *API) CreateHTTPRoute(ctx context.Context, i int) error {
	_, err := a.Dynamic.Resource(HTTPRoutes).Namespace(httpRouteNamespace(i)).Create(ctx, httpRoute(i, "0"), metav1.CreateOptions{})
	return err
}

// DeleteHTTPRoute deletes HTTPRoute i.
func (a *API) DeleteHTTPRoute(ctx context.Context, i int) error {
	return a.Dynamic.Resource(HTTPRoutes).Namespace(httpRouteNamespace(i)).Delete(ctx, httpRouteName(i), metav1.DeleteOptions{})
}

// ChangeHTTPRoute has HTTPRoute i add a header with another text.
func (a *API) ChangeHTTPRoute(ctx context.Context, i int, text string) error {
	patch, err := httpRoute(i, text).MarshalJSON()
	if err != nil {
		return err
	}
	_, err = a.Dynamic.Resource(HTTPRoutes).Namespace(httpRouteNamespace(i)).Patch(ctx, httpRouteName(i), types.MergePatchType, patch,
		metav1.PatchOptions{})
	return err
}

// Attached waits until the Gateway's status counts so many routes.
func (a *API) Attached(ctx context.Context, routes int, within time.Duration) error {
	return wait.Until(ctx, attachedPoll, within, func() error {
		g, err := a.Dynamic.Resource(apiGateways).Namespace(EdgeName).Get(ctx, EdgeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		listeners, _, _ := unstructured.NestedSlice(g.Object, "status", "listeners")
		for _, l := range listeners {
			listener, _ := l.(map[string]any)
			if n, _, _ := unstructured.NestedInt64(listener, "attachedRoutes"); n == int64(routes) {
				return nil
			}
		}
		return fmt.Errorf("the status of the Gateway does not count %d routes: %v", routes, listeners)
	})
}

// Judged waits until every HTTPRoute has a status.
func (a *API) Judged(ctx context.Context, within time.Duration) error {
	return wait.Until(ctx, judgedPoll, within, func() error {
		list, err := a.Dynamic.Resource(HTTPRoutes).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if parents, _, _ := unstructured.NestedSlice(list.Items[i].Object, "status", "parents"); len(parents) == 0 {
				return fmt.Errorf("HTTPRoute %s has no status", list.Items[i].GetName())
			}
		}
		return nil
	})
}

// attachedPoll and judgedPoll are how often the status of the Gateway is looked at, and those of all routes.
const (
	attachedPoll = 20 * time.Millisecond
	judgedPoll   = 2 * time.Second
)

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
