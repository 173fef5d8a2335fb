package route

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"fairlead.dev/services/xds-server/internal/input"
)

// applyProxyHeaders applies ProxyConfig.proxyHeaders to virtual hosts.
func applyProxyHeaders(r *input.Reader, hosts ...*routev3.VirtualHost) {
	headers := r.ProxyHeaders()
	for _, host := range hosts {
		if headers.GetAttemptCount().GetDisabled().GetValue() {
			host.IncludeRequestAttemptCount = false
		}
		if headers.GetXForwardedHost().GetEnabled().GetValue() {
			forwardHost(host)
		}
	}
}

// forwardHost adds x-forwarded-host to the requests of routes that rewrite the host.
func forwardHost(host *routev3.VirtualHost) {
	for _, route := range host.GetRoutes() {
		action := route.GetRoute()
		if action == nil {
			continue
		}
		rewrites := action.GetHostRewriteSpecifier() != nil
		for _, w := range action.GetWeightedClusters().GetClusters() {
			rewrites = rewrites || w.GetHostRewriteSpecifier() != nil
		}
		action.AppendXForwardedHost = rewrites
	}
}
