package certmanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kuberequest"
	"fairlead.dev/services/ca/internal/signer/kuberequest/kubetest"
)

const (
	// binVariable names the directory of the controllers, crdVariable that of the custom resource definitions in
	// cert-manager's module.
	binVariable, crdVariable = "CERTMANAGER_BIN", "CERTMANAGER_CRDS"
	// namespace is where requests are made.
	namespace = "istio-system"
	// foreign is the group of issuers that are not cert-manager's.
	foreign = "issuers.example.com"
)

// rules are what the chart must grant the ca in the namespace of the requests, and, by the second of them, the right to
// approve, which cert-manager's webhook asks for.
var rules = []rbacv1.PolicyRule{
	{APIGroups: []string{group}, Resources: []string{"certificaterequests"}, Verbs: []string{"create", "get", "list", "watch", "delete"}},
	{APIGroups: []string{group}, Resources: []string{"signers"}, ResourceNames: []string{"issuers.cert-manager.io/istio-system.*"},
		Verbs: []string{"approve"}},
	{APIGroups: []string{group}, Resources: []string{"certificaterequests/status"}, Verbs: []string{"update"}},
	{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"mesh-ca"}, Verbs: []string{"get"}},
}

// cluster is an API server with cert-manager.
type cluster struct {
	*kubetest.Server
	dynamic dynamic.Interface
	// root is that of the Issuers, middle is one of them.
	root, middle *kubetest.Authority
}

func startCluster(t testing.TB) *cluster {
	t.Helper()
	kubetest.Program(t, binVariable, "certmanager", "certmanager")
	c := &cluster{Server: kubetest.Start(t, "ca"), root: kubetest.NewAuthority(t, "root of the issuer", nil)}
	c.middle = kubetest.NewAuthority(t, "intermediate", c.root)
	client, err := dynamic.NewForConfig(c.Admin())
	testkit.NoError(t, err)
	c.dynamic = client
	return c
}

// define installs the custom resource definitions.
func (c *cluster) define(t testing.TB) {
	t.Helper()
	dir := os.Getenv(crdVariable)
	if dir == "" {
		t.Fatalf("%s is not set: run `make signers`, or set it to deploy/crds of cert-manager's module, which `GOWORK=off go list -m -f "+
			"'{{.Dir}}' github.com/cert-manager/cert-manager` in tools/certmanager prints", crdVariable)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		testkit.NoError(t, err)
		var o unstructured.Unstructured
		testkit.NoError(t, yaml.Unmarshal(text, &o.Object))
		c.create(t, "apiextensions.k8s.io/v1/customresourcedefinitions", "", o.Object)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		for _, kind := range []string{"certificaterequests", "issuers", "clusterissuers", "certificates"} {
			if _, err := c.dynamic.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: kind}).
				List(t.Context(), metav1.ListOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}

// create makes an object of group/version/resource.
func (c *cluster) create(t testing.TB, resource, namespace string, object map[string]any) {
	t.Helper()
	parts := strings.Split(resource, "/")
	client := c.dynamic.Resource(schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]})
	var at dynamic.ResourceInterface = client
	if namespace != "" {
		at = client.Namespace(namespace)
	}
	_, err := at.Create(t.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	testkit.NoError(t, err)
}

// issuers makes the Issuers mesh-ca, with the root's own key, and mesh-intermediate, and the ClusterIssuer
// mesh-cluster.
func (c *cluster) issuers(t testing.TB) {
	t.Helper()
	secret := func(namespace, name string, a *kubetest.Authority) {
		c.Namespace(t, namespace)
		_, err := c.Client(t).CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{"tls.crt": a.PEM, "tls.key": testkit.KeyPEM(t, a.Key), "ca.crt": c.root.PEM},
		}, metav1.CreateOptions{})
		testkit.NoError(t, err)
	}
	secret(namespace, "mesh-ca", c.root)
	secret(namespace, "mesh-intermediate", c.middle)
	secret("cert-manager", "mesh-cluster", c.middle)
	for _, name := range []string{"mesh-ca", "mesh-intermediate"} {
		c.create(t, group+"/v1/issuers", namespace, map[string]any{"apiVersion": group + "/v1", "kind": "Issuer",
			"metadata": map[string]any{"name": name}, "spec": map[string]any{"ca": map[string]any{"secretName": name}}})
	}
	c.create(t, group+"/v1/clusterissuers", "", map[string]any{"apiVersion": group + "/v1", "kind": "ClusterIssuer",
		"metadata": map[string]any{"name": "mesh-cluster"}, "spec": map[string]any{"ca": map[string]any{"secretName": "mesh-cluster"}}})
}

func (c *cluster) requests() dynamic.ResourceInterface {
	return c.dynamic.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "certificaterequests"}).Namespace(namespace)
}

