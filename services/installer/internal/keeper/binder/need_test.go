package binder

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func objects(t *testing.T, text string) *state {
	t.Helper()
	s := &state{ingress: map[string]string{"istio": "ingressgateway"}, pods: func(selector string) []string {
		return map[string][]string{"istio=edge": {"edge", "edge-2"}, "istio=ingressgateway": {"ingress"}, "app=a,istio=edge": {"edge"}}[selector]
	}}
	for i, document := range strings.Split(text, "---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &u.Object); err != nil {
			t.Fatal(err)
		}
		u.SetName(fmt.Sprint("o", i))
		if u.GetNamespace() == "" {
			u.SetNamespace("shop")
		}
		kept, err := trim(u)
		if err != nil {
			t.Fatal(err)
		}
		to := map[string]*[]*unstructured.Unstructured{"Gateway": &s.gateways, "DestinationRule": &s.rules, "Ingress": &s.ingresses,
			"WorkloadGroup": &s.groups, "WorkloadEntry": &s.entries, "GatewayClass": &s.api.classes, "ListenerSet": &s.api.sets,
			"BackendTLSPolicy": &s.api.policies, "ReferenceGrant": &s.api.grants}[u.GetKind()]
		if u.GetKind() == "Gateway" && u.GetAPIVersion() != "" {
			to = &s.api.gateways
		}
		*to = append(*to, kept.(*unstructured.Unstructured))
	}
	return s
}

func TestNeeds(t *testing.T) {
	const edge = "{kind: Gateway, spec: {selector: {istio: edge}, servers: [{hosts: [a], tls: {mode: PASSTHROUGH}}]}}\n---\n"
	for name, c := range map[string]struct{ objects, credentials, registration string }{
		"a Gateway without a credential": {objects: edge + "{kind: WorkloadGroup}", registration: "shop"},
		"a Gateway": {
			objects:     "{kind: Gateway, spec: {selector: {istio: edge}, servers: [{hosts: [a]}, {tls: {credentialName: c}}]}}",
			credentials: "edge edge-2"},
		"a gateway on a machine": {
			objects: "{kind: Gateway, spec: {selector: {istio: vm}, servers: [{tls: {credentialName: c}}]}}\n---\n{kind: WorkloadEntry, metadata: " +
				"{namespace: vms}, spec: {labels: {istio: vm, app: a}}}\n---\n{kind: WorkloadEntry}", credentials: "vms"},
		"several credentials": {
			objects: "{kind: Gateway, spec: {selector: {app: a, istio: edge}, servers: [{tls: {credentialNames: [c, d]}}]}}", credentials: "edge"},
		"authorities of clients": {
			objects: "{kind: Gateway, spec: {selector: {istio: edge}, servers: [{tls: {caCertCredentialName: c}}]}}", credentials: "edge edge-2"},
		"a Gateway that selects nothing": {objects: "{kind: Gateway, spec: {selector: {istio: other}, servers: [{tls: {credentialName: " +
			"c}}]}}"},
		"a Gateway for all gateways": {objects: edge + "{kind: Gateway, spec: {servers: [{tls: {credentialName: c}}]}}",
			credentials: "edge edge-2"},
		"an Ingress":                  {objects: "{kind: Ingress, spec: {tls: [{secretName: c}]}}", credentials: "ingress"},
		"an Ingress without a Secret": {objects: "{kind: Ingress, spec: {tls: [{hosts: [a]}]}}"},
		"a rule for all gateways": {objects: edge +
			"{kind: DestinationRule, spec: {host: a, trafficPolicy: {tls: {credentialName: c}}}}", credentials: "edge edge-2"},
		"a rule for its own namespace": {objects: edge +
			"{kind: DestinationRule, metadata: {namespace: edge}, spec: {exportTo: [.], trafficPolicy: {tls: {credentialName: c}}}}",
			credentials: "edge"},
		"a rule that no gateway sees": {objects: edge +
			"{kind: DestinationRule, spec: {exportTo: [.], trafficPolicy: {tls: {credentialName: c}}}}"},
		"a rule for another namespace": {objects: edge +
			"{kind: DestinationRule, spec: {exportTo: [edge-2], subsets: [{trafficPolicy: {tls: {credentialName: c}}}]}}", credentials: "edge-2"},
		"a rule for workloads": {
			objects: "{kind: DestinationRule, spec: {workloadSelector: {matchLabels: {app: a}}, trafficPolicy: {portLevelSettings: [{tls: " +
				"{credentialName: c}}]}}}", credentials: "shop"},
		"a rule without a credential": {objects: edge + "{kind: DestinationRule, spec: {trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}}"},
		"fields of wrong types need nothing": {
			objects: "{kind: Gateway, spec: {selector: 1, servers: {a: b}}}\n---\n{kind: DestinationRule, spec: {subsets: [1], trafficPolicy: " +
				"[]}}\n---\n{kind: Ingress, spec: {tls: 1}}"},
		"labels that no Pod can have": {objects: "{kind: Gateway, spec: {selector: {istio: 'a b'}, servers: [{tls: {credentialName: " +
			"c}}]}}"},
		"an object without a spec needs nothing": {objects: "{kind: Gateway}\n---\n{kind: DestinationRule}\n---\n{kind: Ingress}"},
	} {
		t.Run(name, func(t *testing.T) {
			s := objects(t, c.objects)
			if got := sorted(s.credentials()); got != c.credentials {
				t.Errorf("Secrets are read in %q, want %q", got, c.credentials)
			}
			if got := sorted(s.registration()); got != c.registration {
				t.Errorf("WorkloadEntries are written in %q, want %q", got, c.registration)
			}
		})
	}
}

func sorted(n need) string { return strings.Join(slices.Sorted(maps.Keys(n)), " ") }

// TestManySelectors holds the bounds of the watches of Pods: one namespace cannot use up those of all others.
func TestManySelectors(t *testing.T) {
	var documents []string
	add := func(namespace string, n int) {
		for i := range n {
			documents = append(documents, fmt.Sprintf(
				"{kind: Gateway, metadata: {namespace: %s}, spec: {selector: {istio: %s-%d}, servers: [{tls: {credentialName: c}}]}}", namespace,
				namespace, i))
		}
	}
	add("a-flood", 1000)
	add("shop", 1)
	watched, left := objects(t, strings.Join(documents, "\n---\n")).selectors()
	if len(watched) != maxSelectorsOfNamespace+1 || !watched["istio=shop-0"] || left != 1000-maxSelectorsOfNamespace {
		t.Errorf("%d are watched, %d are not", len(watched), left)
	}
}
