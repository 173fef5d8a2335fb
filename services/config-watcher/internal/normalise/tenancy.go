package normalise

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/normalise/virtualservice"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Tenancy limits what objects of one namespace do to workloads of others (docs/guide/multi-tenant.md). The zero value
// limits nothing, as Istio does. The root namespace is not limited.
type Tenancy struct {
	Enabled bool
	// Domain is the DNS suffix of service names.
	Domain string
}

// Confined returns why an object has effects in its own namespace alone, whatever its exportTo; "" if it may have
// others. An object without an origin of its own, such as that of an Ingress, is judged as any other.
func (t Tenancy) Confined(o *object.Object, root string) string {
	if !t.Enabled || o.Key.Namespace == root {
		return ""
	}
	switch b := o.Body.(type) {
	case *networking.VirtualService:
		if bindsMesh(b) {
			return t.foreign(b.Hosts, o.Key.Namespace)
		}
	case *networking.DestinationRule:
		return t.foreign([]string{b.Host}, o.Key.Namespace)
	case *networking.ServiceEntry:
		if len(b.Addresses) > 0 {
			return "it has addresses"
		}
		for _, p := range b.Ports {
			if takesPort(entryProtocol(p)) {
				return fmt.Sprintf("without addresses its port %d takes every connection to that port unless its protocol is HTTP or TLS", p.Number)
			}
		}
		return t.foreign(b.Hosts, o.Key.Namespace)
	}
	return ""
}

// takesPort reports whether a port without addresses is found by its number alone, and not by a host.
func takesPort(p configv1.Protocol) bool {
	return !contract.IsHTTP(p) && !contract.IsTLS(p) && p != configv1.Protocol_PROTOCOL_UDP
}

// foreign names a host that is no Service's of the namespace.
func (t Tenancy) foreign(hosts []string, namespace string) string {
	for _, h := range hosts {
		if !strings.HasSuffix(Host(h, namespace, t.Domain), "."+namespace+".svc."+t.Domain) {
			return "the host " + h + " is not one of its namespace"
		}
	}
	return ""
}

// bindsMesh reports whether a VirtualService routes requests of sidecars.
func bindsMesh(vs *networking.VirtualService) bool {
	if len(vs.Hosts) == 0 {
		return false // a delegate
	}
	if len(vs.Gateways) == 0 || slices.Contains(vs.Gateways, contract.MeshGateway) {
		return true
	}
	found := false
	virtualservice.EachMatch(vs, func(m virtualservice.SourceMatch) {
		found = found || slices.Contains(m.GetGateways(), contract.MeshGateway)
	})
	return found
}

// gatewayHost adds to a server's host the namespace whose VirtualServices may bind to it, where none is said: the
// Gateway's own.
func (t Tenancy) gatewayHost(o *object.Object, host string) string {
	if t.Enabled && o.Origin == nil && !strings.Contains(host, "/") {
		return "./" + host
	}
	return host
}

// gatewayExportedTo are the namespaces whose gateways a Gateway applies to.
func (t Tenancy) gatewayExportedTo(namespace, root string) []string {
	if t.Enabled && namespace != root {
		return []string{namespace}
	}
	return []string{exportedToAll}
}
