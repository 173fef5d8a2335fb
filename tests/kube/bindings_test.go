package kube

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

const (
	credentialsRole  = "fairlead-config-watcher-credentials"
	registrationRole = "fairlead-config-watcher-registration"
)

var (
	watcherAccount = kubeapi.ServiceAccountSubject("istio-system", "config-watcher")
	entriesKind    = schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "workloadentries"}
)

// boundMesh is an installation's accounts and rights on an API server, and its keeper, which runs with its own account.
type boundMesh struct {
	*kubeapi.Server
	t testing.TB
	// thief has the token of config-watcher's account.
	kubeconfig string
	thief      *kubernetes.Clientset
	entries    dynamic.NamespaceableResourceInterface
}

func bind(t *testing.T, args ...string) *boundMesh {
	t.Helper()
	s := kubeapi.Start(t, kubeapi.Options{})
	newMesh(t, s)
	install(t, s, accountsOf(t, filepath.Join("..", "..", "deploy", "kustomize", "base")))
	kubeapi.Keeper(t, s.ServiceAccount(t, "istio-system", "keeper"), "", append([]string{
		"--bind-credentials", credentialsRole, "--bind-registration", registrationRole, "--bind-to", "istio-system/config-watcher",
	}, args...)...)
	m := &boundMesh{Server: s, t: t, kubeconfig: s.ServiceAccount(t, watcherAccount.Namespace, watcherAccount.Name)}
	config := kubeapi.Load(t, m.kubeconfig)
	var err, err2 error
	m.thief, err = kubernetes.NewForConfig(config)
	client, err2 := dynamic.NewForConfig(config)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	m.entries = client.Resource(entriesKind)
	return m
}

// reads are the namespaces whose Secrets the token of config-watcher reads, besides its own.
func (m *boundMesh) reads() string {
	return m.may(func(ctx context.Context, namespace string) error {
		_, err := m.thief.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
		return err
	})
}

