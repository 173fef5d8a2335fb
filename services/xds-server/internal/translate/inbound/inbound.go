// Package inbound lists the ports on which a sidecar receives traffic for its application (Ports), from the Sidecar's
// ingress listeners or from the services that select the workload. Packages listener and cluster build from the same
// answer.
package inbound

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
	"fairlead.dev/services/xds-server/internal/translate/trafficpolicy"
)

const wildcard = "0.0.0.0"

// Destination is the address of the application.
type Destination struct {
	// Pipe is the path of a unix socket; the other fields are then empty.
	Pipe string
	// Address of the application; "" means the address that the client connected to.
	Address string
	// Port of the application; 0 with Address "" means the port that the client connected to.
	Port uint32
}

// Port is an inbound port.
type Port struct {
	// Number is the port that clients connect to.
	Number   uint32
	Protocol configv1.Protocol
	// Declared is the port number in the Service or Sidecar. EnvoyFilters name the virtual host by it.
	Declared uint32
	// GRPCWeb is true if some service of the port declares gRPC-Web.
	GRPCWeb bool
	// Bind is the listener's address; if BindToPort is false it is only part of a name.
	Bind       string
	BindToPort bool
	// OnLoopback is true if the listener binds the loopback address too.
	OnLoopback bool
	To         Destination
	// Hostname, ServicePort and Service are the service of the port. It decides the policies, and the protocol unless
	// the port is a Sidecar's ingress listener. They are empty if there is no service.
	Hostname    string
	ServicePort uint32
	Service     *configv1.Service
	// ConnectionPool of the Sidecar, or nil.
	ConnectionPool *networking.ConnectionPoolSettings
	// TLS settings of the Sidecar's ingress listener, or nil.
	TLS *networking.ServerTLSSettings
}

// Ports lists the inbound ports by number. If a Sidecar has ingress listeners, they are the ports. Otherwise the ports
// are the target ports of the services that select the workload, each with the oldest of its services; without
// redirected traffic there are none.
func Ports(r *input.Reader) ([]Port, error) {
	var out []Port
	if sidecar := r.Sidecar(); sidecar != nil && len(sidecar.Spec.GetIngress()) > 0 {
		for i, ingress := range sidecar.Spec.GetIngress() {
			if !protocol.IsProxied(contract.ParseProtocol(ingress.GetPort().GetProtocol())) {
				continue
			}
			port, e := fromIngress(r, ingress, sidecar.Spec.GetInboundConnectionPool())
			if e != nil {
				return nil, fmt.Errorf("Sidecar %s/%s: ingress[%d].%w", sidecar.Key.Namespace, sidecar.Key.Name, i, e)
			}
			if !slices.ContainsFunc(out, func(o Port) bool { return o.Number == port.Number && o.Bind == port.Bind }) {
				out = append(out, port)
			}
		}
	} else {
		out = fromTargets(r)
	}
	slices.SortStableFunc(out, func(a, b Port) int { return cmp.Or(cmp.Compare(a.Number, b.Number), strings.Compare(a.Bind, b.Bind)) })
	return out, nil
}

func fromIngress(r *input.Reader, in *networking.IstioIngressListener, pool *networking.ConnectionPoolSettings) (Port, error) {
	key := r.Class()
	declared := contract.ParseProtocol(in.GetPort().GetProtocol())
	if declared == configv1.Protocol_PROTOCOL_HTTP_PROXY {
		declared = configv1.Protocol_PROTOCOL_HTTP
	}
	out := Port{
		Number:         in.GetPort().GetNumber(),
		Declared:       in.GetPort().GetNumber(),
		Protocol:       declared,
		GRPCWeb:        declared == configv1.Protocol_PROTOCOL_GRPC_WEB,
		Bind:           in.GetBind(),
		BindToPort:     sidecarscope.BindsToPort(in.GetCaptureMode(), key.Interception),
		ConnectionPool: pool,
		TLS:            in.GetTls(),
	}
	if in.GetConnectionPool() != nil {
		out.ConnectionPool = in.GetConnectionPool()
	}
	switch {
	// The listener of redirected traffic has the wildcard address, so this one binds the workload's own address and
	// loopback.
	case out.BindToPort && key.Interception != class.None && (out.Bind == "" || out.Bind == wildcard) && len(r.Addresses()) > 0:
		out.Bind, out.OnLoopback = r.Addresses()[0], sidecarscope.BindsLoopbackToo(r, out.Number)
	case out.Bind == "":
		out.Bind = defaultBind(r)
	}
	to, err := destination(r, in.GetDefaultEndpoint())
	if err != nil {
		return Port{}, fmt.Errorf("defaultEndpoint: %w", err)
	}
	if to == (Destination{}) && out.BindToPort {
		// The address that the client connected to is the proxy's.
		to = Destination{Address: key.Families.Loopback(), Port: out.Number}
	}
	out.To = to
	if found := candidates(r, func(t class.Target) bool { return t.TargetPort == out.Number }); len(found) > 0 {
		out.Hostname, out.ServicePort, out.Service = found[0].target.Hostname, found[0].target.Port, found[0].service
	}
	return out, nil
}

