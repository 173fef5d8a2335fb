package kube

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

// rules are the rights that deploy/ gives to config-watcher, without those for Secrets and for a resource.
func rules(t *testing.T, without string) []rbacv1.PolicyRule {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "deploy", "kustomize", "base", "config-watcher", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := kubeapi.Decode(content)
	if err != nil {
		t.Fatal(err)
	}
	var out []rbacv1.PolicyRule
	for _, o := range objects {
		var role rbacv1.ClusterRole // a Role is decoded alike
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(role.Name, "-credentials") || strings.HasSuffix(role.Name, "-remote-clusters") {
			continue // the tests allow some Secrets only, and grant rights in every namespace
		}
		for _, r := range role.Rules {
			r.Resources = slices.DeleteFunc(r.Resources, func(name string) bool { return name == without })
			if len(r.Resources) > 0 {
				out = append(out, r)
			}
		}
	}
	if len(out) < 5 {
		t.Fatalf("only %v", out)
	}
	return out
}

var account = kubeapi.UserSubject("config-watcher")

func TestAKindThatIsForbiddenDegradesAlone(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	newMesh(t, s)
	s.Apply(t, shop)
	const kind = "VirtualService.networking.istio.io"
	kubeconfig := s.User(t, "config-watcher")
	s.Grant(t, account, rules(t, "virtualservices")...)
	w := startWatcher(t, kubeconfig)
	v := w.subscribe()

	t.Run("it holds nobody up and is named", func(t *testing.T) {
		for _, key := range []string{cartService, cartRule, strictPolicy} {
			v.has(key, nil)
		}
		st := w.until("forbidden", func(st sourceState) bool { return st.degraded(kind) == "forbidden" })
		if len(st.DegradedKinds) != 1 || !st.Synced || st.DegradedKinds[0].Since.IsZero() {
			t.Errorf("%+v", st)
		}
		if n := w.metric("source_kind_degraded"); n != 1 || w.metric("source_kind_degraded", `kind="`+kind+`"`) != 1 {
			t.Errorf("the metric counts %v kinds", n)
		}
		answer, err := w.admin().Status(t.Context(), &configv1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if told := fmt.Sprint(answer.GetSources()); !strings.Contains(told, kind) || !strings.Contains(told, "forbidden") ||
			!strings.Contains(told, "get, list and watch") {
			t.Errorf("the administrator is told %s", told)
		}
		if v.get(cartRoute) != nil {
			t.Error("a forbidden object was read")
		}
	})
	t.Run("it is read as soon as it is allowed", func(t *testing.T) {
		s.Grant(t, account, rules(t, "")...)
		v.has(cartRoute, nil)
		w.until("not degraded", func(st sourceState) bool { return st.Degraded == "" && len(st.DegradedKinds) == 0 })
	})
	t.Run("it keeps its objects when the right is taken away, also over a restart", func(t *testing.T) {
		s.Grant(t, account, rules(t, "virtualservices")...)
		s.Restart(t) // ends the watch, which was allowed
		w.until("forbidden", func(st sourceState) bool { return st.degraded(kind) == "forbidden" })
		hasShop(t, v)
		w.stop()
		w.start()
		w.ready()
		v = w.subscribe()
		hasShop(t, v)
		w.until("forbidden", func(st sourceState) bool { return st.degraded(kind) == "forbidden" && st.Synced })
	})
}

func TestWithoutAnyRightNothingIsServed(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	newMesh(t, s)
	s.Apply(t, shop)
	kubeconfig := s.User(t, "config-watcher")
	w := newWatcher(t, kubeconfig)
	w.start()
	w.until("forbidden for long", func(st sourceState) bool {
		return len(st.DegradedKinds) > 5 && st.degraded("Service") == "forbidden" && time.Since(st.DegradedKinds[0].Since) > 10*time.Second
	})
	if code, body, err := w.get("/readyz"); code != http.StatusServiceUnavailable ||
		!strings.Contains(body, "let config-watcher's service account read it") {
		t.Errorf("%d %s %v", code, body, err)
	}
	if n := w.metric("revision_sequence"); n != 0 {
		t.Errorf("it serves revision %v", n)
	}
	s.Grant(t, account, rules(t, "")...)
	w.ready()
	hasShop(t, w.subscribe())
}

func TestPoliciesThatAreForbiddenHoldTheMeshClosed(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	newMesh(t, s)
	s.Apply(t, shop)
	kubeconfig := s.User(t, "config-watcher")
	s.Grant(t, account, rules(t, "peerauthentications")...)
	w := startWatcher(t, kubeconfig)
	v := w.subscribe()
	w.until("held closed", func(st sourceState) bool { return st.Held == 1 })
	v.has(cartService, nil)
	if v.count("PeerAuthentication") != 1 {
		t.Errorf("%d policies", v.count("PeerAuthentication"))
	}
	s.Grant(t, account, rules(t, "")...)
	v.has(strictPolicy, nil)
	w.until("open", func(st sourceState) bool { return st.Held == 0 && st.Degraded == "" })
	testkit.Eventually(t, patience, func() error {
		if n := v.count("PeerAuthentication"); n != 1 {
			return fmt.Errorf("%d policies", n)
		}
		return nil
	})
}

// gatewayMesh is a gateway that names two Secrets.
const gatewayMesh = `
{apiVersion: v1, kind: Namespace, metadata: {name: edge}}
---
apiVersion: v1
kind: Pod
metadata: {name: gateway-1, namespace: edge, labels: {istio: edge}}
spec: {serviceAccountName: gateway, containers: [{name: a, image: a}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {istio: edge}
  servers:
    - {port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.example], tls: {mode: SIMPLE, credentialName: web-cert}}
    - {port: {number: 444, name: https-2, protocol: HTTPS}, hosts: [b.example], tls: {mode: SIMPLE, credentialName: other-cert}}
`

// tlsSecret is a Secret with a certificate of its own.
func tlsSecret(w *watcher, namespace, name string) string {
	chain, key := w.ca.NewServer("a.example")
	indent := func(text []byte) string { return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\n    ") }
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {name: %s, namespace: %s}\nstringData:\n  tls.crt: "+
		"|\n    %s\n  tls.key: |\n    %s\n---\n",
		name, namespace, indent(chain), indent(key))
}

// secrets is the stream of an xds-server to which a gateway is connected.
type secrets struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[secretv1.WatchRequest, secretv1.WatchResponse]
}

