package mesh

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// ServicesOf lists the services of one hostname that are exported to the namespace, whatever they are called and wherever they live, one of
// each namespace; the one that wins a conflict comes first: the client's own namespace, then the oldest.
func (s *Snapshot) ServicesOf(hostname, to string) []*configv1.Service {
	var found []*configv1.Service
	s.services.scan(hostname+sep, func(_ string, e *entry) bool {
		svc := e.value.(*configv1.Service)
		if !visible(svc.GetExportedTo(), to) {
			return true
		}
		// What is exported to all has the first place in the index among those of a namespace.
		if last := len(found) - 1; last >= 0 && found[last].GetNamespace() == svc.GetNamespace() {
			found[last] = svc
		} else {
			found = append(found, svc)
		}
		return true
	})
	slices.SortStableFunc(found, func(a, b *configv1.Service) int { return compareServices(a, b, to) })
	return found
}

// ServiceTopic names the answer of ServicesOf.
func ServiceTopic(hostname string) Topic { return Topic{SubjectService, hostname, ""} }

// compareServices orders services of one hostname by who wins for a client in namespace ns: those of its own namespace, then Kubernetes' own,
// whose names nobody can take away, then the oldest. Of one namespace's, what is exported to ns itself goes before what is exported to all.
func compareServices(a, b *configv1.Service, ns string) int {
	if a.GetNamespace() == b.GetNamespace() {
		return cmp.Compare(b.GetAudience(), a.GetAudience())
	}
	if own := a.GetNamespace() == ns; own != (b.GetNamespace() == ns) {
		if own {
			return -1
		}
		return 1
	}
	if own := isKubernetes(a); own != isKubernetes(b) {
		if own {
			return -1
		}
		return 1
	}
	if c := a.GetCreationTime().AsTime().Compare(b.GetCreationTime().AsTime()); c != 0 {
		return c
	}
	return strings.Compare(a.GetNamespace(), b.GetNamespace())
}

func isKubernetes(svc *configv1.Service) bool { return svc.GetSource().GetKind() == "Service" }

// ServicesIn calls f for every service exported to the namespace, in order of its own namespace and then hostname; ns narrows to the
// services of one namespace, "" means all. A hostname that several namespaces define, or one for several audiences, comes several times.
func (s *Snapshot) ServicesIn(to, ns string, f func(*configv1.Service)) {
	for _, t := range []string{"*", to} {
		prefix := t + sep
		if ns != "" {
			prefix += ns + sep
		}
		s.exported.scan(prefix, func(_ string, e *entry) bool {
			f(e.value.(*configv1.Service))
			return true
		})
	}
}

// ServicesInTopics names the answers of ServicesIn.
func ServicesInTopics(to, ns string) []Topic {
	return []Topic{{SubjectServices, "*", ns}, {SubjectServices, to, ns}}
}

// Endpoints lists the shards of one port of a service.
func (s *Snapshot) Endpoints(svc *configv1.Service, port uint32) []*configv1.EndpointSet {
	var sets []*configv1.EndpointSet
	prefix := join(svc.GetHostname(), number(port), svc.GetNamespace(), svc.GetAudience()) + sep
	s.endpoints.scan(prefix, func(_ string, e *entry) bool {
		sets = append(sets, e.value.(*configv1.EndpointSet))
		return true
	})
	return sets
}

// EndpointsTopic names the answer of Endpoints.
func EndpointsTopic(hostname string, port uint32) Topic { return endpointsTopic(hostname, port) }

// VirtualServices lists the VirtualServices exported to the namespace and bound to the gateway ("mesh" or "<ns>/<name>"), oldest first.
func (s *Snapshot) VirtualServices(to, gateway string) []*VirtualService {
	return merge(s.gatewayRoutes, join("*", gateway)+sep, join(to, gateway)+sep)
}

// VirtualServicesTopics names the answers of VirtualServices.
func VirtualServicesTopics(to, gateway string) []Topic {
	return []Topic{{SubjectGatewayRoutes, "*", gateway}, {SubjectGatewayRoutes, to, gateway}}
}

