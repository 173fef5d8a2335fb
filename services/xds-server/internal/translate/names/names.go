// Package names builds and parses the names of generated xDS resources. They are Istio's, because users read them in dashboards, refer to
// them in EnvoyFilters and keep alerts on them.
package names

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Clusters, listeners and route configurations that exist once per proxy.
const (
	BlackHoleCluster          = "BlackHoleCluster"
	PassthroughCluster        = "PassthroughCluster"
	InboundPassthroughCluster = "InboundPassthroughCluster"

	VirtualOutbound = "virtualOutbound"
	VirtualInbound  = "virtualInbound"

	// HTTPProxyRoute is the route configuration of the mesh's explicit forward proxy port (MeshConfig.proxyHttpPort).
	HTTPProxyRoute = "http_proxy"

	gatewayHTTPPrefix  = "http."
	gatewayHTTPSPrefix = "https."
)

// Direction says on which side of the proxy a cluster lies.
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
	// Passthrough is true for the cluster that a gateway passes mesh TLS through to. It is named like the server name of that TLS.
	Passthrough bool
}

// String returns the name: "outbound|80|v1|reviews.default.svc.cluster.local".
func (c Cluster) String() string {
	if c.Passthrough {
		return SNI(c.Port, c.Subset, c.Hostname)
	}
	return string(c.Direction) + "|" + strconv.FormatUint(uint64(c.Port), 10) + "|" + c.Subset + "|" + c.Hostname
}

// Outbound names the cluster of a service port, or of one of its subsets.
func Outbound(port uint32, subset, hostname string) string {
	return Cluster{Direction: DirectionOutbound, Port: port, Subset: subset, Hostname: hostname}.String()
}

// Inbound names the cluster that leads to the application's own port.
func Inbound(port uint32) string {
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

// Clusters that a sidecar on demand makes up for connections that are not HTTP.
const (
	onDemandTCP = "ondemand|tcp|"
	onDemandTLS = "ondemand|tls|"

	// OnDemandTCPFormat and OnDemandTLSFormat are what OnDemand.String returns, in the format language of the proxy's access logs, for the
	// connection at hand.
	OnDemandTCPFormat = onDemandTCP + "%DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT%|%DOWNSTREAM_LOCAL_PORT%"
	OnDemandTLSFormat = onDemandTLS + "%DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT%|%DOWNSTREAM_LOCAL_PORT%|%REQUESTED_SERVER_NAME%"

	// noValue is what the proxy writes for a value that a connection does not have.
	noValue = "-"
)

// OnDemand is the cluster of connections to an address: "ondemand|tcp|10.0.0.1|3306", or with the server name that the client's TLS
// handshake asks for "ondemand|tls|10.0.0.1|443|example.com".
type OnDemand struct {
	Address string
	Port    uint32
	TLS     bool
	// ServerName is in lower case; empty if the handshake has none.
	ServerName string
}

// String returns the name.
func (o OnDemand) String() string {
	place := o.Address + "|" + strconv.FormatUint(uint64(o.Port), 10)
	if !o.TLS {
		return onDemandTCP + place
	}
	if o.ServerName == "" {
		return onDemandTLS + place + "|" + noValue
	}
	return onDemandTLS + place + "|" + o.ServerName
}

// ParseOnDemand is the inverse of String; ok is false for every other name.
func ParseOnDemand(name string) (o OnDemand, ok bool) {
	rest, ok := strings.CutPrefix(name, onDemandTCP)
	if !ok {
		if rest, o.TLS = strings.CutPrefix(name, onDemandTLS); !o.TLS {
			return OnDemand{}, false
		}
	}
	parts := strings.SplitN(rest, "|", 3)
	if o.TLS != (len(parts) == 3) || len(parts) < 2 {
		return OnDemand{}, false
	}
	if o.Port, ok = parsePort(parts[1]); !ok || net.ParseIP(parts[0]) == nil {
		return OnDemand{}, false
	}
	o.Address = parts[0]
	if o.TLS && parts[2] != noValue {
		o.ServerName = strings.ToLower(parts[2])
	}
	return o, true
}

// SNIPrefix begins what SNI returns.
const SNIPrefix = "outbound_."

// SNI is what a sidecar sends in its TLS handshake with another: "outbound_.80_.v1_.reviews.default.svc.cluster.local". A gateway that passes
// mesh TLS through routes by it.
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
	return Cluster{Direction: DirectionOutbound, Port: port, Subset: parts[1], Hostname: parts[2], Passthrough: true}, true
}