// foreignIssuer answers the requests for issuers of another group, as the name of the issuer says, until the test ends.
func (c *cluster) foreignIssuer(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		for clock.Sleep(ctx, clock.Real(), 20*time.Millisecond) {
			list, err := c.requests().List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, o := range list.Items {
				c.answer(ctx, &o)
			}
		}
	}()
}

func (c *cluster) answer(ctx context.Context, o *unstructured.Unstructured) {
	of, _, _ := unstructured.NestedStringMap(o.Object, "spec", "issuerRef")
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	has := func(kind string) bool {
		return slices.ContainsFunc(conditions, func(c any) bool { return c.(map[string]any)["type"] == kind })
	}
	if of["group"] != foreign || has("Ready") || has("InvalidRequest") {
		return
	}
	condition := func(kind, status, reason, message string) {
		conditions = append(conditions, map[string]any{"type": kind, "status": status, "reason": reason, "message": message,
			"lastTransitionTime": time.Now().UTC().Format(time.RFC3339)})
		_ = unstructured.SetNestedSlice(o.Object, conditions, "status", "conditions")
	}
	switch of["name"] {
	case "denies":
		if has("Approved") || has("Denied") {
			return
		}
		condition("Denied", "True", "policy.cert-manager.io", "not on a Friday")
	case "finds-invalid":
		condition("InvalidRequest", "True", "NoURI", "no URIs here")
	case "fails":
		condition("Ready", "False", "Failed", "the HSM is on fire")
	case "is-pending":
		condition("Ready", "False", "Pending", "waiting for a person")
	case "has-nothing":
		condition("Ready", "True", "Issued", "done")
	case "removes":
		_ = c.requests().Delete(ctx, o.GetName(), metav1.DeleteOptions{})
		return
	case "answers-nonsense":
		_ = unstructured.SetNestedField(o.Object, "bm9uc2Vuc2U=", "status", "certificate")
		condition("Ready", "True", "Issued", "done")
	default:
		return
	}
	_, _ = c.requests().UpdateStatus(ctx, o, metav1.UpdateOptions{})
}

// config is of the Issuer mesh-ca, with the other issuers as profiles.
func (c *cluster) config(t testing.TB) Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "roots.pem")
	testkit.WriteFile(t, file, c.root.PEM)
	cfg := Config{Namespace: namespace, IssuerRef: IssuerRef{Name: "mesh-ca"}, Approve: true,
		Roots: kuberequest.Roots{Secret: &kuberequest.Object{Namespace: namespace, Name: "mesh-ca"}}}
	for _, p := range []struct{ name, kind, group string }{
		{"mesh-intermediate", "", ""}, {"mesh-cluster", "ClusterIssuer", ""}, {"missing", "", ""},
		{"denies", "Signer", foreign}, {"finds-invalid", "Signer", foreign}, {"fails", "Signer", foreign}, {"is-pending", "Signer", foreign},
		{"has-nothing", "Signer", foreign}, {"removes", "Signer", foreign}, {"answers-nonsense", "Signer", foreign},
	} {
		cfg.Profiles = append(cfg.Profiles, Profile{Name: p.name, Namespaces: []string{"shop"},
			IssuerRef: IssuerRef{Name: p.name, Kind: p.kind, Group: p.group}, Roots: &kuberequest.Roots{File: file}})
	}
	return cfg
}

// start runs an issuer until the test ends.
func (c *cluster) start(t testing.TB, cfg Config) *kuberequest.Issuer {
	t.Helper()
	i, err := New(cfg, signer.Deps{TrustDomain: spiffeid.RequireTrustDomainFromString(testkit.TrustDomain), Clock: clock.Real(),
		Log: testkit.Logger(t)}, c.Config("ca"))
	testkit.NoError(t, err)
	run(t, i)
	return i
}

func run(t testing.TB, i signer.Issuer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		testkit.NoError(t, <-done)
	})
}

// known waits until an issuer has roots.
func known(t testing.TB, i signer.Issuer) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		if a, _ := i.Authorities(); a == nil {
			return errors.New("no authorities yet")
		}
		return nil
	})
}

// empty waits until no object is left.
func (c *cluster) empty(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		list, err := c.requests().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) > 0 {
			return fmt.Errorf("%d objects are left, the first is %s", len(list.Items), list.Items[0].GetName())
		}
		return nil
	})
}

// ready waits until an issuer signs.
func (c *cluster) ready(t testing.TB, i signer.Issuer, profile string) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		r := kubetest.Request(t, "shop", "web", nil)
		r.Profile = profile
		_, err := i.Issue(t.Context(), r)
		return err
	})
}

func wantError(t *testing.T, err error, fault signer.Fault, says string) {
	t.Helper()
	var e *signer.Error
	if !errors.As(err, &e) || e.Fault != fault || !strings.Contains(e.Error(), says) {
		t.Errorf("got %v, want fault %d with %q", err, fault, says)
		return
	}
	t.Logf("%v", err)
}