func (w *watcher) gateway() *secrets {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	const instance = "xds-server-test"
	conn := w.dial("xds-server")
	identity := w.ca.ID("edge", "gateway").String()
	report, err := configv1.NewConfigServiceClient(conn).Report(ctx, grpc.WaitForReady(true))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := report.Send(&configv1.ReportRequest{
		Subscriber: &configv1.Subscriber{Instance: instance},
		Proxies:    []*configv1.ProxyStatus{{NodeId: "router~10.0.0.1~gateway-1.edge~edge", Identity: identity, Namespace: "edge"}},
	}); err != nil {
		w.t.Fatal(err)
	}
	stream, err := secretv1.NewSecretServiceClient(conn).Watch(ctx, grpc.WaitForReady(true))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := stream.Send(&secretv1.WatchRequest{Instance: instance,
		Subscribe: []*secretv1.Subscription{{Namespace: "edge", Name: "web-cert", Identity: identity}}}); err != nil {
		w.t.Fatal(err)
	}
	return &secrets{w.t, stream}
}

// next is the version of the next answer; "" for no credential.
func (s *secrets) next() string {
	s.t.Helper()
	m, err := s.stream.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	return m.GetCredential().GetVersion()
}

func TestSecretsAreReadOneByOne(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	newMesh(t, s)
	s.Apply(t, shop+"---"+gatewayMesh)
	named := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"web-cert"},
		Verbs: []string{"get", "list", "watch"}}
	// Nothing but this Secret may be read: a list of all would be forbidden.
	s.Grant(t, account, append(rules(t, ""), named)...)
	w := newWatcher(t, s.User(t, "config-watcher"))
	s.Apply(t, tlsSecret(w, "edge", "web-cert")+tlsSecret(w, "edge", "other-cert")+tlsSecret(w, "edge", "unused"))
	w.start()
	w.ready()
	gateway := w.gateway()
	first := gateway.next()
	if first == "" {
		t.Fatal("the gateway gets no certificate")
	}
	t.Run("one that may not be read is named, the others are served", func(t *testing.T) {
		w.until("forbidden", func(st sourceState) bool { return st.degraded("Secret") == "forbidden" && len(st.DegradedKinds) == 1 })
		answer, err := w.admin().Status(t.Context(), &configv1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if told := fmt.Sprint(answer.GetSources()); !strings.Contains(told, "Secret edge/other-cert") || strings.Contains(told, "web-cert") {
			t.Errorf("the administrator is told %s", told)
		}
		if n := w.metric("source_kind_watches", `kind="Secret"`); n != 1 {
			t.Errorf("%v Secrets are watched", n)
		}
	})
	t.Run("a renewed one arrives", func(t *testing.T) {
		s.Apply(t, tlsSecret(w, "edge", "web-cert"))
		if now := gateway.next(); now == first || now == "" {
			t.Errorf("version %q after %q", now, first)
		}
	})
	t.Run("a restarted config-watcher answers only when it knows", func(t *testing.T) {
		w.stop()
		w.start()
		w.ready()
		if gateway = w.gateway(); gateway.next() == "" {
			t.Error("it said that there is no certificate")
		}
	})
	t.Run("one that is deleted goes", func(t *testing.T) {
		if err := s.Client(t).CoreV1().Secrets("edge").Delete(t.Context(), "web-cert", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if now := gateway.next(); now != "" {
			t.Errorf("version %q is served", now)
		}
	})
	t.Run("nothing is watched that nothing refers to", func(t *testing.T) {
		m := newMesh(t, s)
		gateways := virtualServices
		gateways.Resource = "gateways"
		if err := m.client.Resource(gateways).Namespace("shop").Delete(t.Context(), "edge", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.until("not degraded", func(st sourceState) bool { return st.Degraded == "" && st.degraded("Secret") == "" })
		testkit.Eventually(t, patience, func() error {
			if n := w.metric("source_kind_watches", `kind="Secret"`); n != 0 {
				return fmt.Errorf("%v Secrets are watched", n)
			}
			return nil
		})
	})
}