// OutboundRoute names the route configuration of a sidecar's outbound HTTP port.
func OutboundRoute(port uint32) string { return strconv.FormatUint(uint64(port), 10) }

// BoundOutboundRoute names the route configuration of a Sidecar egress listener whose port number another egress listener uses too, on
// another address.
func BoundOutboundRoute(bind string, port uint32) string {
	return bind + "_" + OutboundRoute(port)
}

// ParseOutboundRoute is the inverse of OutboundRoute and BoundOutboundRoute; bind is empty for the former.
func ParseOutboundRoute(name string) (bind string, port uint32, ok bool) {
	if i := strings.LastIndexByte(name, '_'); i >= 0 {
		bind, name = name[:i], name[i+1:]
	}
	port, ok = parsePort(name)
	return bind, port, ok
}

// SniffedRoute names the route configuration of one service's port whose protocol is detected per connection.
func SniffedRoute(hostname string, port uint32) string {
	return hostname + ":" + OutboundRoute(port)
}

// ParseSniffedRoute is the inverse of SniffedRoute.
func ParseSniffedRoute(name string) (hostname string, port uint32, ok bool) {
	i := strings.LastIndexByte(name, ':')
	if i <= 0 {
		return "", 0, false
	}
	port, ok = parsePort(name[i+1:])
	return name[:i], port, ok
}

// OutboundVirtualHost names a virtual host that is a resource of its own: "80/reviews.default.svc.cluster.local:80".
func OutboundVirtualHost(route, authority string) string { return route + "/" + authority }

// ParseOutboundVirtualHost is the inverse of OutboundVirtualHost.
func ParseOutboundVirtualHost(name string) (route, authority string, ok bool) {
	i := strings.LastIndexByte(name, '/')
	if i <= 0 {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}

// GatewayHTTP names the route configuration of all plain HTTP servers that share a gateway's port: "http.8080", and "http.8080.10.0.0.1" where
// they ask for an address of their own.
func GatewayHTTP(port uint32, bind string) string {
	return gatewayHTTPPrefix + OutboundRoute(port) + suffixed(bind)
}

func suffixed(bind string) string {
	if bind == "" {
		return ""
	}
	return "." + bind
}

// ParseGatewayHTTP returns the port of a name that GatewayHTTP built.
func ParseGatewayHTTP(name string) (port uint32, ok bool) {
	number, found := strings.CutPrefix(name, gatewayHTTPPrefix)
	if !found {
		return 0, false
	}
	number, _, _ = strings.Cut(number, ".")
	return parsePort(number)
}

// GatewayHTTPS names the route configuration of one TLS terminating server: "https.443.https.shop.default". Every such server has its own,
// so that a connection made with one server's certificate never reaches another server's routes.
func GatewayHTTPS(port uint32, serverPortName, gateway, namespace, bind string) string {
	return fmt.Sprintf("%s%d.%s.%s.%s%s", gatewayHTTPSPrefix, port, serverPortName, gateway, namespace, suffixed(bind))
}

// ParseGatewayHTTPS returns the port of a name that GatewayHTTPS built. The server is found by building the names of the port's servers
// and comparing, because the parts may hold dots.
func ParseGatewayHTTPS(name string) (port uint32, ok bool) {
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

// Listener names a listener by where it listens: "0.0.0.0_9080".
func Listener(address string, port uint32) string {
	return address + "_" + strconv.FormatUint(uint64(port), 10)
}

// BoundListener names a listener that is bound to its port although the proxy's traffic is redirected: not like one that is not bound, for Envoy does
// not survive that a listener of one name becomes bound.
func BoundListener(address string, port uint32) string { return "bound|" + Listener(address, port) }

// ParseListener is the inverse of Listener for listeners on an IP address.
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

// InboundVirtualHost names the single virtual host of an inbound port, by the number that it was declared with.
func InboundVirtualHost(port uint32) string {
	return fmt.Sprintf("inbound|http|%d", port)
}

// HostPort joins a host and a port the way they appear in :authority: IPv6 literals in brackets.
func HostPort(host string, port uint32) string {
	return Authority(host) + ":" + strconv.FormatUint(uint64(port), 10)
}

// Authority is host as it appears in :authority without a port: IPv6 literals in brackets.
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
