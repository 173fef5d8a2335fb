// Package resourcename builds and parses the names of xDS resources: clusters, listeners, route configurations, virtual
// hosts, and secrets of credentials. They are Istio's names, because users read them in dashboards, use them in
// EnvoyFilters and write alerts about them.
package resourcename

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Names of clusters, listeners and route configurations that exist once per proxy.
const (
	BlackHoleCluster          = "BlackHoleCluster"
	PassthroughCluster        = "PassthroughCluster"
	InboundPassthroughCluster = "InboundPassthroughCluster"

	// UnresolvedCluster stands for a backend of a route of the Gateway API that cannot be resolved. No proxy has a
	// cluster of this name.
	UnresolvedCluster = "unresolved"

	VirtualOutbound = "virtualOutbound"
	VirtualInbound  = "virtualInbound"

	// HTTPProxyRouteConfig is the route configuration of the HTTP forward proxy (MeshConfig.proxyHttpPort).
	HTTPProxyRouteConfig = "http_proxy"

	gatewayHTTPPrefix  = "http."
	gatewayHTTPSPrefix = "https."
)

// Direction is inbound (to the proxy's own application) or outbound.
type Direction string

// Directions of a cluster.
const (
	DirectionOutbound Direction = "outbound"
	DirectionInbound  Direction = "inbound"
)

// Cluster is a parsed cluster name.
type Cluster struct {
	Direction Direction
	Port      uint32
	Subset    string
	Hostname  string
	// AutoPassthrough is true for a cluster of a gateway's AUTO_PASSTHROUGH server. Its name is the SNI of the
	// connections.
	AutoPassthrough bool
}

// String returns the name, such as "outbound|80|v1|reviews.default.svc.cluster.local".
func (c Cluster) String() string {
	if c.AutoPassthrough {
		return SNI(c.Port, c.Subset, c.Hostname)
	}
	return string(c.Direction) + "|" + strconv.FormatUint(uint64(c.Port), 10) + "|" + c.Subset + "|" + c.Hostname
}

// OutboundCluster names the cluster of a service port, or of one of its subsets.
func OutboundCluster(port uint32, subset, hostname string) string {
	return Cluster{Direction: DirectionOutbound, Port: port, Subset: subset, Hostname: hostname}.String()
}

// InboundCluster names the cluster of a port of the proxy's application.
func InboundCluster(port uint32) string {
	return Cluster{Direction: DirectionInbound, Port: port}.String()
}

// ParseCluster is the inverse of String; ok is false for every other name.
func ParseCluster(name string) (c Cluster, ok bool) {
	if strings.HasPrefix(name, SNIPrefix) {
		return parseSNI(name)
	}
	parts := strings.Split(name, "|")
	if len(parts) != 4 {
		return Cluster{}, false
	}
	direction := Direction(parts[0])
	if direction != DirectionOutbound && direction != DirectionInbound {
		return Cluster{}, false
	}
	port, ok := parsePort(parts[1])
	if !ok {
		return Cluster{}, false
	}
	return Cluster{Direction: direction, Port: port, Subset: parts[2], Hostname: parts[3]}, true
}

// Clusters that an on-demand sidecar requests for a connection that is not HTTP.
const (
	onDemandTCP = "ondemand|tcp|"
	onDemandTLS = "ondemand|tls|"

	// OnDemandTCPFormat and OnDemandTLSFormat make the name that OnDemandCluster.String returns, with the command
	// operators of Envoy's access log format.
	OnDemandTCPFormat = onDemandTCP + "%DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT%|%DOWNSTREAM_LOCAL_PORT%"
	OnDemandTLSFormat = onDemandTLS + "%DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT%|%DOWNSTREAM_LOCAL_PORT%|%REQUESTED_SERVER_NAME%"

	// noValue is what Envoy writes for a value that a connection does not have.
	noValue = "-"
)

// OnDemandCluster is the cluster of connections to an address: "ondemand|tcp|10.0.0.1|3306", or
// "ondemand|tls|10.0.0.1|443|example.com" with the SNI of the TLS handshake.
type OnDemandCluster struct {
	Address string
	Port    uint32
	TLS     bool
	// ServerName is in lower case; "" if the handshake has none.
	ServerName string
}