// VirtualServicesOf lists those of VirtualServices that name the host, exactly or by a wildcard that covers it; oldest first within each
// host, the most specific host first.
func (s *Snapshot) VirtualServicesOf(to, gateway, host string) []*VirtualService {
	var found []*VirtualService
	for h := range Covering(host) {
		s.hostRoutes.scan(join(gateway, h)+sep, func(_ string, v *VirtualService) bool {
			if v.Visible(to) {
				found = append(found, v)
			}
			return true
		})
	}
	return found
}

// VirtualServicesOfTopics names the answers of VirtualServicesOf.
func VirtualServicesOfTopics(gateway, host string) []Topic {
	return []Topic{{SubjectHostRoutes, gateway, host}, {SubjectHostRoutes, gateway, "*"}}
}

// DestinationRules lists the rules in one namespace whose host is exactly the one given, oldest first, wherever they are exported to.
func (s *Snapshot) DestinationRules(namespace, host string) []*DestinationRule {
	return merge(s.rules, join(namespace, host)+sep)
}

// DestinationRulesTopics names the answers of all DestinationRules look-ups for a hostname and the wildcards that cover it.
func DestinationRulesTopics(hostname string) []Topic {
	return []Topic{{SubjectDestinationRule, wildcardOr(hostname), ""}, {SubjectDestinationRule, "*", ""}}
}

// Sidecar returns the Sidecar that applies to a workload of the namespace with these labels, nil if none does: one of its namespace that
// selects it, else its namespace's without a selector, else the root namespace's; the oldest where several qualify.
func (s *Snapshot) Sidecar(namespace, root string, labels map[string]string) *Sidecar {
	var byDefault *Sidecar
	for _, found := range merge(s.sidecars, namespace+sep) {
		selector := found.Spec.GetWorkloadSelector().GetLabels()
		switch {
		case len(selector) == 0:
			if byDefault == nil {
				byDefault = found
			}
		case Matches(selector, labels):
			return found
		}
	}
	if byDefault != nil || root == namespace {
		return byDefault
	}
	for _, found := range merge(s.sidecars, root+sep) {
		if len(found.Spec.GetWorkloadSelector().GetLabels()) == 0 {
			return found
		}
	}
	return nil
}

// EgressListeners lists the egress listeners of a workload whose Sidecar is own, and the Sidecar that has them: one that names none inherits those
// of its namespace's default, or else of the mesh's. None, and nil, where nothing limits what the workload may address.
func (s *Snapshot) EgressListeners(own *Sidecar, root string) ([]*networking.IstioEgressListener, *Sidecar) {
	if own == nil {
		return nil, nil
	}
	for _, found := range []*Sidecar{own, s.Sidecar(own.Key.Namespace, root, nil), s.Sidecar(root, root, nil)} {
		if found != nil && len(found.Spec.GetEgress()) > 0 {
			return found.Spec.GetEgress(), found
		}
	}
	return nil, nil
}

// SidecarTopics names the answers of Sidecar, and of EgressListeners for a Sidecar of the namespace.
func SidecarTopics(namespace, root string) []Topic {
	return []Topic{{SubjectSidecars, namespace, ""}, {SubjectSidecars, root, ""}}
}

// SidecarNamed returns one Sidecar, nil if there is none.
func (s *Snapshot) SidecarNamed(namespace, name string) *Sidecar {
	e, _ := s.kinds[KindSidecar].lookup(Key{KindSidecar, namespace, name}.path())
	if e == nil {
		return nil
	}
	found, _ := e.value.(*Sidecar)
	return found
}

// SidecarNamedTopic names the answer of SidecarNamed.
func SidecarNamedTopic(namespace string) Topic { return Topic{SubjectSidecars, namespace, ""} }

// PeerAuthentications lists the PeerAuthentications of a namespace, oldest first.
func (s *Snapshot) PeerAuthentications(namespace string) []*PeerAuthentication {
	return merge(s.authentications, namespace+sep)
}

// PeerAuthenticationsTopic names the answer of PeerAuthentications.
func PeerAuthenticationsTopic(namespace string) Topic {
	return Topic{SubjectPeerAuthentications, namespace, ""}
}

