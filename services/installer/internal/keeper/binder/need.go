package binder

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// Bounds of the watches of Pods: one for each selector of a Gateway. The oldest Gateways come first.
const (
	maxSelectors            = 64
	maxSelectorsOfNamespace = 8
)

// state is what the objects of the cluster are, as far as needs depend on them.
type state struct {
	gateways, rules, ingresses, groups, entries []*unstructured.Unstructured
	// api are the objects of the Gateway API.
	api gatewayAPI
	// ingress selects the gateways that serve Ingresses.
	ingress map[string]string
	// pods returns the namespaces of the Pods that a selector selects.
	pods func(selector string) []string
	// selected are the answers of workloads.
	selected map[string][]string
}

// workloads returns the namespaces of the Pods and of the WorkloadEntries that a selector selects.
func (s *state) workloads(selector string) []string {
	if out, known := s.selected[selector]; known {
		return out
	}
	out := s.pods(selector)
	if selects, err := labels.Parse(selector); err == nil {
		for _, e := range s.entries {
			if set, _, _ := unstructured.NestedStringMap(e.Object, "spec", "labels"); selects.Matches(labels.Set(set)) {
				out = append(out, e.GetNamespace())
			}
		}
	}
	if s.selected == nil {
		s.selected = map[string][]string{}
	}
	s.selected[selector] = out
	return out
}

// need is the set of namespaces of one role, each with an object that needs it.
type need map[string]string

func (n need) add(namespace, because string) {
	if before, ok := n[namespace]; namespace != "" && (!ok || because < before) {
		n[namespace] = because
	}
}

// registration are the namespaces with a WorkloadGroup: machines register themselves in these.
func (s *state) registration() need {
	out := need{}
	for _, g := range s.groups {
		out.add(g.GetNamespace(), name(g))
	}
	return out
}

// credentials are the namespaces whose workloads use Secrets that objects name: those of the workloads that a Gateway
// with a credential selects, that of a DestinationRule with a selector and a credential, and for objects without a
// selector those of all gateways that the object is exported to. Objects of the Gateway API name namespaces.
func (s *state) credentials() need {
	out := need{}
	for _, g := range s.gateways {
		if selector, _ := selectorOf(g); namesCredential(g) && selector != "" {
			for _, namespace := range s.workloads(selector) {
				out.add(namespace, name(g))
			}
		}
	}
	if served := labels.Set(s.ingress).String(); served != "" {
		for _, i := range s.ingresses {
			if !hasSecret(i) {
				continue
			}
			for _, namespace := range s.workloads(served) {
				out.add(namespace, name(i))
			}
		}
	}
	s.api.credentials(out)
	all := s.gatewayNamespaces()
	for _, o := range slices.Concat(s.gateways, s.rules) {
		if !namesCredential(o) {
			continue
		}
		selector, _ := selectorOf(o)
		switch {
		case o.GetKind() == kindGateway && selector != "":
		case selector != "":
			out.add(o.GetNamespace(), name(o))
		default:
			for namespace := range all {
				if exported(o, namespace) {
					out.add(namespace, name(o))
				}
			}
		}
	}
	return out
}

// gatewayNamespaces are those of the workloads that any Gateway selects.
func (s *state) gatewayNamespaces() map[string]bool {
	out := map[string]bool{}
	for _, g := range s.gateways {
		if selector, _ := selectorOf(g); selector != "" {
			for _, namespace := range s.workloads(selector) {
				out[namespace] = true
			}
		}
	}
	return out
}

// selectors are those whose Pods are to be known, and how many more there are than the bounds allow.
func (s *state) selectors() (watched map[string]bool, left int) {
	all := slices.ContainsFunc(slices.Concat(s.gateways, s.rules), func(o *unstructured.Unstructured) bool {
		selector, _ := selectorOf(o)
		return selector == "" && namesCredential(o)
	})
	watched, of, beyond := map[string]bool{}, map[string]int{}, map[string]bool{}
	if slices.ContainsFunc(s.ingresses, hasSecret) {
		if served := labels.Set(s.ingress).String(); served != "" {
			watched[served] = true
		}
	}
	for _, g := range slices.SortedFunc(slices.Values(s.gateways), older) {
		selector, err := selectorOf(g)
		if err != nil || selector == "" || watched[selector] || !all && !namesCredential(g) {
			continue
		}
		if len(watched) >= maxSelectors || of[g.GetNamespace()] >= maxSelectorsOfNamespace {
			beyond[selector] = true
			continue
		}
		of[g.GetNamespace()]++
		watched[selector] = true
	}
	maps.DeleteFunc(beyond, func(selector string, _ bool) bool { return watched[selector] })
	return watched, len(beyond)
}

func older(a, b *unstructured.Unstructured) int {
	at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return cmp.Or(at.Compare(bt.Time), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}

// selectorOf returns the selector of an object's workloads as the API server reads it; "" if it has none.
func selectorOf(o *unstructured.Unstructured) (string, error) {
	path := []string{"spec", "selector"}
	if o.GetKind() == kindRule {
		path = []string{"spec", "workloadSelector", "matchLabels"}
	}
	set, _, err := unstructured.NestedStringMap(o.Object, path...)
	if err != nil || len(set) == 0 {
		return "", err
	}
	selector, err := labels.ValidatedSelectorFromSet(set)
	if err != nil {
		return "", err
	}
	return selector.String(), nil
}

// namesCredential looks for a credential's name in a Gateway or DestinationRule, wherever its kind has one.
func namesCredential(o *unstructured.Unstructured) bool {
	if o.GetKind() == kindGateway {
		return slices.ContainsFunc(list(o.Object, "spec", "servers"), func(server map[string]any) bool { return named(server) })
	}
	spec, _, _ := unstructured.NestedMap(o.Object, "spec")
	policies := append(list(spec, "subsets"), spec)
	return slices.ContainsFunc(policies, func(of map[string]any) bool {
		policy, _ := of["trafficPolicy"].(map[string]any)
		return named(policy) || slices.ContainsFunc(list(policy, "portLevelSettings"), named)
	})
}

// named tells whether the TLS settings in a field "tls" name a credential.
func named(of map[string]any) bool {
	tls, _ := of["tls"].(map[string]any)
	for _, field := range []string{"credentialName", "caCertCredentialName"} {
		if text, _ := tls[field].(string); text != "" {
			return true
		}
	}
	several, _ := tls["credentialNames"].([]any)
	return len(several) > 0
}

// hasSecret tells whether an Ingress names a Secret.
func hasSecret(o *unstructured.Unstructured) bool {
	return slices.ContainsFunc(list(o.Object, "spec", "tls"), func(tls map[string]any) bool {
		text, _ := tls["secretName"].(string)
		return text != ""
	})
}

// exported tells whether a namespace may see an object. A Gateway has no exportTo.
func exported(o *unstructured.Unstructured, namespace string) bool {
	to, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "exportTo")
	return len(to) == 0 || slices.ContainsFunc(to, func(text string) bool {
		return text == "*" || text == namespace || text == "." && namespace == o.GetNamespace()
	})
}

func list(of map[string]any, path ...string) []map[string]any {
	items, _, _ := unstructured.NestedFieldNoCopy(of, path...)
	all, _ := items.([]any)
	out := make([]map[string]any, 0, len(all))
	for _, item := range all {
		if m, ok := item.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

func name(o *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
}
