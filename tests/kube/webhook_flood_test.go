package kube

import (
	"context"
	"testing"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/flood"
	"fairlead.dev/tests/internal/kubeapi"
)

// A Pod that shows no credentials sends config-watcher's webhook the dearest objects. What others write is reviewed in
// time all the same, and config-watcher stays within the memory that its chart gives it.
func TestObjectsAreReviewedDuringAFlood(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	s.ApplyCRDs(t)
	address := testkit.FreeAddress(t).String()
	url, fail, none, timeout := "https://"+address+"/validate", registrationv1.Fail, registrationv1.SideEffectClassNone, int32(10)
	user := s.User(t, "webhook")
	w := newWebhook(t, user, address)
	t.Setenv("GOMEMLIMIT", "973MiB") // as the chart sets it
	w.start()
	w.ready()
	_, err := s.Client(t).AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
		&registrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: webhookName},
			Webhooks: []registrationv1.ValidatingWebhook{{
				Name: "validation.fairlead.dev", ClientConfig: registrationv1.WebhookClientConfig{URL: &url, CABundle: w.ca.RootPEM},
				FailurePolicy: &fail, SideEffects: &none,
				TimeoutSeconds: &timeout, AdmissionReviewVersions: []string{"v1"},
				Rules: []registrationv1.RuleWithOperations{{
					Operations: []registrationv1.OperationType{registrationv1.Create, registrationv1.Update},
					Rule: registrationv1.Rule{APIGroups: []string{"networking.istio.io", "fairlead.dev"}, APIVersions: []string{"*"},
						Resources: []string{"*"}},
				}},
			}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	routes := client.Resource(schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "virtualservices"}).Namespace(
		"default")
	write := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := routes.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": map[string]any{"name": "rightful"},
			"spec": map[string]any{"hosts": []any{"server"},
				"http": []any{map[string]any{"route": []any{map[string]any{"destination": map[string]any{"host": "server"}}}}}},
		}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	testkit.Eventually(t, patience, write)
	for name, body := range map[string][]byte{"dense": flood.Matches(190_000), "denser than any": flood.Matches(1_000_000),
		"ordinary": flood.Matches(10)} {
		t.Run(name, func(t *testing.T) {
			const limit = 1 << 30
			memory := flood.Watch(t, w.process.PID(), limit)
			stop := flood.Attack{URL: url, Body: body, Addresses: 2, Connections: 32}.Start(t)
			flood.Rightful(t, 8*time.Second, write)
			answers := stop()
			t.Logf("the attacker was answered %v; config-watcher had %d MiB", answers, memory()>>20)
		})
	}
}
