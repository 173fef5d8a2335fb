package mesh

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"
)

// VirtualServicesTo lists the VirtualServices of sidecars, exported to the namespace, that send to the host; oldest first.
func (s *Snapshot) VirtualServicesTo(to, host string) []*VirtualService {
	var found []*VirtualService
	s.destinations.scan(host+sep, func(_ string, v *VirtualService) bool {
		if v.Visible(to) {
			found = append(found, v)
		}
		return true
	})
	return found
}

// VirtualServicesToTopic names the answers of VirtualServicesTo.
func VirtualServicesToTopic(host string) Topic { return Topic{SubjectDestinations, host, ""} }

func (w *writer) postDestinations(v *VirtualService, add bool) {
	for _, host := range Destinations(v.Spec) {
		put(w.state.destinations, add, join(host, age(v.Created), v.Key.Namespace, v.Key.Name), v)
		w.touch(SubjectDestinations, host, "")
	}
}

// Destinations lists the hosts that a VirtualService sends to, sorted, each once.
func Destinations(vs *networking.VirtualService) []string {
	var out []string
	for _, route := range vs.GetHttp() {
		for _, to := range route.GetRoute() {
			out = append(out, to.GetDestination().GetHost())
		}
		if route.GetMirror() != nil {
			out = append(out, route.GetMirror().GetHost())
		}
		for _, to := range route.GetMirrors() {
			out = append(out, to.GetDestination().GetHost())
		}
	}
	for _, route := range vs.GetTls() {
		for _, to := range route.GetRoute() {
			out = append(out, to.GetDestination().GetHost())
		}
	}
	for _, route := range vs.GetTcp() {
		for _, to := range route.GetRoute() {
			out = append(out, to.GetDestination().GetHost())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
