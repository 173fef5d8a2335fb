package kube

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/testkit"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

// api is an API server with a config-watcher that has the rights of an installation and reads Secrets everywhere.
type api struct {
	t       *testing.T
	server  *kubeapi.Server
	client  dynamic.Interface
	watcher *watcher
	audit   string // the file of the audit log
}

func newAPI(t *testing.T, s *kubeapi.Server) *api {
	t.Helper()
	kubeconfig := s.User(t, "config-watcher")
	everywhere := append(rules(t, ""), rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets", "configmaps"},
		Verbs: []string{"get", "list", "watch"}})
	s.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")
	s.Grant(t, account, everywhere...)
	audit := filepath.Join(t.TempDir(), "audit.log")
	return &api{t: t, server: s, client: testkit.Must(dynamic.NewForConfig(s.Config))(t),
		watcher: startWatcher(t, kubeconfig, "--audit-log", audit), audit: audit}
}

// watchSecret asks for a Secret on behalf of a gateway of namespace shop that an xds-server has reported.
func (a *api) watchSecret(t *testing.T, namespace, name, account string) *secrets {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	stream, err := secretv1.NewSecretServiceClient(a.watcher.dial("xds-server")).Watch(ctx, grpc.WaitForReady(true))
	testkit.NoError(t, err)
	testkit.NoError(t, stream.Send(&secretv1.WatchRequest{Subscribe: []*secretv1.Subscription{ // of whichever instance
		{Namespace: namespace, Name: name, Identity: a.watcher.ca.ID("shop", account).String()}}}))
	return &secrets{t, stream}
}

// resource are objects of the Gateway API, or of the core group.
func (a *api) resource(name, namespace string) dynamic.ResourceInterface {
	gvr := schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: name}
	switch name {
	case "pods", "services":
		gvr.Group = ""
	case "referencegrants":
		gvr.Version = "v1beta1"
	}
	if namespace == "" {
		return a.client.Resource(gvr)
	}
	return a.client.Resource(gvr).Namespace(namespace)
}

func (a *api) get(resource, namespace, name string) *unstructured.Unstructured {
	a.t.Helper()
	return testkit.Must(a.resource(resource, namespace).Get(a.t.Context(), name, metav1.GetOptions{}))(a.t)
}

// has waits until the status of an object has all lines of statusLines, and returns how long that took.
func (a *api) has(resource, namespace, name string, want ...string) time.Duration {
	a.t.Helper()
	began := time.Now()
	testkit.Eventually(a.t, patience, func() error {
		o, err := a.resource(resource, namespace).Get(a.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		lines := statusLines(o)
		for _, w := range want {
			if !slices.Contains(lines, w) {
				return fmt.Errorf("no %q in\n%s", w, strings.Join(lines, "\n"))
			}
		}
		return nil
	})
	return time.Since(began)
}

// statusLines are what a status of the Gateway API says: "<type>=<status>/<reason> <observedGeneration>", of a listener
// or parent with its name before it, "<listener>: attached <n>", and "address <type> <value>".
func statusLines(o *unstructured.Unstructured) (out []string) {
	conditions := func(prefix string, of map[string]any) {
		list, _ := of["conditions"].([]any)
		for _, c := range list {
			m, _ := c.(map[string]any)
			out = append(out, fmt.Sprintf("%s%v=%v/%v %v", prefix, m["type"], m["status"], m["reason"], m["observedGeneration"]))
		}
	}
	st, _ := o.Object["status"].(map[string]any)
	conditions("", st)
	each := func(field string, f func(map[string]any)) {
		list, _ := st[field].([]any)
		for _, e := range list {
			m, _ := e.(map[string]any)
			f(m)
		}
	}
	each("listeners", func(m map[string]any) {
		out = append(out, fmt.Sprintf("%v: attached %v", m["name"], m["attachedRoutes"]))
		conditions(fmt.Sprint(m["name"], ": "), m)
	})
	each("parents", func(m map[string]any) {
		ref, _ := m["parentRef"].(map[string]any)
		conditions(fmt.Sprint(ref["name"], ": "), m)
	})
	each("ancestors", func(m map[string]any) {
		ref, _ := m["ancestorRef"].(map[string]any)
		conditions(fmt.Sprint(ref["name"], ": "), m)
	})
	each("addresses", func(m map[string]any) { out = append(out, fmt.Sprintf("address %v %v", m["type"], m["value"])) })
	return out
}

func secret(namespace, name string, chain, key []byte) string {
	text := func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
	return fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: %s, namespace: %s}, type: kubernetes.io/tls, data: {tls.crt: %s, "+
		"tls.key: %s}}", name, namespace, text(chain), text(key))
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	return string(testkit.Must(json.Marshal(v))(t))
}
