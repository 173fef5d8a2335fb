package policies

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func pod(namespace, app, address string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}},
		Status:     corev1.PodStatus{PodIP: address},
	}
}

// What a NetworkPolicy means is in its documentation: rules of several policies add up, a policy without rules lets
// nothing through, and Pods that none selects take everything.
func TestRules(t *testing.T) {
	namespaces := []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{"team": "b"}}}}
	host, ended := pod("a", "host", "10.0.0.9"), pod("a", "ended", "10.0.0.1")
	host.Spec.HostNetwork = true
	ended.Status.Phase = corev1.PodSucceeded
	pods := []*corev1.Pod{pod("a", "server", "10.0.0.1"), pod("a", "client", "10.0.0.2"), pod("b", "client", "10.0.0.3"), host, ended}
	for name, tc := range map[string]struct{ spec, want string }{
		"no policy": {"", "chain forward {"},
		"nothing": {"{podSelector: {}, policyTypes: [Ingress]}",
			"ingress-0 { # a/server drop } chain ingress-1 { # a/client drop } chain forward {"},
		"everything": {"{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{}]}",
			"ingress-0 { # a/server return drop }"},
		"the same namespace": {
			"{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], " +
				"ports: [{port: http}]}]}",
			"ingress-0 { # a/server ip saddr 10.0.0.2 tcp dport 8080 return drop }",
		},
		"another namespace": {
			"{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchLabels: {team: " +
				"b}}}], ports: [{port: 1, endPort: 2, protocol: UDP}]}]}",
			"ingress-0 { # a/server ip saddr 10.0.0.3 udp dport 1-2 return drop }",
		},
		"Pods of another namespace": {
			"{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}, " +
				"podSelector: {matchLabels: {app: server}}}]}]}",
			"ingress-0 { # a/server drop }",
		},
		"where a Pod may go": {
			"{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: " +
				"[10.0.0.0/8]}}], ports: [{port: 443}]}, {to: [{podSelector: {}}], ports: [{port: http}]}]}",
			"egress-1 { # a/client ip daddr 0.0.0.0/0 ip daddr != { 10.0.0.0/8 } tcp dport 443 return ip daddr 10.0.0.1 tcp dport 8080 return ip " +
				"daddr 10.0.0.2 tcp dport 8080 return drop }",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var policies []*networkingv1.NetworkPolicy
			if tc.spec != "" {
				p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}
				if err := yaml.UnmarshalStrict([]byte(tc.spec), &p.Spec); err != nil {
					t.Fatal(err)
				}
				policies = append(policies, p)
			}
			got, err := Rules(namespaces, pods, policies)
			if err != nil {
				t.Fatal(err)
			}
			if flat := strings.Join(strings.Fields(got), " "); !strings.Contains(flat, tc.want) {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
			if none := !strings.Contains(got, "vmap"); none != (tc.spec == "") {
				t.Errorf("no Pod is isolated: %t\n%s", none, got)
			}
		})
	}
}
