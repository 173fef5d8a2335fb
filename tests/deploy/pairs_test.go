package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// contracts are the connections between services that the pages for neighbours promise: from, to and port.
var contracts = []string{
	"config-watcher → ca:15012", "config-watcher → config-watcher:15060", "injector → ca:15012",
	"xds-server → ca:15012", "xds-server → config-watcher:15060", "xds-server → xds-server:15012",
}

// connections lists the connections between services that both policies let through, that of the caller and that of the
// callee.
func connections(t *testing.T, objects []runtime.Object) []string {
	t.Helper()
	var got []string
	for _, from := range services {
		caller := policy(t, objects, from)
		for _, to := range services {
			callee := policy(t, objects, to)
			_, c := service(t, objects, to)
			source := inNamespace(caller.Namespace, "app", from)
			target := inNamespace(callee.Namespace, "app", to)
			for _, port := range []int{15010, 15012, 15014, 15017, 15060} {
				out := slices.ContainsFunc(caller.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
					return open(t, caller.Namespace, r.To, r.Ports, target, corev1.ProtocolTCP, port, nil)
				})
				in := slices.ContainsFunc(callee.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
					return open(t, callee.Namespace, r.From, r.Ports, source, corev1.ProtocolTCP, port, &c)
				})
				if in && out {
					got = append(got, fmt.Sprintf("%s → %s:%d", from, to, port))
				}
			}
		}
	}
	slices.Sort(got)
	return got
}

// Of every pair of services and every port, those may connect that must, wherever the services are, and no others.
func TestPairsOfServicesConnectAsTheyPromise(t *testing.T) {
	for name, objects := range map[string][]runtime.Object{"base": mesh(t), "split-namespaces": overlay(t, "split-namespaces")} {
		if got := connections(t, objects); !slices.Equal(got, contracts) {
			t.Errorf("%s: %q, want %q", name, got, contracts)
		}
	}
}

// In split-namespaces each service is alone in its namespace, with its policy and its account. The injector is the
// installer's, and beside config-watcher: what it injects by is in ConfigMaps of the mesh's root namespace.
func TestSplitNamespacesAreOfOneServiceEach(t *testing.T) {
	objects := overlay(t, "split-namespaces")
	in := map[string][]string{}
	for _, name := range services {
		d, _ := service(t, objects, name)
		in[d.Namespace] = append(in[d.Namespace], name)
		if p := policy(t, objects, name); p.Namespace != d.Namespace {
			t.Errorf("the policy of %s is in %s, its Pods in %s", name, p.Namespace, d.Namespace)
		}
		if !slices.ContainsFunc(all[*corev1.ServiceAccount](objects), func(a *corev1.ServiceAccount) bool {
			return a.Namespace == d.Namespace && a.Name == d.Spec.Template.Spec.ServiceAccountName
		}) {
			t.Errorf("%s has no account %s in %s", name, d.Spec.Template.Spec.ServiceAccountName, d.Namespace)
		}
	}
	for namespace, names := range in {
		if len(names) != 1 && !slices.Equal(names, []string{"config-watcher", "injector"}) {
			t.Errorf("%s has %s", namespace, strings.Join(names, " and "))
		}
	}
}