// String returns the name of the cluster.
func (o OnDemandCluster) String() string {
	place := o.Address + "|" + strconv.FormatUint(uint64(o.Port), 10)
	if !o.TLS {
		return onDemandTCP + place
	}
	if o.ServerName == "" {
		return onDemandTLS + place + "|" + noValue
	}
	return onDemandTLS + place + "|" + o.ServerName
}

// ParseOnDemandCluster is the inverse of String; ok is false for every other name.
func ParseOnDemandCluster(name string) (o OnDemandCluster, ok bool) {
	rest, ok := strings.CutPrefix(name, onDemandTCP)
	if !ok {
		if rest, o.TLS = strings.CutPrefix(name, onDemandTLS); !o.TLS {
			return OnDemandCluster{}, false
		}
	}
	parts := strings.SplitN(rest, "|", 3)
	if o.TLS != (len(parts) == 3) || len(parts) < 2 {
		return OnDemandCluster{}, false
	}
	if o.Port, ok = parsePort(parts[1]); !ok || net.ParseIP(parts[0]) == nil {
		return OnDemandCluster{}, false
	}
	o.Address = parts[0]
	if o.TLS && parts[2] != noValue {
		o.ServerName = strings.ToLower(parts[2])
	}
	return o, true
}

// SNIPrefix is the prefix of SNI's results.
const SNIPrefix = "outbound_."

// SNI is the server name in the TLS handshake between two sidecars:
// "outbound_.80_.v1_.reviews.default.svc.cluster.local". A gateway's AUTO_PASSTHROUGH server routes by it.
func SNI(port uint32, subset, hostname string) string {
	return fmt.Sprintf(SNIPrefix+"%d_.%s_.%s", port, subset, hostname)
}

// parseSNI is the inverse of SNI.
func parseSNI(name string) (c Cluster, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(name, SNIPrefix), "_.", 3)
	if len(parts) != 3 || parts[2] == "" {
		return Cluster{}, false
	}
	port, ok := parsePort(parts[0])
	if !ok {
		return Cluster{}, false
	}
	return Cluster{Direction: DirectionOutbound, Port: port, Subset: parts[1], Hostname: parts[2], AutoPassthrough: true}, true
}

// OutboundRouteConfig names the route configuration of a sidecar's outbound HTTP port.
func OutboundRouteConfig(port uint32) string { return strconv.FormatUint(uint64(port), 10) }

// BoundOutboundRouteConfig names the route configuration of a Sidecar egress listener whose port number is used by
// another egress listener with another address.
func BoundOutboundRouteConfig(bind string, port uint32) string {
	return bind + "_" + OutboundRouteConfig(port)
}

// ParseOutboundRouteConfig is the inverse of OutboundRouteConfig, with bind "", and of BoundOutboundRouteConfig.
func ParseOutboundRouteConfig(name string) (bind string, port uint32, ok bool) {
	if i := strings.LastIndexByte(name, '_'); i >= 0 {
		bind, name = name[:i], name[i+1:]
	}
	port, ok = parsePort(name)
	return bind, port, ok
}

// SniffedRouteConfig names the route configuration of a service port whose protocol is detected for each connection.
func SniffedRouteConfig(hostname string, port uint32) string {
	return hostname + ":" + OutboundRouteConfig(port)
}

// ParseSniffedRouteConfig is the inverse of SniffedRouteConfig.
func ParseSniffedRouteConfig(name string) (hostname string, port uint32, ok bool) {
	i := strings.LastIndexByte(name, ':')
	if i <= 0 {
		return "", 0, false
	}
	port, ok = parsePort(name[i+1:])
	return name[:i], port, ok
}

// OutboundVirtualHost names a virtual host that is delivered by VHDS: "80/reviews.default.svc.cluster.local:80".
func OutboundVirtualHost(route, authority string) string { return route + "/" + authority }

