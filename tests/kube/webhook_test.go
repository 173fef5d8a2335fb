package kube

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/kubeapi"
)

const webhookName = "fairlead-validator"

// newWebhook prepares config-watcher --webhook-only. Its certificate is for the address that the API server calls.
func newWebhook(t *testing.T, kubeconfig, address string) *watcher {
	w := newWatcher(t, kubeconfig)
	w.ca.WriteSVID(filepath.Join(w.state, "svid", svid.CacheFile), meshNamespace, "config-watcher",
		testkit.On(netip.MustParseAddrPort(address).Addr()))
	w.args = []string{
		"--webhook-only", "--webhook-address", address, "--webhook-configuration", webhookName, "--kubeconfig", kubeconfig, "--ops-address",
		w.ops,
		"--trust-domain", testkit.TrustDomain, "--root-cert-file", w.roots(), "--state-dir", w.state, "--ca-address", "127.0.0.1:1",
	}
	return w
}

// roots is the file of --root-cert-file.
func (w *watcher) roots() string { return w.args[slices.Index(w.args, "--root-cert-file")+1] }

// recorder keeps the warnings of the API server.
type recorder struct{ said []string }

func (r *recorder) HandleWarningHeader(_ int, _ string, text string) { r.said = append(r.said, text) }

// An API server asks the webhook about real objects. The process has the right to read one webhook configuration by
// name, which the keeper alone may write.
func TestWebhook(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	s.ApplyCRDs(t, kubeapi.MeshCRDs(t), filepath.Join(kubeapi.GatewayAPICRDs(t, "standard"), "httproutes.gateway.networking.k8s.io.yaml"))
	address := testkit.FreeAddress(t).String()
	url, ignore, none := "https://"+address+"/validate", registrationv1.Ignore, registrationv1.SideEffectClassNone
	timeout := int32(10)
	registrations := s.Client(t).AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := registrations.Create(t.Context(), &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: webhookName},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "validation.fairlead.dev", ClientConfig: registrationv1.WebhookClientConfig{URL: &url}, FailurePolicy: &ignore, SideEffects: &none,
			TimeoutSeconds: &timeout, AdmissionReviewVersions: []string{"v1"},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create, registrationv1.Update},
				Rule: registrationv1.Rule{APIGroups: []string{"networking.istio.io", "security.istio.io", "telemetry.istio.io",
					"extensions.istio.io"}, APIVersions: []string{"*"}, Resources: []string{"*"}},
			}},
		}, {
			Name: contract.AdviceWebhook, ClientConfig: registrationv1.WebhookClientConfig{URL: &url}, FailurePolicy: &ignore, SideEffects: &none,
			TimeoutSeconds: &timeout, AdmissionReviewVersions: []string{"v1"},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create, registrationv1.Update},
				Rule:       registrationv1.Rule{APIGroups: []string{"gateway.networking.k8s.io"}, APIVersions: []string{"*"}, Resources: []string{"*"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	warned := &recorder{}
	config := rest.CopyConfig(s.Config)
	config.WarningHandler = warned
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	routes := client.Resource(schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "virtualservices"}).Namespace(
		"default")
	route := func(name, host string, prefix any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"hosts": []any{host}, "http": []any{map[string]any{
				"match": []any{map[string]any{"uri": map[string]any{"regex": prefix}}},
				"route": []any{map[string]any{"destination": map[string]any{"host": host}}},
			}}},
		}}
	}
	create := func(o *unstructured.Unstructured, dryRun ...string) error {
		_, err := routes.Create(t.Context(), o, metav1.CreateOptions{DryRun: dryRun})
		return err
	}

	// Nobody serves yet: failurePolicy Ignore lets everything in.
	if err := create(route("early", "server", "(")); err != nil {
		t.Fatalf("without a webhook: %v", err)
	}

	user := s.User(t, "webhook")
	one := kubeapi.Rule("admissionregistration.k8s.io", []string{"validatingwebhookconfigurations"}, "get", "list", "watch")
	one.ResourceNames = []string{webhookName}
	s.Grant(t, kubeapi.UserSubject("webhook"), one)
	keeper := s.User(t, "keeper")
	one.Verbs = append(one.Verbs, "patch")
	s.Grant(t, kubeapi.UserSubject("keeper"), one)
	w := newWebhook(t, user, address)
	w.start()
	w.ready()
	kept := func(want []byte) error {
		found, err := registrations.Get(t.Context(), webhookName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		hook := found.Webhooks[0]
		if !slices.Equal(hook.ClientConfig.CABundle, want) || *hook.FailurePolicy != registrationv1.Fail {
			return fmt.Errorf("caBundle of %d bytes, failurePolicy %s", len(hook.ClientConfig.CABundle), *hook.FailurePolicy)
		}
		if advice := found.Webhooks[1]; !slices.Equal(advice.ClientConfig.CABundle, want) || *advice.FailurePolicy != registrationv1.Ignore {
			return fmt.Errorf("the one that advises: caBundle of %d bytes, failurePolicy %s", len(advice.ClientConfig.CABundle),
				*advice.FailurePolicy)
		}
		return nil
	}
	roots, err := os.ReadFile(w.roots())
	if err != nil {
		t.Fatal(err)
	}
	const current = "fairlead_config_watcher_webhook_configuration_current"
	if _, text, err := w.get("/metrics"); err != nil || !strings.Contains(text, current+" 0") {
		t.Errorf("%s is not 0 while nobody keeps the configuration: %v", current, err)
	}
	kubeapi.Keeper(t, keeper, w.roots(), "--validation", webhookName)
	testkit.Eventually(t, patience, func() error { return kept(roots) })
	testkit.Eventually(t, patience, func() error {
		_, text, err := w.get("/metrics")
		if err == nil && !strings.Contains(text, current+" 1") {
			err = fmt.Errorf("%s is not 1", current)
		}
		return err
	})

	// The API server learns of the change a moment later.
	testkit.Eventually(t, patience, func() error {
		err := create(route("bad", "server", "("), metav1.DryRunAll)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.http[0].match[0].uri.regex") {
			return fmt.Errorf("a broken expression is answered %w", err)
		}
		return nil
	})
	if err := create(route("bad", "server", "(")); !apierrors.IsInvalid(err) {
		t.Errorf("a broken object: %v", err)
	}
	if err := create(route("large", "server", strings.Repeat("a", 1<<20))); !apierrors.IsInvalid(err) {
		t.Errorf("an expression of a million letters: %.300v", err)
	}
	if err := create(route("good", "server", "a+")); err != nil {
		t.Errorf("a good object: %v", err)
	}
	redirected := route("redirected", "server", "a+")
	if err := unstructured.SetNestedSlice(redirected.Object,
		[]any{map[string]any{"redirect": map[string]any{"uri": "/a"}, "mirror": map[string]any{"host": "server"}}}, "spec", "http"); err != nil {
		t.Fatal(err)
	}
	if err := create(redirected); err != nil || len(warned.said) == 0 || !strings.Contains(warned.said[0], "mirror") {
		t.Errorf("a field without effect: %v, warnings %q", err, warned.said)
	}
	if _, err := routes.Patch(t.Context(), "early", types.MergePatchType, []byte(`{"metadata":{"finalizers":["a.example/b"]}}`),
		metav1.PatchOptions{}); err != nil {
		t.Errorf("a finalizer of a broken object cannot be added: %v", err)
	}
	if err := routes.Delete(t.Context(), "early", metav1.DeleteOptions{}); err != nil {
		t.Errorf("a broken object cannot be deleted: %v", err)
	}
	if _, err := routes.Patch(t.Context(), "early", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil {
		t.Errorf("a finalizer of a broken object cannot be removed: %v", err)
	}

	// What the API server has judged by its definitions is stored.
	gatewayRoutes := client.Resource(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1",
		Resource: "httproutes"}).Namespace("default")
	gatewayRoute := func(name string) error {
		_, err := gatewayRoutes.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"hostnames": []any{"a.example.com"}},
		}}, metav1.CreateOptions{})
		return err
	}
	warned.said = nil
	if err := gatewayRoute("route"); err != nil || len(warned.said) != 0 {
		t.Errorf("an HTTPRoute: %v, warnings %q", err, warned.said)
	}

	// Somebody replaces the bundle: it comes back.
	if _, err := registrations.Patch(t.Context(), webhookName, types.JSONPatchType,
		[]byte(`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func() error { return kept(roots) })

	// The webhook is away: failurePolicy Fail keeps objects out that nobody has checked.
	w.stop()
	if err := create(route("later", "server", "a")); !apierrors.IsInternalError(err) ||
		!strings.Contains(err.Error(), "validation.fairlead.dev") {
		t.Errorf("without the webhook: %v", err)
	}
	if err := gatewayRoute("later"); err != nil {
		t.Errorf("an HTTPRoute without the webhook: %v", err)
	}
	w.start()
	w.ready()
	testkit.Eventually(t, patience, func() error { return create(route("later", "server", "a")) })
	if code, _, err := w.get("/debug/"); err == nil && code == http.StatusOK {
		t.Error("/debug is open")
	}
}
