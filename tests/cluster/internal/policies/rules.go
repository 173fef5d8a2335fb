// Package policies enforces the NetworkPolicies of a cluster on a node: a network plugin that makes bridges alone does
// not. It writes one table of nftables, which it replaces when a Pod, a Namespace or a NetworkPolicy changes. Traffic
// of the node itself passes, as everywhere: the kubelet's probes, and the API server's calls in this cluster.
package policies

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// table is the name of the table.
const table = "network-policies"

// cluster is what policies speak of.
type cluster struct {
	namespaces map[string]labels.Set
	pods       []*corev1.Pod
}

// Rules returns nft's commands, which replace the table by one that enforces the policies.
func Rules(namespaces []*corev1.Namespace, pods []*corev1.Pod, policies []*networkingv1.NetworkPolicy) (string, error) {
	c := cluster{namespaces: map[string]labels.Set{}}
	for _, n := range namespaces {
		c.namespaces[n.Name] = n.Labels
	}
	for _, p := range pods {
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if p.Status.PodIP != "" && !p.Spec.HostNetwork && !ended {
			c.pods = append(c.pods, p)
		}
	}
	slices.SortFunc(c.pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Status.PodIP, b.Status.PodIP) })

	var chains strings.Builder
	from, to := map[string]string{}, map[string]string{} // chains, by address
	for i, pod := range c.pods {
		for _, direction := range []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress} {
			isolated, rules, err := c.of(pod, direction, policies)
			if err != nil {
				return "", err
			}
			if !isolated {
				continue
			}
			chain := fmt.Sprintf("%s-%d", strings.ToLower(string(direction)), i)
			fmt.Fprintf(&chains, "  chain %s { # %s/%s\n", chain, pod.Namespace, pod.Name)
			for _, rule := range rules {
				fmt.Fprintf(&chains, "    %s return\n", rule)
			}
			chains.WriteString("    drop\n  }\n")
			if direction == networkingv1.PolicyTypeIngress {
				to[pod.Status.PodIP] = chain
			} else {
				from[pod.Status.PodIP] = chain
			}
		}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "add table ip %[1]s\ndelete table ip %[1]s\ntable ip %[1]s {\n%[2]s", table, chains.String())
	for _, hook := range []string{"forward", "input"} {
		fmt.Fprintf(&out, "  chain %[1]s {\n    type filter hook %[1]s priority filter; policy accept;\n    ct state established,related "+
			"accept\n", hook)
		out.WriteString(jumps("saddr", from) + jumps("daddr", to) + "  }\n")
	}
	out.WriteString("}\n")
	return out.String(), nil
}

func jumps(field string, chains map[string]string) string {
	if len(chains) == 0 {
		return ""
	}
	var out []string
	for _, address := range slices.Sorted(maps.Keys(chains)) {
		out = append(out, address+" : jump "+chains[address])
	}
	return fmt.Sprintf("    ip %s vmap { %s }\n", field, strings.Join(out, ", "))
}

// of returns whether policies isolate a Pod in a direction, and what these let through, as matches of nft.
func (c *cluster) of(pod *corev1.Pod, direction networkingv1.PolicyType, policies []*networkingv1.NetworkPolicy) (isolated bool,
	rules []string, err error) {
	for _, p := range policies {
		if p.Namespace != pod.Namespace || !slices.Contains(p.Spec.PolicyTypes, direction) {
			continue
		}
		if ok, err := matches(&p.Spec.PodSelector, pod.Labels); err != nil || !ok {
			if err != nil {
				return false, nil, fmt.Errorf("NetworkPolicy %s/%s: %w", p.Namespace, p.Name, err)
			}
			continue
		}
		isolated = true
		field := "saddr"
		var parts []part
		if direction == networkingv1.PolicyTypeIngress {
			for _, r := range p.Spec.Ingress {
				parts = append(parts, part{r.From, r.Ports})
			}
		} else {
			field = "daddr"
			for _, r := range p.Spec.Egress {
				parts = append(parts, part{r.To, r.Ports})
			}
		}
		for _, r := range parts {
			peers, err := c.addresses(p.Namespace, r.peers)
			if err != nil {
				return false, nil, fmt.Errorf("NetworkPolicy %s/%s: %w", p.Namespace, p.Name, err)
			}
			for _, peer := range peers {
				owner := pod // of the port
				if direction == networkingv1.PolicyTypeEgress {
					owner = peer.pod
				}
				for _, port := range ports(r.ports, owner) {
					rules = append(rules, strings.TrimSpace(strings.ReplaceAll(peer.match, "ADDR", field)+" "+port))
				}
			}
		}
	}
	slices.Sort(rules)
	return isolated, slices.Compact(rules), nil
}

// part is a rule of either direction.
type part struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

// peer is an address or a range, as a match of nft with ADDR for the field.
type peer struct {
	match string
	pod   *corev1.Pod
}

// addresses returns what peers select; everything if there are none.
func (c *cluster) addresses(namespace string, of []networkingv1.NetworkPolicyPeer) (out []peer, err error) {
	if len(of) == 0 {
		return []peer{{}}, nil
	}
	for _, p := range of {
		if p.IPBlock != nil {
			match := "ip ADDR " + p.IPBlock.CIDR
			if len(p.IPBlock.Except) > 0 {
				match += " ip ADDR != { " + strings.Join(p.IPBlock.Except, ", ") + " }"
			}
			out = append(out, peer{match: match})
			continue
		}
		for _, pod := range c.pods {
			inside := pod.Namespace == namespace
			if p.NamespaceSelector != nil {
				if inside, err = matches(p.NamespaceSelector, c.namespaces[pod.Namespace]); err != nil {
					return nil, err
				}
			}
			if inside && p.PodSelector != nil {
				if inside, err = matches(p.PodSelector, pod.Labels); err != nil {
					return nil, err
				}
			}
			if inside {
				out = append(out, peer{"ip ADDR " + pod.Status.PodIP, pod})
			}
		}
	}
	return out, nil
}

// ports returns matches for ports, one of everything if there are none. owner has the names of ports; a name that it
// does not have matches nothing.
func ports(of []networkingv1.NetworkPolicyPort, owner *corev1.Pod) (out []string) {
	if len(of) == 0 {
		return []string{""}
	}
	for _, p := range of {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		match := strings.ToLower(string(protocol))
		switch {
		case p.Port == nil:
			out = append(out, "meta l4proto "+match)
		case p.Port.Type == intstr.String:
			if owner == nil {
				continue
			}
			for _, container := range owner.Spec.Containers {
				for _, named := range container.Ports {
					if named.Name == p.Port.StrVal && (named.Protocol == protocol || named.Protocol == "" && protocol == corev1.ProtocolTCP) {
						out = append(out, match+" dport "+strconv.Itoa(int(named.ContainerPort)))
					}
				}
			}
		case p.EndPort != nil:
			out = append(out, fmt.Sprintf("%s dport %d-%d", match, p.Port.IntVal, *p.EndPort))
		default:
			out = append(out, fmt.Sprintf("%s dport %d", match, p.Port.IntVal))
		}
	}
	return out
}

func matches(selector *metav1.LabelSelector, of map[string]string) (bool, error) {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false, err
	}
	return s.Matches(labels.Set(of)), nil
}
