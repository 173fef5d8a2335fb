package deploy

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// end is one end of a connection, as a NetworkPolicy sees it.
type end struct {
	namespace map[string]string
	pod       map[string]string
	address   string
}

// nameLabel is what Kubernetes gives every namespace.
const nameLabel = "kubernetes.io/metadata.name"

// inNamespace is a Pod with one label.
func inNamespace(name, label, value string, more ...string) end {
	e := end{namespace: map[string]string{nameLabel: name}, pod: map[string]string{label: value}}
	for _, l := range more {
		e.namespace[l] = "true"
	}
	return e
}

// ends are those between which policies decide.
var ends = map[string]end{
	"ca":                     inNamespace(namespace, "app", "ca"),
	"config-watcher":         inNamespace(namespace, "app", "config-watcher"),
	"xds-server":             inNamespace(namespace, "app", "xds-server"),
	"injector":               inNamespace(namespace, "app", "injector"),
	"a gateway beside them":  inNamespace(namespace, "app", "ingressgateway"),
	"a workload":             inNamespace("apps", "app", "reviews"),
	"a false xds-server":     inNamespace("apps", "app", "xds-server"),
	"a monitor":              inNamespace("monitoring", "app", "prometheus", "fairlead.dev/monitoring"),
	"DNS":                    inNamespace("kube-system", "k8s-app", "kube-dns"),
	"another Pod with DNS's": inNamespace("apps", "k8s-app", "kube-dns"),
	"NodeLocal DNSCache":     {address: "169.254.20.10"},
	"the outside":            {address: "203.0.113.7"},
}

func selects(t *testing.T, s *metav1.LabelSelector, set map[string]string) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(labels.Set(set))
}

// matches evaluates a peer of a rule, as the API describes it; in is the namespace of the policy.
func matches(t *testing.T, in string, p networkingv1.NetworkPolicyPeer, e end) bool {
	t.Helper()
	if p.IPBlock != nil {
		return e.address != "" && netip.MustParsePrefix(p.IPBlock.CIDR).Contains(netip.MustParseAddr(e.address))
	}
	if e.namespace == nil {
		return false
	}
	if p.NamespaceSelector == nil && e.namespace[nameLabel] != in || p.NamespaceSelector != nil &&
		!selects(t, p.NamespaceSelector, e.namespace) {
		return false
	}
	return p.PodSelector == nil || selects(t, p.PodSelector, e.pod)
}

// open is true if a list of peers and ports lets a connection through; an empty list is everybody, or every port.
func open(t *testing.T, in string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, e end,
	protocol corev1.Protocol, port int, c *corev1.Container) bool {
	t.Helper()
	anybody := len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool { return matches(t, in, p, e) })
	anyPort := len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		number := p.Port.IntValue()
		if p.Port.Type == intstr.String {
			number = containerPort(c, *p.Port)
		}
		return *p.Protocol == protocol && number == port
	})
	return anybody && anyPort
}

func containerPort(c *corev1.Container, port intstr.IntOrString) int {
	if c == nil {
		return 0
	}
	for _, p := range c.Ports {
		if port.Type == intstr.String && p.Name == port.StrVal || port.Type == intstr.Int && p.ContainerPort == port.IntVal {
			return int(p.ContainerPort)
		}
	}
	return 0
}

// policy is that of a service.
func policy(t *testing.T, objects []runtime.Object, name string) *networkingv1.NetworkPolicy {
	t.Helper()
	p, ok := named[*networkingv1.NetworkPolicy](objects, name)
	if !ok {
		t.Fatalf("%s has no NetworkPolicy", name)
	}
	return p
}

// Each policy holds for the Pods of its service and nobody else's, in both directions, and names ports that the
// container listens on.
func TestPoliciesHoldForTheirPods(t *testing.T) {
	objects := mesh(t)
	for _, name := range services {
		p, _ := policy(t, objects, name), objects
		_, c := service(t, objects, name)
		if got := selected(objects, p.Spec.PodSelector.MatchLabels); !slices.Equal(got, []string{name}) ||
			len(p.Spec.PodSelector.MatchExpressions) > 0 {
			t.Errorf("NetworkPolicy %s selects the Pods of %v", name, got)
		}
		if !slices.Equal(p.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}) {
			t.Errorf("NetworkPolicy %s is for %v: what is not listed must be denied both ways", name, p.Spec.PolicyTypes)
		}
		for _, rule := range p.Spec.Ingress {
			for _, port := range rule.Ports {
				if containerPort(&c, *port.Port) == 0 {
					t.Errorf("NetworkPolicy %s: port %s is none of the container", name, port.Port)
				}
			}
		}
	}
}