// Gateways lists the Gateways whose selector matches the labels, oldest first.
func (s *Snapshot) Gateways(labels map[string]string) []*Gateway {
	prefixes := []string{sep}
	for _, k := range sortedKeys(labels) {
		prefixes = append(prefixes, k+"="+labels[k]+sep)
	}
	found := merge(s.gateways, prefixes...)
	return slices.DeleteFunc(found, func(g *Gateway) bool { return !Matches(g.Spec.GetSelector(), labels) })
}

// IsGateway reports whether workloads with the labels are gateways: one that has a selector selects them. A Gateway
// without a selector is for all routers, and tells nothing about who is one.
func (s *Snapshot) IsGateway(labels map[string]string) bool {
	return slices.ContainsFunc(s.Gateways(labels), Selective)
}

// Selective reports whether the Gateway has a selector.
func Selective(g *Gateway) bool { return len(g.Spec.GetSelector()) > 0 }

// GatewaysTopics names the answers of Gateways and IsGateway.
func GatewaysTopics(labels map[string]string) []Topic {
	topics := []Topic{{SubjectGateways, "", ""}}
	for _, k := range sortedKeys(labels) {
		topics = append(topics, Topic{SubjectGateways, k + "=" + labels[k], ""})
	}
	return topics
}

// MeshGateways reports whether any Gateway has a server that passes mesh TLS through.
func (s *Snapshot) MeshGateways() bool { return s.meshGateways > 0 }

// MeshGatewaysTopic names the answer of MeshGateways.
func MeshGatewaysTopic() Topic { return Topic{SubjectMeshGateways, "", ""} }