// ParseOutboundVirtualHost is the inverse of OutboundVirtualHost.
func ParseOutboundVirtualHost(name string) (route, authority string, ok bool) {
	i := strings.LastIndexByte(name, '/')
	if i <= 0 {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}

// GatewayHTTPRouteConfig names the route configuration of all plain HTTP servers that share a gateway's port:
// "http.8080", or "http.8080.10.0.0.1" for servers with a bind address.
func GatewayHTTPRouteConfig(port uint32, bind string) string {
	return gatewayHTTPPrefix + OutboundRouteConfig(port) + suffixed(bind)
}

func suffixed(bind string) string {
	if bind == "" {
		return ""
	}
	return "." + bind
}

// ParseGatewayHTTPRouteConfig returns the port of a name that GatewayHTTPRouteConfig returned.
func ParseGatewayHTTPRouteConfig(name string) (port uint32, ok bool) {
	number, found := strings.CutPrefix(name, gatewayHTTPPrefix)
	if !found {
		return 0, false
	}
	number, _, _ = strings.Cut(number, ".")
	return parsePort(number)
}

// GatewayHTTPSRouteConfig names the route configuration of one server that terminates TLS:
// "https.443.https.shop.default". Each such server has its own, so a connection made with one server's certificate
// never reaches the routes of another.
func GatewayHTTPSRouteConfig(port uint32, serverPortName, gateway, namespace, bind string) string {
	return fmt.Sprintf("%s%d.%s.%s.%s%s", gatewayHTTPSPrefix, port, serverPortName, gateway, namespace, suffixed(bind))
}

// ParseGatewayHTTPSRouteConfig returns the port of a name that GatewayHTTPSRouteConfig returned. It cannot return the
// server, because the parts may contain dots: callers compare with the names of the port's servers.
func ParseGatewayHTTPSRouteConfig(name string) (port uint32, ok bool) {
	rest, found := strings.CutPrefix(name, gatewayHTTPSPrefix)
	if !found {
		return 0, false
	}
	number, _, found := strings.Cut(rest, ".")
	if !found {
		return 0, false
	}
	return parsePort(number)
}

// ListenerRouteConfig names the route configuration of an HTTPS listener of the Gateway API, which is named as for
// mesh.GatewayListeners.Reference: "https.443.gateways~shop~https", or "https.443.gateways~shop~team~extra~https" for
// the listener "https" of the ListenerSet team/extra.
func ListenerRouteConfig(port uint32, listener string) string {
	return gatewayHTTPSPrefix + OutboundRouteConfig(port) + "." + strings.ReplaceAll(listener, "/", "~")
}

// UDPListener names a listener of UDP, beside which there may be one of TCP at the same port.
func UDPListener(address string, port uint32) string { return "udp|" + Listener(address, port) }

// Listener names a listener by its address and port: "0.0.0.0_9080".
func Listener(address string, port uint32) string {
	return address + "_" + strconv.FormatUint(uint64(port), 10)
}

// BoundListener names a listener that binds its port although the proxy's traffic is redirected. The name differs from
// that of a listener which binds none, because Envoy crashes when a listener of one name becomes bound.
func BoundListener(address string, port uint32) string { return "bound|" + Listener(address, port) }

// ParseListener is the inverse of Listener for IP addresses.
func ParseListener(name string) (address string, port uint32, ok bool) {
	i := strings.LastIndexByte(name, '_')
	if i <= 0 {
		return "", 0, false
	}
	port, ok = parsePort(name[i+1:])
	if !ok || net.ParseIP(name[:i]) == nil {
		return "", 0, false
	}
	return name[:i], port, true
}

// InboundVirtualHost names the virtual host of an inbound port by the port number of the Service or Sidecar.
func InboundVirtualHost(port uint32) string {
	return fmt.Sprintf("inbound|http|%d", port)
}

// HostPort joins a host and a port as in :authority, with IPv6 literals in brackets.
func HostPort(host string, port uint32) string {
	return Authority(host) + ":" + strconv.FormatUint(uint64(port), 10)
}

// Authority returns host as in :authority without a port, with IPv6 literals in brackets.
func Authority(host string) string {
	if strings.IndexByte(host, ':') >= 0 && !strings.HasPrefix(host, "[") {
		return "[" + host + "]"
	}
	return host
}

func parsePort(s string) (uint32, bool) {
	port, err := strconv.ParseUint(s, 10, 16)
	if err != nil || port == 0 || s[0] == '0' || s[0] == '+' {
		return 0, false
	}
	return uint32(port), true
}
