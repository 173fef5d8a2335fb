package proxyless

import (
	"strings"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/route"
)

// serverTarget is the host and port of a gRPC server target "xds:///<host>:<port>".
type serverTarget struct {
	hostname string
	port     uint32
}

// resolveTarget returns the target for a channel to "xds:///<name>": a port of a service, or of a host of
// VirtualServices. It looks up the host as it is written, and then as a resolver in the client's namespace would
// complete it.
func resolveTarget(r *input.Reader, name string) (serverTarget, bool) {
	host, port, ok := resourcename.ParseSniffedRouteConfig(name)
	if !ok {
		return serverTarget{}, false
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if exists(r, host, port) {
		return serverTarget{host, port}, true
	}
	if full, ok := route.CompleteHostname(r, host); ok && exists(r, full, port) {
		return serverTarget{full, port}, true
	}
	return serverTarget{}, false
}

func exists(r *input.Reader, hostname string, port uint32) bool {
	if svc := r.FollowExternalName(hostname); svc != nil {
		return discovery.Port(svc, port) != nil
	}
	// If routes cannot be built the host still exists: the error is reported for its route configuration.
	routes, err := route.RoutesToHost(r, hostname, port)
	return err != nil || len(routes) > 0
}
