package gatewayapi

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// kindHostname is Istio's kind of a backend that names a host of a ServiceEntry.
const kindHostname = "Hostname"

// putEntry takes over a ServiceEntry.
func (s *State) putEntry(k object.Key, old, o *object.Object) {
	if !put[networking.ServiceEntry](s, k, o) {
		return
	}
	s.graph.touch(k)
	for _, object := range []*object.Object{old, o} {
		if object != nil {
			for _, host := range entryHosts(object) {
				index(s.entries, Name{Name: host}, nameOf(k), object, object == o)
				s.graph.touch(hostKey(host))
			}
		}
	}
}

// entryHosts are the hosts of a ServiceEntry in lower case.
func entryHosts(o *object.Object) []string {
	var out []string
	for _, h := range o.Body.(*networking.ServiceEntry).GetHosts() {
		out = append(out, strings.ToLower(h))
	}
	return out
}

// hasPort reports whether a ServiceEntry has a port.
func hasPort(o *object.Object, number gatewayv1.PortNumber) bool {
	for _, p := range o.Body.(*networking.ServiceEntry).GetPorts() {
		if p.GetNumber() == uint32(number) { //nolint:gosec // a port
			return true
		}
	}
	return false
}

// toEntry attaches a route to the hosts of a ServiceEntry, as Istio does, for clients in the mesh.
func (l *lookup) toEntry(a *attachment, o *object.Object, n Name) {
	l.read(entryKey(n))
	entry := l.objects[entryKey(n)]
	switch {
	case entry == nil:
		a.refuse(gatewayv1.RouteReasonNoMatchingParent, "there is no ServiceEntry %s", n)
		return
	case o.Key.Kind == UDPRoute:
		a.refuse(gatewayv1.RouteReasonUnsupportedValue, "a UDPRoute cannot be attached to a ServiceEntry")
		return
	case a.ref.Port != nil && !hasPort(entry, *a.ref.Port):
		a.refuse(gatewayv1.RouteReasonNoMatchingParent, "ServiceEntry %s has no port %d", n, *a.ref.Port)
		return
	}
	for _, host := range entryHosts(entry) {
		out := &configv1.ServiceAttachment{Hostname: host}
		if n.Namespace != o.Key.Namespace {
			out.ClientNamespace = o.Key.Namespace
		}
		if a.ref.Port != nil {
			out.Port = uint32(*a.ref.Port) //nolint:gosec // a port
		}
		a.services = append(a.services, out)
	}
}

// entryBackend resolves a backend that names a host of a ServiceEntry. A host of a Service is not found: for that there
// is the kind Service, which needs a grant in another namespace.
func (b *backends) entryBackend(ref *gatewayv1.BackendObjectReference) *finding {
	host := strings.ToLower(string(ref.Name))
	b.read(hostKey(host))
	if b.route.Key.Kind == UDPRoute {
		return &finding{string(gatewayv1.RouteReasonUnsupportedProtocol), "a ServiceEntry is no backend of a UDPRoute"}
	}
	for _, entry := range b.entries[Name{Name: host}] {
		if ref.Port != nil && hasPort(entry, *ref.Port) {
			return nil
		}
	}
	return &finding{string(gatewayv1.RouteReasonBackendNotFound),
		"there is no ServiceEntry with the host " + host + " and the port of the backendRef"}
}