// NetworkGateways lists where a network is entered, sorted; empty if no Service leads into it.
func (s *Snapshot) NetworkGateways(network string) []NetworkGateway {
	var found []NetworkGateway
	s.networks.scan(network+sep, func(_ string, e *entry) bool {
		g := e.value.(*configv1.Service).GetNetworkGateway()
		for _, a := range g.GetAddresses() {
			found = append(found, NetworkGateway{a, g.GetPort()})
		}
		return true
	})
	slices.SortFunc(found, func(a, b NetworkGateway) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(found)
}

// NetworkGateway is an address where a network is entered.
type NetworkGateway struct {
	Address string
	Port    uint32
}

// NetworkGatewaysTopic names the answer of NetworkGateways.
func NetworkGatewaysTopic(network string) Topic { return Topic{SubjectNetworkGateways, network, ""} }

// ManyNetworks reports whether any network has gateways: only then it matters which one a proxy is in.
func (s *Snapshot) ManyNetworks() bool { return !s.networks.empty() }

// ManyNetworksTopic names the answer of ManyNetworks.
func ManyNetworksTopic() Topic { return Topic{SubjectNetworkGateways, "", ""} }

// Workload returns one workload, nil if there is none.
func (s *Snapshot) Workload(namespace, name string) *configv1.Workload {
	e, _ := s.kinds[KindWorkload].lookup(Key{KindWorkload, namespace, name}.path())
	if e == nil {
		return nil
	}
	w, _ := e.value.(*configv1.Workload)
	return w
}

// WorkloadsOf counts the workloads of a namespace that run as a service account. It costs one look-up.
func (s *Snapshot) WorkloadsOf(namespace, serviceAccount string) int {
	n, _ := s.accounts.get(join(namespace, serviceAccount))
	return n
}

// WorkloadTopic names the answer of Workload.
func WorkloadTopic(namespace, name string) Topic { return Topic{SubjectWorkload, namespace, name} }

// Workloads calls f for every workload.
func (s *Snapshot) Workloads(f func(*configv1.Workload)) {
	x, ok := s.kinds[KindWorkload]
	if !ok {
		return
	}
	x.scan("", func(_ string, e *entry) bool {
		if w, ok := e.value.(*configv1.Workload); ok {
			f(w)
		}
		return true
	})
}

// WorkloadsAt lists the workloads of an address.
func (s *Snapshot) WorkloadsAt(address string) []*configv1.Workload {
	var found []*configv1.Workload
	s.addresses.scan(address+sep, func(_ string, e *entry) bool {
		found = append(found, e.value.(*configv1.Workload))
		return true
	})
	return found
}

// AddressTopic names the answer of WorkloadsAt.
func AddressTopic(address string) Topic { return Topic{SubjectAddress, address, ""} }

// MeshTopic names the answer of Mesh.
func MeshTopic() Topic { return Topic{SubjectMesh, "", ""} }

// SelectedLabels returns those of the labels whose key some selector tests that can apply to workloads of the namespace.
func (s *Snapshot) SelectedLabels(namespace string, labels map[string]string) map[string]string {
	selected := map[string]string{}
	for k, v := range labels {
		if _, ok := s.selected.get(join(namespace, k)); ok {
			selected[k] = v
		} else if _, ok := s.selected.get(join("*", k)); ok {
			selected[k] = v
		}
	}
	return selected
}

// SelectedLabelsTopics names the answers of SelectedLabels.
func SelectedLabelsTopics(namespace string) []Topic {
	return []Topic{{SubjectSelectedLabels, namespace, ""}, {SubjectSelectedLabels, "*", ""}}
}

// lookup is get that bears the zero index.
func (x index[V]) lookup(key string) (v V, ok bool) {
	if x.m == nil {
		return v, false
	}
	return x.get(key)
}

// merge collects the objects under several prefixes, each once, oldest first.
func merge[T interface {
	comparable
	Older(T) bool
}](x index[T], prefixes ...string) []T {
	var found []T
	for _, p := range prefixes {
		x.scan(p, func(_ string, v T) bool {
			found = append(found, v)
			return true
		})
	}
	if len(prefixes) > 1 {
		slices.SortStableFunc(found, func(a, b T) int {
			if a == b {
				return 0
			}
			if a.Older(b) {
				return -1
			}
			return 1
		})
		found = slices.Compact(found)
	}
	return found
}

// visible reports whether an object exported to these namespaces may be used from ns.
func visible(exportedTo []string, ns string) bool {
	return slices.Contains(exportedTo, "*") || slices.Contains(exportedTo, ns)
}

// Visible reports whether the object may be used from the namespace.
func (c *Config[T]) Visible(namespace string) bool { return visible(c.ExportedTo, namespace) }

// Matches reports whether every label of the selector is among the labels; an empty selector matches all.
func Matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Covering yields the host itself and then the wildcard hosts that cover it, the most specific first:
// a.b.c, *.b.c, *.c, *.
func Covering(host string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		if !yield(host) || host == "*" {
			return
		}
		rest := strings.TrimPrefix(host, "*.")
		if rest != host {
			// The wildcard itself was yielded above.
			if _, after, ok := strings.Cut(rest, "."); ok {
				rest = after
			} else {
				rest = ""
			}
		} else if _, after, ok := strings.Cut(host, "."); ok {
			rest = after
		} else {
			rest = ""
		}
		for rest != "" {
			if !yield("*." + rest) {
				return
			}
			_, rest, _ = strings.Cut(rest, ".")
		}
		yield("*")
	}
}

// ServiceIn returns the service of a hostname that lives in the namespace, whoever may see it; nil if there is none. Where there are several for
// different audiences it is one that has the port, and of these rather what the namespace itself sees.
func (s *Snapshot) ServiceIn(hostname, namespace string, port uint32) *configv1.Service {
	var found *configv1.Service
	best := -1
	s.services.scan(join(hostname, namespace)+sep, func(_ string, e *entry) bool {
		svc := e.value.(*configv1.Service)
		rank, own := 0, visible(svc.GetExportedTo(), namespace)
		if slices.ContainsFunc(svc.GetPorts(), func(p *configv1.ServicePort) bool { return p.GetNumber() == port }) {
			rank = 2
		}
		if own {
			rank++
		}
		if rank > best || rank == best && own { // what is exported to all was the first
			found, best = svc, rank
		}
		return true
	})
	return found
}

// Wins reports whether service a beats b of the same hostname for a client in the namespace: its own namespace's first, then the oldest.
func Wins(a, b *configv1.Service, client string) bool { return compareServices(a, b, client) < 0 }
