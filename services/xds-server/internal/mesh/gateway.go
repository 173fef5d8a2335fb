package mesh

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"
)

func (w *writer) indexGateway(v *Gateway, add bool) {
	selector := v.Spec.GetSelector()
	label := firstLabel(selector)
	put(w, &w.next.gateways, add, join(label, age(v.Created), v.Key.Namespace, v.Key.Name), v)
	w.touch(SubjectGateways, label, "")
	passthrough := func(s *networking.Server) bool {
		return s.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH
	}
	if slices.ContainsFunc(v.Spec.GetServers(), passthrough) && w.count(&w.next.autoPassthrough, "", add) {
		w.touch(SubjectMeshGateways, "", "")
	}
	w.countRelevantLabels("*", selector, add)
}

// Gateways lists the Gateways that apply to gateways of a namespace with the labels, oldest first: their selector
// matches, and they are exported to the namespace.
func (s *Snapshot) Gateways(namespace string, labels map[string]string) []*Gateway {
	prefixes := []string{sep}
	for _, k := range sortedKeys(labels) {
		prefixes = append(prefixes, k+"="+labels[k]+sep)
	}
	found := merge(s.gateways, prefixes...)
	return slices.DeleteFunc(found, func(g *Gateway) bool {
		return !Matches(g.Spec.GetSelector(), labels) || !visible(g.ExportedTo, namespace)
	})
}

// IsGateway reports whether workloads of a namespace with the labels are gateways: a Gateway that has a selector
// selects them, or a Gateway of the Gateway API does. A Gateway without a selector applies to all routers and does not
// make a workload one.
func (s *Snapshot) IsGateway(namespace string, labels map[string]string) bool {
	return slices.ContainsFunc(s.Gateways(namespace, labels), Selective) || len(s.GatewayListeners(namespace, labels)) > 0
}

// IsGatewayTopics names the answers of IsGateway.
func IsGatewayTopics(namespace string, labels map[string]string) []Topic {
	return append(GatewaysTopics(labels), GatewayListenersTopics(namespace, labels)...)
}

// Selective reports whether the Gateway has a selector.
func Selective(g *Gateway) bool { return len(g.Spec.GetSelector()) > 0 }

// GatewaysTopics names the answers of Gateways.
func GatewaysTopics(labels map[string]string) []Topic {
	topics := []Topic{{SubjectGateways, "", ""}}
	for _, k := range sortedKeys(labels) {
		topics = append(topics, Topic{SubjectGateways, k + "=" + labels[k], ""})
	}
	return topics
}

// MeshGateways reports whether a Gateway has a server of mode AUTO_PASSTHROUGH, which passes mutual TLS of the mesh on.
func (s *Snapshot) MeshGateways() bool { return s.autoPassthrough.len() > 0 }

// AutoPassthroughTopic names the answer of MeshGateways.
func AutoPassthroughTopic() Topic { return Topic{SubjectMeshGateways, "", ""} }