// The whole matrix of who reaches which port of which service.
func TestWhoReachesWhichPort(t *testing.T) {
	objects := mesh(t)
	everybody := []string{"a false xds-server", "a gateway beside them", "a monitor", "a workload", "another Pod with DNS's", "ca",
		"config-watcher", "DNS", "injector", "xds-server"}
	for _, c := range []struct {
		service string
		port    int
		from    []string
	}{
		{"ca", 15012, everybody},
		{"ca", 15014, []string{"a monitor"}},
		{"ca", 15060, nil},
		{"config-watcher", 15012, nil},
		{"config-watcher", 15014, []string{"a monitor"}},
		{"config-watcher", 15017, slices.Sorted(maps.Keys(ends))}, // API servers, which no selector can name
		{"config-watcher", 15060, []string{"config-watcher", "xds-server"}},
		{"injector", 15014, []string{"a monitor"}},
		{"injector", 15017, slices.Sorted(maps.Keys(ends))},
		{"xds-server", 15010, nil},
		{"xds-server", 15012, everybody},
		{"xds-server", 15014, []string{"a monitor"}},
	} {
		_, container := service(t, objects, c.service)
		var got []string
		for name, e := range ends {
			for _, rule := range policy(t, objects, c.service).Spec.Ingress {
				if open(t, namespace, rule.From, rule.Ports, e, corev1.ProtocolTCP, c.port, &container) && !slices.Contains(got, name) {
					got = append(got, name)
				}
			}
		}
		slices.Sort(got)
		want := slices.Sorted(slices.Values(c.from))
		if !slices.Equal(got, want) {
			t.Errorf("port %d of %s is reached by %v, want %v", c.port, c.service, got, want)
		}
	}
}

// What each service reaches, and that the addresses in its flags are among it.
func TestWhatEachServiceReaches(t *testing.T) {
	objects := mesh(t)
	all := slices.Sorted(maps.Keys(ends))
	to := func(port int, names ...string) []string {
		var list []string
		for _, name := range names {
			list = append(list, fmt.Sprintf("%s:%d", name, port))
		}
		return list
	}
	dns := to(53, "DNS", "NodeLocal DNSCache")
	for name, want := range map[string][]string{
		"ca":             slices.Concat(dns, to(443, all...), to(6443, all...)),
		"config-watcher": slices.Concat(dns, to(15012, "ca"), to(15060, "config-watcher"), to(443, all...), to(6443, all...)),
		"injector":       slices.Concat(dns, to(15012, "ca"), to(443, all...), to(6443, all...)),
		"xds-server":     slices.Concat(dns, to(15012, "ca", "xds-server"), to(15060, "config-watcher")),
	} {
		var got []string
		for peer, e := range ends {
			for _, port := range []int{53, 80, 443, 6443, 15010, 15012, 15014, 15017, 15060} {
				for _, rule := range policy(t, objects, name).Spec.Egress {
					if open(t, namespace, rule.To, rule.Ports, e, corev1.ProtocolTCP, port, nil) {
						got = append(got, fmt.Sprintf("%s:%d", peer, port))
					}
				}
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s reaches\n%v, want\n%v", name, got, want)
		}
		_, c := service(t, objects, name)
		for _, a := range c.Args {
			flag, value, _ := strings.Cut(a, "=")
			match := regexp.MustCompile(`^([a-z-]+)\.istio-system\.svc:(\d+)$`).FindStringSubmatch(value)
			if match == nil {
				continue
			}
			s, ok := named[*corev1.Service](objects, match[1])
			if !ok {
				t.Errorf("%s: %s names no Service", name, a)
				continue
			}
			if there := s.Spec.Selector["app"] + ":" + match[2]; !slices.Contains(got, there) {
				t.Errorf("%s may not reach %s, which %s names", name, there, flag)
			}
		}
	}
}

// GOMEMLIMIT is below the container's limit, and not by much: at the limit itself the kernel would be quicker than the
// collector.
func TestCollectorsKnowTheirLimits(t *testing.T) {
	objects := mesh(t)
	for _, name := range services {
		_, c := service(t, objects, name)
		limit := c.Resources.Limits.Memory().Value()
		mib := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "MEMORY_LIMIT_MIB" })
		i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
		if mib < 0 || i < mib { // only variables that stand before it are put in
			t.Errorf("%s: the variables are at %d and %d", name, mib, i)
			continue
		}
		ref := c.Env[mib].ValueFrom.ResourceFieldRef
		if ref == nil || ref.Resource != "limits.memory" || ref.Divisor.Value() != 1<<20 {
			t.Fatalf("%s: MEMORY_LIMIT_MIB is from %+v", name, ref)
		}
		text := strings.ReplaceAll(c.Env[i].Value, "$(MEMORY_LIMIT_MIB)", strconv.FormatInt(limit>>20, 10))
		soft, err := strconv.ParseInt(text, 10, 64)
		if err != nil || soft < limit*9/10 || soft > limit*97/100 {
			t.Errorf("%s: GOMEMLIMIT is %s (%v), its container's limit %d", name, text, err, limit)
		}
	}
}
