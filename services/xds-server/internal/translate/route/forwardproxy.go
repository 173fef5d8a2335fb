package route

import (
	"net/http"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

// forwardProxy builds the virtual hosts of a listener whose requests carry the port in their host: all services with
// all their HTTP ports, and port 80 of the VirtualServices' hosts without a service.
func forwardProxy(r *input.Reader, listener sidecarscope.EgressListener) ([]*routev3.VirtualHost, error) {
	var out []candidate
	services := listener.Services(r)
	known := map[string]bool{}
	for _, svc := range services {
		known[svc.GetHostname()] = true
		ports := httpPorts(svc, allPorts)
		for _, port := range ports {
			host, err := newBuilder(r, port.GetNumber(), contract.MeshGateway).service(r, svc, port)
			if err != nil {
				return nil, err
			}
			own, others := ownDomains(svc.GetHostname()), otherDomains(r, svc.GetHostname(), svc)
			bare := slices.Concat(own, others)
			own, others = withPort(own, port.GetNumber()), withPort(others, port.GetNumber())
			if port == defaultPort(ports) {
				others = append(others, bare...)
			}
			out = append(out, candidate{host: host, own: own, others: others})
		}
	}
	c := newRouteConfig(r, listener)
	c.port = defaultHTTPPort
	for _, vs := range r.VirtualServices(contract.MeshGateway) {
		for _, hostname := range vs.Spec.GetHosts() {
			if known[hostname] || !isCanonical(hostname) || len(c.virtualServicesFor(hostname)) == 0 {
				continue
			}
			known[hostname] = true
			host, err := c.virtualHostWithoutService(hostname)
			if err != nil {
				return nil, err
			}
			own, short := ownDomains(hostname), otherDomains(r, hostname, nil)
			others := slices.Concat(own, short, withPort(short, defaultHTTPPort))
			out = append(out, candidate{host: host, own: withPort(own, defaultHTTPPort), others: others})
		}
	}
	return assignDomains(out), nil
}

// unknownHostText is the body of answers to requests through a forward proxy for hosts that the mesh does not know.
const unknownHostText = "The mesh has no such host, and a request through a forward proxy has no address of its own to pass on to: add a " +
	"ServiceEntry for the host, or call it without the proxy.\n"

// unknownAtForwardProxy lists the routes of a forward proxy for unknown hosts where these are allowed. The cluster for
// unknown destinations would connect to where the client has connected: the proxy itself.
func unknownAtForwardProxy() []*routev3.Route {
	all := directResponseRoute("allow_any", http.StatusServiceUnavailable)
	all.GetDirectResponse().Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: unknownHostText}}
	return []*routev3.Route{tunnel(all), all}
}

// defaultPort is the port of requests that name none: 80, or else the first HTTP port of the service.
func defaultPort(ports []*configv1.ServicePort) *configv1.ServicePort {
	for _, port := range ports {
		if port.GetNumber() == defaultHTTPPort {
			return port
		}
	}
	return ports[0]
}
