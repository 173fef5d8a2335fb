package manifests_test

import (
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestServersOfKeysAtOtherPorts: an installation's rules let config-watcher reach servers of keys that its
// NetworkPolicy would keep from it, and change no other policy.
func TestServersOfKeysAtOtherPorts(t *testing.T) {
	pkg := open(t)
	const value = "{jwksEgress: [{to: [{namespaceSelector: {}}], ports: [{protocol: TCP, port: 8080}]}]}"
	for name, tc := range map[string]struct{ profile, spec, policy string }{
		"of its own":            {"minimal", "{values: {configWatcher: " + value + "}}", "config-watcher"},
		"of a revision":         {"minimal", "{revision: canary, values: {configWatcher: " + value + "}}", "config-watcher-canary"},
		"in one Pod":            {"compact", "{values: {configWatcher: " + value + "}}", "fairlead"},
		"in one Pod, its value": {"compact", "{values: {compact: {configWatcher: " + value + "}}}", "fairlead"},
		"none":                  {"minimal", "{}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			objects := installed(t, pkg, tc.profile, tc.spec)
			var open []string
			for _, o := range objects {
				if p, ok := o.(*networkingv1.NetworkPolicy); ok && slices.ContainsFunc(p.Spec.Egress, leadsTo8080) {
					open = append(open, p.Name)
				}
			}
			want := []string{tc.policy}
			if tc.policy == "" {
				want = nil
			}
			if !slices.Equal(open, want) {
				t.Errorf("port 8080 is open for %q, want %q", open, want)
			}
		})
	}
}

func leadsTo8080(r networkingv1.NetworkPolicyEgressRule) bool {
	return len(r.To) == 1 && r.To[0].NamespaceSelector != nil && len(r.Ports) == 1 && *r.Ports[0].Port == intstr.FromInt32(8080)
}
