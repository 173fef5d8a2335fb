package normalise

import (
	"cmp"
	"reflect"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Labels that decide about endpoints.
const (
	labelTLSMode      = "security.istio.io/tlsMode"
	labelLocality     = "istio-locality"
	labelNetwork      = "topology.istio.io/network"
	labelRegion       = "topology.kubernetes.io/region"
	labelZone         = "topology.kubernetes.io/zone"
	labelSubzone      = "topology.istio.io/subzone"
	labelRegionLegacy = "failure-domain.beta.kubernetes.io/region"
	labelZoneLegacy   = "failure-domain.beta.kubernetes.io/zone"
	labelServiceName  = "kubernetes.io/service-name"
)

// instKey names a workload instance; kind is Pod or WorkloadEntry.
type instKey struct{ kind, namespace, name, cluster string }

func (k instKey) place() place { return place{k.namespace, k.cluster} }

// workload is the name of the instance's Workload.
func (k instKey) workload() namespacedName { return namespacedName{k.namespace, k.name, k.cluster} }

// instance is what a Pod or a WorkloadEntry contributes to endpoints and Workloads. Selectors match both alike.
type instance struct {
	key       instKey
	object    *object.Object
	addresses []string
	labels    map[string]string
	account   string
	node      string
	locality  *configv1.Locality // of the object itself; nil means the node's
	// copied is the locality in the labels that Kubernetes copies from the node to a Pod, which lack the subzone. It
	// counts where the node is not known.
	copied  *configv1.Locality
	network string
	health  configv1.Health
	tlsMode configv1.TlsMode
	weight  uint32
	// ports by name: container ports of a Pod, ports of a WorkloadEntry.
	ports map[string]uint32
	// hostname and subdomain of a StatefulSet's Pod.
	hostname, subdomain string
}

// fromPod makes an instance of a Pod; nil if the Pod has ended.
func fromPod(o *object.Object, p *object.Pod) *instance {
	if p.Ended {
		return nil
	}
	in := &instance{
		key: instKey{"Pod", o.Key.Namespace, o.Key.Name, o.Key.Cluster}, object: o, labels: o.Labels,
		account: cmp.Or(p.ServiceAccount, "default"), node: p.Node, addresses: p.Addresses,
		network: o.Labels[labelNetwork], health: podHealth(p), tlsMode: configv1.TlsMode_TLS_MODE_DISABLED, ports: p.Ports,
		hostname: p.Hostname, subdomain: p.Subdomain,
	}
	if o.Labels[labelTLSMode] == "istio" {
		in.tlsMode = configv1.TlsMode_TLS_MODE_ISTIO
	}
	in.locality, in.copied = podLocality(o.Labels), topologyLocality(o.Labels)
	return in
}

func podHealth(p *object.Pod) configv1.Health {
	switch {
	case p.Ready && p.Ending:
		return configv1.Health_HEALTH_DRAINING
	case p.Ready:
		return configv1.Health_HEALTH_READY
	default:
		return configv1.Health_HEALTH_NOT_READY
	}
}

// endpointAddresses are the instance's addresses. A WorkloadEntry of a network may have none, because only the
// network's gateways reach it; it yields one empty address.
func (in *instance) endpointAddresses() []string {
	if len(in.addresses) == 0 && in.network != "" && in.key.kind != "Pod" {
		return []string{""}
	}
	return in.addresses
}

// podLocality reads the Pod's istio-locality label; nil if the Pod has none. The label separates "region.zone.subzone"
// by dots, since labels have no slashes.
func podLocality(labels map[string]string) *configv1.Locality {
	s := labels[labelLocality]
	if !strings.Contains(s, "/") {
		s = strings.ReplaceAll(s, ".", "/")
	}
	return parseLocality(s)
}

func topologyLocality(labels map[string]string) *configv1.Locality {
	region, zone := cmp.Or(labels[labelRegion], labels[labelRegionLegacy]), cmp.Or(labels[labelZone], labels[labelZoneLegacy])
	if region == "" && zone == "" {
		return nil
	}
	return &configv1.Locality{Region: region, Zone: zone, Subzone: labels[labelSubzone]}
}

// parseLocality reads "region/zone/subzone"; nil for an empty text.
func parseLocality(s string) *configv1.Locality {
	if s == "" {
		return nil
	}
	parts := strings.SplitN(s, "/", 3)
	l := &configv1.Locality{Region: parts[0]}
	if len(parts) > 1 {
		l.Zone = parts[1]
	}
	if len(parts) > 2 {
		l.Subzone = parts[2]
	}
	return l
}

// fromWorkloadEntry makes an instance of a WorkloadEntry, or of one endpoint of a ServiceEntry (then o is the
// ServiceEntry).
func fromWorkloadEntry(o *object.Object, we *networking.WorkloadEntry) *instance {
	in := &instance{
		key: instKey{"WorkloadEntry", o.Key.Namespace, o.Key.Name, o.Key.Cluster}, object: o, labels: we.Labels, account: we.ServiceAccount,
		network: we.Network,
		health:  configv1.Health_HEALTH_READY, tlsMode: configv1.TlsMode_TLS_MODE_DISABLED, weight: we.Weight, ports: we.Ports,
		locality: parseLocality(we.Locality),
	}
	if h := o.Health; h != nil && h.Counts && !h.Well {
		in.health = configv1.Health_HEALTH_NOT_READY
	}
	// Without the label a service account means that the workload has an identity, and therefore a proxy.
	if mode, ok := we.Labels[labelTLSMode]; ok && mode == "istio" || !ok && we.ServiceAccount != "" {
		in.tlsMode = configv1.TlsMode_TLS_MODE_ISTIO
	}
	if we.Address != "" {
		in.addresses = []string{strings.TrimPrefix(we.Address, "unix://")}
	}
	return in
}

// nodeKey names the instance's node.
func (in *instance) nodeKey() nodeKey { return nodeKey{in.node, in.key.cluster} }

// same reports whether two instances contribute the same to endpoints and Workloads.
func (in *instance) same(o *instance) bool {
	if in == nil || o == nil {
		return in == o
	}
	a, b := *in, *o
	a.object, b.object = nil, nil
	return reflect.DeepEqual(a, b) && reflect.DeepEqual(MeshAnnotations(in.object.Annotations), MeshAnnotations(o.object.Annotations)) &&
		in.object.Location == o.object.Location && in.object.Source == o.object.Source && in.object.Generation == o.object.Generation
}

func sameLabels(a, b *instance) bool {
	return a != nil && b != nil && reflect.DeepEqual(a.labels, b.labels)
}

// matches reports whether a selector selects the labels. An empty selector selects nothing, as in a Kubernetes Service.
func matches(selector, labels map[string]string) bool {
	if len(selector) == 0 {
		return false
	}
	for k, v := range selector {
		if got, ok := labels[k]; k != "" && (!ok || got != v) {
			return false
		}
	}
	return true
}
