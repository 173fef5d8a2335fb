package manifests_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// TestOtherControlPlanes: without values nobody serves MCP; with them the flags, the port of the Service and the rule
// of the NetworkPolicy belong together, and where addresses alone are let in, no other may call.
func TestOtherControlPlanes(t *testing.T) {
	pkg := open(t)
	const all = "address=:15070 clients=istio-system/one allow-addresses=10.9.0.1 kinds=ServiceEntry namespaces=a namespaces=b"
	const both = "mcp: {clients: [istio-system/one], allowAddresses: [10.9.0.1], kinds: [ServiceEntry], namespaces: [a, b]}"
	for name, tc := range map[string]struct{ profile, values, flags, from string }{
		"none": {"minimal", "mcp: {kinds: [ServiceEntry]}", "", ""},
		"both": {"minimal", both, all, "everybody"},
		"addresses": {"minimal", "mcp: {allowAddresses: [10.9.0.1, fd00::1, 10.8.0.0/16]}",
			"address=:15070 allow-addresses=10.9.0.1 allow-addresses=fd00::1 allow-addresses=10.8.0.0/16", "10.9.0.1/32 fd00::1/128 10.8.0.0/16"},
		"peers":      {"minimal", "mcp: {clients: [a/b], from: [{ipBlock: {cidr: 10.7.0.0/16}}]}", "address=:15070 clients=a/b", "10.7.0.0/16"},
		"in one Pod": {"compact", both, all, "everybody"},
	} {
		t.Run(name, func(t *testing.T) {
			var flags, from []string
			port := false
			for _, o := range installed(t, pkg, tc.profile, "{values: {configWatcher: {"+tc.values+
				", configSourceNamespaces: [\"istiod:15012/shop\"], configSourcesEgress: [{ports: [{protocol: TCP, port: 8848}]}]}}}") {
				switch o := o.(type) {
				case *appsv1.Deployment:
					for _, c := range o.Spec.Template.Spec.Containers {
						for _, arg := range c.Args {
							if flag, ok := strings.CutPrefix(arg, "--mcp-"); ok {
								flags = append(flags, flag)
							}
						}
						if c.Name == "config-watcher" && !slices.Contains(c.Args, "--config-source-namespaces=istiod:15012/shop") {
							t.Error("namespaces of a config source are no flag")
						}
					}
				case *corev1.Service:
					port = port || o.Name == "config-watcher" &&
						slices.ContainsFunc(o.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == 15070 })
				case *networkingv1.NetworkPolicy:
					leads := slices.ContainsFunc(o.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
						return len(r.Ports) == 1 && r.Ports[0].Port.IntValue() == 8848
					})
					if own := slices.Contains([]string{"config-watcher", "fairlead"}, o.Name); own != leads {
						t.Errorf("policy %s leads to port 8848: %t", o.Name, leads)
					}
					for _, r := range o.Spec.Ingress {
						if len(r.Ports) != 1 || r.Ports[0].Port.StrVal != "tls-mcp" {
							continue
						}
						if len(r.From) == 0 {
							from = append(from, "everybody")
						}
						for _, p := range r.From {
							from = append(from, p.IPBlock.CIDR)
						}
					}
				}
			}
			got := fmt.Sprint(strings.Join(flags, " "), " from ", strings.Join(from, " "), port)
			if want := fmt.Sprint(tc.flags, " from ", tc.from, tc.flags != ""); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}