// writes are the namespaces in which the token makes WorkloadEntries.
func (m *boundMesh) writes() string {
	return m.may(func(ctx context.Context, namespace string) error {
		entry := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry", "metadata": map[string]any{"name": "forged"},
			"spec": map[string]any{"address": "10.0.0.1"},
		}}
		_, err := m.entries.Namespace(namespace).Create(ctx, entry, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
}

func (m *boundMesh) may(do func(ctx context.Context, namespace string) error) string {
	m.t.Helper()
	ctx := context.Background()
	all, err := m.Client(m.t).CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	var out []string
	for _, n := range all.Items {
		switch err := do(ctx, n.Name); {
		case n.Name == watcherAccount.Namespace:
		case err == nil:
			out = append(out, n.Name)
		case !apierrors.IsForbidden(err):
			m.t.Fatal(err)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (m *boundMesh) eventually(what, want string, get func() string) {
	m.t.Helper()
	testkit.Eventually(m.t, patience, func() error {
		if got := get(); got != want {
			return fmt.Errorf("it %s in %q, want %q", what, got, want)
		}
		return nil
	})
}

func (m *boundMesh) remove(of schema.GroupVersionResource, namespace, name string) {
	m.t.Helper()
	client, err := dynamic.NewForConfig(m.Config)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := client.Resource(of).Namespace(namespace).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		m.t.Fatal(err)
	}
}

func istioKind(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: resource}
}

// TestConfigWatcherHasRightsOnlyWhereTheyAreNeeded takes config-watcher's token, as a thief would, while objects that
// need rights come and go.
func TestConfigWatcherHasRightsOnlyWhereTheyAreNeeded(t *testing.T) {
	m := bind(t, "--bind-grace", "1s")
	if in := m.reads(); in != "" {
		t.Fatalf("it reads Secrets of %s, which nothing needs", in)
	}
	if in := m.writes(); in != "" {
		t.Fatalf("it makes WorkloadEntries in %s, which nothing needs", in)
	}
	m.Apply(t, shop+"---"+gatewayMesh)
	m.eventually("reads Secrets", "edge", m.reads)
	m.Apply(t, `
{apiVersion: v1, kind: Namespace, metadata: {name: own}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: vms}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: own, namespace: own}
spec: {host: a.example, workloadSelector: {matchLabels: {app: a}}, subsets: [{name: a, trafficPolicy: {portLevelSettings: [{port: {number: 443}, tls: {mode: MUTUAL, credentialName: c}}]}}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: no-credential, namespace: vms}
spec: {host: a.example, workloadSelector: {matchLabels: {app: a}}, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: machines, namespace: vms}
spec: {template: {serviceAccount: vm}}
`)
	m.eventually("reads Secrets", "edge own", m.reads)
	m.eventually("makes WorkloadEntries", "vms", m.writes)
	t.Run("an Ingress's Secret is read where the gateways of Ingresses are", func(t *testing.T) {
		m.Apply(t, `
{apiVersion: v1, kind: Namespace, metadata: {name: ingress}}
---
apiVersion: v1
kind: Pod
metadata: {name: gateway-1, namespace: ingress, labels: {istio: ingressgateway}}
spec: {containers: [{name: a, image: a}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: shop}
spec: {tls: [{hosts: [a.example], secretName: web}], defaultBackend: {service: {name: a, port: {number: 80}}}}
`)
		m.eventually("reads Secrets", "edge ingress own", m.reads)
	})
	t.Run("rights end after what needed them", func(t *testing.T) {
		m.remove(istioKind("gateways"), "shop", "edge")
		m.remove(istioKind("destinationrules"), "own", "own")
		m.remove(istioKind("workloadgroups"), "vms", "machines")
		m.eventually("reads Secrets", "ingress", m.reads)
		m.eventually("makes WorkloadEntries", "", m.writes)
	})
	t.Run("a binding that somebody removes or changes comes back", func(t *testing.T) {
		bindings := m.Client(t).RbacV1().RoleBindings("ingress")
		if err := bindings.Delete(t.Context(), credentialsRole, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		m.eventually("reads Secrets", "ingress", m.reads)
		b, err := bindings.Get(t.Context(), credentialsRole, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b.Subjects = []rbacv1.Subject{kubeapi.ServiceAccountSubject("ingress", "thief")}
		if _, err := bindings.Update(t.Context(), b, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		m.eventually("reads Secrets", "ingress", m.reads)
	})
	t.Run("a binding of somebody else's stays as it is", func(t *testing.T) {
		bindings := m.Client(t).RbacV1().RoleBindings("edge")
		foreign := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: credentialsRole},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
			Subjects:   []rbacv1.Subject{kubeapi.UserSubject("somebody")},
		}
		if _, err := bindings.Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		m.Apply(t, gatewayMesh)
		time.Sleep(3 * time.Second)
		b, err := bindings.Get(t.Context(), credentialsRole, metav1.GetOptions{})
		if err != nil || b.RoleRef.Name != "view" || b.Subjects[0].Name != "somebody" {
			t.Errorf("%v %v", b, err)
		}
		if err := bindings.Delete(t.Context(), credentialsRole, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		m.eventually("reads Secrets", "edge ingress", m.reads)
	})
	t.Run("Secrets that objects of the Gateway API name are read, once its definitions are there", func(t *testing.T) {
		m.ApplyCRDs(t, kubeapi.GatewayAPICRDs(t, "standard"))
		m.Apply(t, `
{apiVersion: v1, kind: Namespace, metadata: {name: keys}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: istio}, spec: {controllerName: istio.io/gateway-controller}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: own}
spec:
  gatewayClassName: istio
  listeners:
  - {name: a, port: 443, hostname: a.example, protocol: HTTPS, tls: {certificateRefs: [{name: own}]}}
  - {name: b, port: 443, hostname: b.example, protocol: HTTPS, tls: {certificateRefs: [{name: far, namespace: keys}]}}
`)
		m.eventually("reads Secrets", "edge ingress own", m.reads)
		m.Apply(t, strings.ReplaceAll(secretGrant, "namespace: shop", "namespace: own"))
		m.eventually("reads Secrets", "edge ingress keys own", m.reads)
		m.remove(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1beta1", Resource: "referencegrants"}, "keys", "edge")
		m.eventually("reads Secrets", "edge ingress own", m.reads)
	})
}

// TestTheKeeperBindsTwoRoles takes the keeper's token: it gives nobody a role but the two, and takes no other binding
// away.
func TestTheKeeperBindsTwoRoles(t *testing.T) {
	m := bind(t)
	m.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n---\n"+
		"{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: theirs, namespace: shop}, roleRef: {apiGroup: "+
		"rbac.authorization.k8s.io, kind: ClusterRole, name: view}}\n")
	client, err := kubernetes.NewForConfig(kubeapi.Load(t, m.ServiceAccount(t, "istio-system", "keeper")))
	if err != nil {
		t.Fatal(err)
	}
	make := func(role string) error {
		_, err := client.RbacV1().RoleBindings("shop").Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "forged-"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{kubeapi.UserSubject("thief")},
		}, metav1.CreateOptions{})
		return err
	}
	for _, role := range []string{"cluster-admin", "system:node", "system:controller:generic-garbage-collector", "fairlead-ca",
		"fairlead-config-watcher"} {
		if err := make(role); !apierrors.IsForbidden(err) {
			t.Errorf("it binds %s: %v", role, err)
		}
	}
	if err := make(registrationRole); err != nil {
		t.Errorf("it cannot bind what it should: %v", err)
	}
	if err := client.RbacV1().RoleBindings("shop").Delete(t.Context(), "theirs", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("it removes a binding of somebody else's: %v", err)
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "forged"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: credentialsRole},
		Subjects:   []rbacv1.Subject{kubeapi.UserSubject("thief")},
	}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("it binds in the whole cluster: %v", err)
	}
}

// TestACertificateArrivesSoonAfterItsGateway holds that rights in single namespaces cost a gateway no noticeable time.
func TestACertificateArrivesSoonAfterItsGateway(t *testing.T) {
	m := bind(t)
	m.Apply(t, shop)
	w := startWatcher(t, m.kubeconfig)
	m.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: edge}}\n---\n"+tlsSecret(w, "edge", "web-cert")+
		tlsSecret(w, "edge", "other-cert"))
	began := time.Now()
	m.Apply(t, gatewayMesh)
	gateway := w.gateway()
	for gateway.next() == "" {
		t.Logf("no certificate after %s", time.Since(began))
	}
	took := time.Since(began)
	t.Logf("the certificate arrives %s after its Gateway", took)
	if took > 5*time.Second {
		t.Errorf("the certificate arrives %s after its Gateway", took)
	}
	w.until("not degraded", func(st sourceState) bool { return st.Degraded == "" && st.degraded("Secret") == "" })
}