// Pool returns the connection pool settings of a port: those of the Sidecar, or those that the service's
// DestinationRule sets for its clients, because the server has to accept what they send; nil if there are none.
func Pool(r *input.Reader, port Port) *networking.ConnectionPoolSettings {
	if port.ConnectionPool != nil || port.Hostname == "" {
		return port.ConnectionPool
	}
	rule := r.InboundDestinationRule(port.Hostname)
	if rule == nil {
		return nil
	}
	return trafficpolicy.For(rule.Spec, nil, port.ServicePort).GetConnectionPool()
}

// destination parses Istio's defaultEndpoint: 127.0.0.1:PORT, [::1]:PORT and :PORT for loopback, 0.0.0.0:PORT and
// [::]:PORT for the workload's own address, unix:///path.
func destination(r *input.Reader, endpoint string) (Destination, error) {
	if endpoint == "" {
		return Destination{}, nil
	}
	if socket, ok := strings.CutPrefix(endpoint, "unix://"); ok {
		return Destination{Pipe: socket}, nil
	}
	host, number, err := net.SplitHostPort(endpoint)
	if err != nil {
		return Destination{}, fmt.Errorf("%q: %w", endpoint, err)
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || port == 0 {
		return Destination{}, fmt.Errorf("%q: the port must be 1-65535", endpoint)
	}
	ip := net.ParseIP(host)
	switch {
	case host == "":
		host = r.Class().Families.Loopback()
	case ip == nil:
		return Destination{}, fmt.Errorf("%q: use 127.0.0.1:PORT, [::1]:PORT, 0.0.0.0:PORT, [::]:PORT or unix:///PATH", endpoint)
	case ip.IsUnspecified():
		host = ""
		if r.Class().Interception == class.None {
			host = r.Class().Families.Loopback()
			if len(r.Addresses()) > 0 {
				host = r.Addresses()[0]
			}
		}
	case !ip.IsLoopback():
		return Destination{}, fmt.Errorf("%q: only loopback or the workload's own address is possible", endpoint)
	}
	return Destination{Address: host, Port: uint32(port)}, nil
}

// candidate is a port of a service that selects the workload.
type candidate struct {
	target  class.Target
	service *configv1.Service
}

// candidates lists the wanted ports of services that select the workload, those of the oldest service first.
func candidates(r *input.Reader, wanted func(class.Target) bool) []candidate {
	var out []candidate
	for _, target := range r.Targets() {
		if !wanted(target) {
			continue
		}
		if svc := r.TargetService(target); svc != nil {
			out = append(out, candidate{target, svc})
		}
	}
	slices.SortStableFunc(out, func(a, b candidate) int {
		return a.service.GetCreationTime().AsTime().Compare(b.service.GetCreationTime().AsTime())
	})
	return out
}

// fromTargets lists the target ports of services. Without redirected traffic there are none, because the application
// itself is bound to them.
func fromTargets(r *input.Reader) []Port {
	if r.Class().Interception == class.None {
		return nil
	}
	localhost := r.Mesh().GetInboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_InboundTrafficPolicy_LOCALHOST
	pool := r.Sidecar()
	var out []Port
	for _, c := range candidates(r, func(class.Target) bool { return true }) {
		p := configv1.Protocol(c.target.Protocol)
		if !protocol.IsProxied(p) {
			continue
		}
		if i := slices.IndexFunc(out, func(o Port) bool { return o.Number == c.target.TargetPort }); i >= 0 {
			out[i].GRPCWeb = out[i].GRPCWeb || p == configv1.Protocol_PROTOCOL_GRPC_WEB
			continue
		}
		port := Port{
			Number: c.target.TargetPort, Declared: c.target.Port, Protocol: p, GRPCWeb: p == configv1.Protocol_PROTOCOL_GRPC_WEB, Bind: wildcard,
			Hostname: c.target.Hostname, ServicePort: c.target.Port, Service: c.service,
		}
		if pool != nil {
			port.ConnectionPool = pool.Spec.GetInboundConnectionPool()
		}
		if localhost {
			port.To = Destination{Address: r.Class().Families.Loopback(), Port: port.Number}
		}
		out = append(out, port)
	}
	return out
}

func defaultBind(r *input.Reader) string {
	if r.Class().Interception == class.None && len(r.Addresses()) > 0 {
		return r.Addresses()[0]
	}
	return wildcard
}
