package app

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"

	"fairlead.dev/services/config-watcher/internal/admission"
)

// TestWebhookOnlyKnowsTenants: the validating webhook alone, which has no mesh configuration, refuses an object that is
// exported beyond its namespace, unless it is in the default root namespace.
func TestWebhookOnlyKnowsTenants(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.StoreDir, o.WebhookOnly, o.WebhookAddress, o.MultiTenant = "", true, "127.0.0.1:0", true
	r := f.start(o)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // a test
	for namespace, want := range map[string]bool{"apps": false, "istio-system": true} {
		review := strings.ReplaceAll(`{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1",
			"operation": "CREATE", "kind": {"group": "networking.istio.io", "version": "v1", "kind": "VirtualService"}, "namespace": "NS",
			"name": "a", "object": {"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "a", "namespace": "NS"},
			"spec": {"hosts": ["www.example.com"], "exportTo": ["*"], "http": [{"route": [{"destination": {"host": "b"}}]}]}}}}`, "NS", namespace)
		res, err := client.Post("https://"+r.Address("webhook-address")+admission.Path, "application/json", strings.NewReader(review))
		if err != nil {
			t.Fatal(err)
		}
		var answer admissionv1.AdmissionReview
		err = json.NewDecoder(res.Body).Decode(&answer)
		_ = res.Body.Close()
		if err != nil || answer.Response == nil || answer.Response.Allowed != want {
			t.Errorf("%s: status %d, answer %v %v, want it allowed: %v", namespace, res.StatusCode, answer.Response, err, want)
		}
	}
}
