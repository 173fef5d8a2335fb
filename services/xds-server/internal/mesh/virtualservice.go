package mesh

import (
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
)

func (w *writer) indexVirtualService(v *VirtualService, add bool) {
	gateways := boundTo(v)
	if slices.Contains(gateways, contract.MeshGateway) {
		for _, host := range Destinations(v.Spec) {
			put(w, &w.next.destinations, add, join(host, age(v.Created), v.Key.Namespace, v.Key.Name), v)
			w.touch(SubjectDestinations, host, "")
		}
	}
	for _, to := range v.ExportedTo {
		for _, gw := range gateways {
			put(w, &w.next.gatewayRoutes, add, join(to, gw, age(v.Created), v.Key.Namespace, v.Key.Name), v)
			w.touch(SubjectGatewayRoutes, to, gw)
		}
		w.countRelevantLabels(to, sourceLabels(v.Spec), add)
	}
	private := explicit(v.ExportedTo)
	for _, gw := range gateways {
		w.countPrivate(private, add, Topic{SubjectGatewayRoutes, "*", gw})
		for _, host := range v.Spec.GetHosts() {
			put(w, &w.next.hostRoutes, add, join(gw, host, age(v.Created), v.Key.Namespace, v.Key.Name), v)
			for _, h := range slices.Compact([]string{host, wildcardOr(host)}) {
				w.touch(SubjectHostRoutes, gw, h)
				w.countPrivate(private, add, Topic{SubjectHostRoutes, gw, h})
			}
		}
	}
}

// boundTo lists the gateways of a VirtualService as "mesh" or "<namespace>/<name>", sorted, each once. config-watcher
// has added the gateways that only a match names to those of the object.
func boundTo(v *VirtualService) []string {
	gateways := []string{}
	for _, gw := range v.Spec.GetGateways() {
		gateways = append(gateways, contract.GatewayName(gw, v.Key.Namespace))
	}
	if len(gateways) == 0 {
		return []string{contract.MeshGateway}
	}
	slices.Sort(gateways)
	return slices.Compact(gateways)
}

// sourceLabels joins the sourceLabels of the matches of a VirtualService.
func sourceLabels(vs *networking.VirtualService) map[string]string {
	labels := map[string]string{}
	for _, route := range vs.GetHttp() {
		for _, m := range route.GetMatch() {
			maps.Copy(labels, m.GetSourceLabels())
		}
	}
	for _, route := range vs.GetTcp() {
		for _, m := range route.GetMatch() {
			maps.Copy(labels, m.GetSourceLabels())
		}
	}
	for _, route := range vs.GetTls() {
		for _, m := range route.GetMatch() {
			maps.Copy(labels, m.GetSourceLabels())
		}
	}
	return labels
}

// VirtualServices lists the VirtualServices that are exported to the namespace and bound to the gateway ("mesh" or
// "<namespace>/<name>"), oldest first.
func (s *Snapshot) VirtualServices(to, gateway string) []*VirtualService {
	return merge(s.gatewayRoutes, join("*", gateway)+sep, join(to, gateway)+sep)
}

// VirtualServicesIn lists those of VirtualServices that are in a namespace, by name; "" means all, oldest first.
func (s *Snapshot) VirtualServicesIn(to, gateway, namespace string) (found []*VirtualService) {
	if namespace == "" {
		return s.VirtualServices(to, gateway)
	}
	s.kinds[KindVirtualService].scan(namespace+"/", func(_ string, e *entry) bool {
		if v := e.value.(*VirtualService); v.Visible(to) && slices.Contains(boundTo(v), gateway) {
			found = append(found, v)
		}
		return true
	})
	return found
}

// VirtualServicesTopics names the answers of VirtualServices and VirtualServicesIn.
func VirtualServicesTopics(to, gateway string) []Topic {
	return []Topic{{SubjectGatewayRoutes, "*", gateway}, {SubjectGatewayRoutes, to, gateway}}
}

// VirtualServicesOf lists those of VirtualServices that name the host, exactly or by a wildcard that covers it: the
// most specific name first, and of one name the oldest first.
func (s *Snapshot) VirtualServicesOf(to, gateway, host string) []*VirtualService {
	var found []*VirtualService
	for h := range Covering(host) {
		found = append(found, s.hostRoutes.list(join(gateway, h)+sep)...)
	}
	return visibleTo(to, found)
}

// VirtualServicesOfTopics names the answers of VirtualServicesOf.
func VirtualServicesOfTopics(gateway, host string) []Topic {
	return []Topic{{SubjectHostRoutes, gateway, host}, {SubjectHostRoutes, gateway, "*"}}
}

// VirtualServicesTo lists the VirtualServices of sidecars that are exported to the namespace and send to the host;
// oldest first.
func (s *Snapshot) VirtualServicesTo(to, host string) []*VirtualService {
	return visibleTo(to, s.destinations.list(host+sep))
}

// VirtualServicesToTopic names the answers of VirtualServicesTo.
func VirtualServicesToTopic(host string) Topic { return Topic{SubjectDestinations, host, ""} }

// visibleTo leaves out the objects that the namespace may not use.
func visibleTo(namespace string, all []*VirtualService) []*VirtualService {
	return slices.DeleteFunc(all, func(v *VirtualService) bool { return !v.Visible(namespace) })
}

// Destinations lists the hosts that a VirtualService sends to, sorted, each once.
func Destinations(vs *networking.VirtualService) []string {
	var to []*networking.Destination
	for _, route := range vs.GetHttp() {
		if route.GetMirror() != nil {
			to = append(to, route.GetMirror())
		}
		for _, d := range route.GetRoute() {
			to = append(to, d.GetDestination())
		}
		for _, d := range route.GetMirrors() {
			to = append(to, d.GetDestination())
		}
	}
	for _, route := range vs.GetTls() {
		for _, d := range route.GetRoute() {
			to = append(to, d.GetDestination())
		}
	}
	for _, route := range vs.GetTcp() {
		for _, d := range route.GetRoute() {
			to = append(to, d.GetDestination())
		}
	}
	hosts := make([]string, len(to))
	for i, d := range to {
		hosts[i] = d.GetHost()
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
