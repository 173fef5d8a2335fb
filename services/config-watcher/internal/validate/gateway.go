package validate

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
)

// checkGateway follows https://istio.io/latest/docs/reference/config/networking/gateway/.
func checkGateway(c *checker, _ *object.Object, g *networking.Gateway) {
	if len(g.Servers) == 0 {
		c.fail("spec.servers", nil, "missing", "add a server with port and hosts")
	}
	c.workloadLabels("spec.selector", g.Selector)
	names := map[string]int{}
	ports := map[string]int{}
	for i, s := range g.Servers {
		at := index("spec.servers", i)
		c.server(at, s)
		if len(g.Selector) == 0 && usesCredential(s.GetTls()) {
			c.remark(at+".tls", "credentials are given to workloads that a Gateway with a selector selects: this one selects nobody in particular",
				"set spec.selector to the labels of the gateway's Pods")
		}
		if s.Name != "" {
			if first, dup := names[s.Name]; dup {
				c.fail(at+".name", s.Name, fmt.Sprintf("same name as servers[%d]", first), "rename one of them")
			}
			names[s.Name] = i
		}
		if s.Port.GetName() != "" {
			if first, dup := ports[s.Port.Name]; dup {
				c.fail(at+".port.name", s.Port.Name, fmt.Sprintf("same port name as servers[%d]", first), "port names are unique within a gateway: rename one of them")
			}
			ports[s.Port.Name] = i
		}
	}
}

// usesCredential reports whether a server shows a certificate of a Secret.
func usesCredential(tls *networking.ServerTLSSettings) bool {
	switch tls.GetMode() {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		return tls.GetCredentialName() != "" || len(tls.GetCredentialNames()) > 0
	default:
		return false
	}
}

func (c *checker) server(at string, s *networking.Server) {
	socket := strings.HasPrefix(s.Bind, "unix://")
	switch {
	case socket:
		c.unixSocket(at+".bind", s.Bind)
	case s.Bind != "" && !isIP(s.Bind):
		c.fail(at+".bind", s.Bind, "neither an IP address nor a unix socket", `use an address such as "0.0.0.0", or "unix:///path"`)
	}
	if len(s.Hosts) == 0 {
		c.fail(at+".hosts", nil, "missing", `list the hosts served, "*" for all`)
	}
	for i, h := range s.Hosts {
		if strings.HasPrefix(h, "~/") {
			c.fail(index(at+".hosts", i), h, "~ is no namespace of VirtualServices", `use a namespace, "." for this one or "*" for any`)
			continue
		}
		c.namespacedHost(index(at+".hosts", i), h, true)
	}
	if s.Port == nil {
		c.fail(at+".port", nil, "missing", "set number, name and protocol")
		return
	}
	if s.Port.Number != 0 || !socket {
		c.port(at+".port.number", s.Port.Number)
	}
	c.portName(at+".port.name", s.Port.Name)
	c.protocol(at+".port.protocol", s.Port.Protocol)
	c.serverProtocol(at, s)
}

// serverProtocol checks that the protocol and the TLS settings go together.
func (c *checker) serverProtocol(at string, s *networking.Server) {
	protocol := strings.ToUpper(s.Port.Protocol)
	switch {
	case protocol == "UDP":
		c.fail(at+".port.protocol", s.Port.Protocol, "UDP is not proxied", "remove the server")
	case protocol == "HTTP" || protocol == "HTTP2" || protocol == "GRPC" || protocol == "GRPC-WEB":
		if !proto.Equal(s.Tls, &networking.ServerTLSSettings{HttpsRedirect: s.Tls.GetHttpsRedirect()}) && s.Tls != nil {
			c.fail(at+".tls", nil, "protocol "+protocol+" is plaintext", "use protocol HTTPS; a plaintext port can only have tls.httpsRedirect")
		}
		return
	case s.Tls == nil && (protocol == "HTTPS" || protocol == "TLS"):
		c.fail(at+".tls", nil, "missing for protocol "+protocol, "set tls.mode, such as SIMPLE with credentialName")
	case s.Tls.GetHttpsRedirect() && protocol != "HTTPS":
		c.fail(at+".tls.httpsRedirect", nil, "protocol "+protocol+" has no requests to redirect", "set it on a server with protocol HTTP")
	}
	c.serverTLS(at+".tls", s.Tls)
}

// namespacedHost checks "host", or "namespace/host" with "." and "*" as namespaces.
func (c *checker) namespacedHost(at, s string, optional bool) {
	ns, host, ok := strings.Cut(s, "/")
	if !ok {
		if !optional {
			c.fail(at, s, "no namespace", `write it as "<namespace>/<host>", with "." for this namespace, "*" for any or "~" for none`)
			return
		}
		c.host(at, s)
		return
	}
	if ns != "." && ns != "*" && ns != "~" && !dnsLabel(ns) {
		c.fail(at, s, "not a namespace before the slash", `use a namespace, "." for this one or "*" for any`)
	}
	c.host(at, host)
}
