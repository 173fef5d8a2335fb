package install

import (
	"fmt"
	"slices"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

// TestPrimaryRemoteAsIstiosGuideHasIt installs IstioOperators of Istio's guide to primary-remote with both programs and
// their own packages: API servers of the remote cluster call the same injector about the same Pods, and Service istiod
// leads to the same place.
func TestPrimaryRemoteAsIstiosGuideHasIt(t *testing.T) {
	p := programs(t)
	for name, values := range map[string]string{
		"path": "istiodRemote: {injectionPath: /inject/cluster/cluster2/net/network2}, global: {remotePilotAddress: 192.0.2.1}",
		"IPv6": "istiodRemote: {injectionPath: /inject/cluster/cluster2/net/network2}, global: {remotePilotAddress: 'fd00::1'}",
		"name": "istiodRemote: {injectionPath: /inject}, global: {remotePilotAddress: gw.example.com}",
		"address": "istiodRemote: {injectionURL: 'https://gw.example.com:15017/inject', injectionCABundle: eA==}, " +
			"global: {remotePilotAddress: gw.example.com}",
	} {
		t.Run(name, func(t *testing.T) {
			inputs, err := inputs(t.TempDir(), Case{Files: []string{"apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\n" +
				"spec: {profile: remote, values: {" + values + "}}\n"}})
			if err != nil {
				t.Fatal(err)
			}
			istio, err := generate(t.Context(), p.Istioctl, append([]string{"manifest", "generate", "--manifests", p.Manifests}, inputs...))
			if err != nil || istio.Refused != "" {
				t.Fatalf("istioctl: %v: %s", err, istio.Refused)
			}
			ours, err := generate(t.Context(), p.Fairlead, append([]string{"manifest", "generate"}, inputs...))
			if err != nil || ours.Refused != "" {
				t.Fatalf("fairlead: %v: %s", err, ours.Refused)
			}
			if a, b := hooks(t, istio), hooks(t, ours); !slices.Equal(a, b) {
				t.Errorf("istioctl's API servers call\n%q\nours\n%q", a, b)
			}
			if a, b := leads(t, istio), leads(t, ours); a != b {
				t.Errorf("istioctl's Service istiod leads to %s, ours to %s", a, b)
			}
		})
	}
}

// read decodes an object; it stays empty if there is none.
func read(t *testing.T, o Outcome, id string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(o.Objects[id]), into); err != nil {
		t.Fatalf("%s: %v", id, err)
	}
}

// hooks are the webhooks of injection: their names, whom they call and about what.
func hooks(t *testing.T, o Outcome) []string {
	t.Helper()
	var c registrationv1.MutatingWebhookConfiguration
	read(t, o, "MutatingWebhookConfiguration /istio-sidecar-injector", &c)
	var out []string
	for _, h := range c.Webhooks {
		text, err := yaml.Marshal([]any{h.Name, h.ClientConfig, h.NamespaceSelector, h.ObjectSelector, h.Rules, h.FailurePolicy})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(text))
	}
	if len(out) == 0 {
		t.Fatal("no webhooks")
	}
	return out
}

// leads is where Service istiod leads for configuration and injection.
func leads(t *testing.T, o Outcome) string {
	t.Helper()
	var s corev1.Service
	var e discoveryv1.EndpointSlice
	read(t, o, "Service istio-system/istiod", &s)
	read(t, o, "EndpointSlice istio-system/istiod", &e)
	var ports, behind, addresses []string
	for _, p := range s.Spec.Ports {
		ports = append(ports, fmt.Sprint(p.Port))
	}
	for _, p := range e.Ports {
		behind = append(behind, fmt.Sprint(*p.Port))
	}
	for _, each := range e.Endpoints {
		addresses = append(addresses, each.Addresses...)
	}
	return fmt.Sprintf("%s %s %s %v, %s %v %v", s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIP, ports, e.AddressType, addresses, behind)
}
