package input

import (
	"slices"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// GatewayListeners lists the listeners of the Gateway API that the class serves: those of the oldest Gateway or
// ListenerSet first. It is nil for sidecars.
func (r *Reader) GatewayListeners() []*mesh.GatewayListeners {
	return derive(r, mesh.Topic{Subject: subjectGatewayListeners}, func(r *Reader) []*mesh.GatewayListeners {
		if r.Class().Type != class.Router {
			return nil
		}
		r.record(mesh.GatewayListenersTopics(r.Namespace(), r.Labels())...)
		found := r.view.State().GatewayListeners(r.Namespace(), r.Labels())
		for _, g := range found {
			r.trace.add(g.Key, g.Source)
		}
		return found
	}, slices.Equal)
}

// AttachedDomains lists, sorted, the domains of the routes of a listener: "" for any.
func (r *Reader) AttachedDomains(listener string) []string {
	return derive(r, mesh.Topic{Subject: subjectAttachedDomains, A: listener}, func(r *Reader) []string {
		r.record(mesh.AttachedDomainsTopic(listener))
		return r.view.State().AttachedDomains(listener)
	}, slices.Equal)
}

// AttachedRoutes lists the routes of a listener for exactly a domain of AttachedDomains, in no particular order.
func (r *Reader) AttachedRoutes(listener, domain string) []*mesh.HostRoute {
	r.record(mesh.AttachedRoutesTopic(listener, domain))
	found := r.view.State().AttachedRoutes(listener, domain)
	for _, route := range found {
		r.trace.add(route.Key, route.Source)
	}
	return found
}

// ServiceRoutes lists the routes of some kinds (mesh.KindHTTPRoute and others) that are attached to a port of a
// service, for the class as a client, in no particular order. Routes of the client's own namespace replace those for
// all.
func (r *Reader) ServiceRoutes(hostname string, port uint32, kinds ...string) []*mesh.AttachedRoute {
	r.record(mesh.ServiceRoutesTopic(hostname))
	found := r.view.State().ServiceRoutes(hostname, port, r.client(), kinds...)
	for _, route := range found {
		r.trace.add(route.Key, route.Source)
	}
	return found
}

// RoutesPort reports whether an HTTPRoute or GRPCRoute is attached to a port number of any service, for the class as a
// client. One that is attached to all ports of its service counts for every number.
func (r *Reader) RoutesPort(port uint32) bool {
	r.record(mesh.RoutedPortTopics(port)...)
	return r.view.State().RoutesPort(port, r.client())
}

// BackendTLS returns the BackendTLSPolicy for a port of a service; nil if there is none. Only gateways follow it.
func (r *Reader) BackendTLS(hostname string, port uint32) *mesh.BackendTLS {
	if r.Class().Type != class.Router {
		return nil
	}
	r.record(mesh.BackendTLSTopic(hostname))
	found := r.view.State().BackendTLS(hostname, port)
	if found != nil {
		r.trace.add(found.Key, found.Source)
	}
	return found
}

// IsGRPCBackend reports whether the class is a gateway's and a GRPCRoute sends to the port of the service, whatever
// gateway has taken the route.
func (r *Reader) IsGRPCBackend(hostname string, port uint32) bool {
	if r.Class().Type != class.Router {
		return false
	}
	r.record(mesh.GRPCBackendTopic(hostname))
	return r.view.State().IsGRPCBackend(hostname, port)
}

// IsUDPBackend reports whether the class is a gateway's and a UDPRoute sends to the service, whatever gateway has taken
// the route.
func (r *Reader) IsUDPBackend(hostname string) bool {
	if r.Class().Type != class.Router {
		return false
	}
	r.record(mesh.UDPBackendTopic(hostname))
	return r.view.State().IsUDPBackend(hostname)
}
