package networking

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// gateway follows https://istio.io/latest/docs/reference/config/networking/gateway/.
func (c Checker) gateway(o *object.Object, g *networking.Gateway) {
	c.FailIf(o.Key.Name != "" && !check.NameLabel(o.Key.Name), "metadata.name", o.Key.Name, "not a Gateway's name",
		"use at most 63 letters, digits and '-', without dots")
	c.FailIf(len(g.Servers) == 0, "spec.servers", nil, "missing", "add a server with port and hosts")
	for _, k := range slices.Sorted(maps.Keys(g.Selector)) {
		if !check.LabelKey(k) || !check.LabelValue(g.Selector[k]) {
			c.noWorkload(manifest.Field("spec.selector", k))
		}
	}
	ports := map[string]int{}
	for i, s := range g.Servers {
		at := manifest.Index("spec.servers", i)
		c.server(at, s)
		if len(g.Selector) == 0 && usesCredential(s.GetTls()) {
			c.Remark(at+".tls", "credentials are given to workloads that a Gateway with a selector selects: this one selects nobody in particular",
				"set spec.selector to the labels of the gateway's Pods")
		}
		if s.Port.GetName() != "" {
			if first, dup := check.Again(ports, s.Port.Name, i); dup {
				c.Fail(at+".port.name", s.Port.Name, fmt.Sprintf("same port name as servers[%d]", first),
					"port names are unique within a gateway: rename one of them")
			}
		}
	}
}

// usesCredential reports whether a server's certificate comes from a Secret.
func usesCredential(tls *networking.ServerTLSSettings) bool {
	switch tls.GetMode() {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		return tls.GetCredentialName() != "" || len(tls.GetCredentialNames()) > 0
	default:
		return false
	}
}

func (c Checker) server(at string, s *networking.Server) {
	c.caption(at+".name", s.Name)
	socket := strings.HasPrefix(s.Bind, "unix://")
	switch {
	case socket:
		c.unixSocket(at+".bind", s.Bind)
	case s.Bind != "" && !check.IsIP(s.Bind):
		c.Fail(at+".bind", s.Bind, "neither an IP address nor a unix socket", `use an address such as "0.0.0.0", or "unix:///path"`)
	}
	c.FailIf(len(s.Hosts) == 0, at+".hosts", nil, "missing", `list the hosts served, "*" for all`)
	for i, h := range s.Hosts {
		c.gatewayHost(manifest.Index(at+".hosts", i), h)
	}
	if s.Port == nil {
		c.Fail(at+".port", nil, "missing", "set number, name and protocol")
		return
	}
	switch n := s.Port.Number; {
	case socket && n != 0:
		c.Fail(at+".port.number", n, "a unix socket has no port", "set it to 0")
	case !socket:
		check.Port(c.Verdict, at+".port.number", n)
	}
	c.FailIf(s.Port.Name == "", at+".port.name", nil, "port has no name", `name it after its protocol, such as "http"`)
	c.caption(at+".port.name", s.Port.Name)
	c.protocol(at+".port.protocol", s.Port.Protocol, "HTTP_PROXY")
	c.serverProtocol(at, s)
}

// gatewayHost checks "host" or "namespace/host", with "." and "*" as namespaces. A host is a name with a dot, a
// wildcard or an IPv4 address.
func (c Checker) gatewayHost(at, s string) {
	ns, host, ok := strings.Cut(s, "/")
	switch {
	case !ok:
		host = s
	case ns != "." && ns != "*" && !check.NameLabel(ns):
		c.Fail(at, s, "not a namespace before the slash", `use a namespace, "." for this one or "*" for any`)
		return
	case ns != "." && ns != "*":
		c.PossibleNamespace(at, ns)
	}
	switch reason := hostProblem(host); {
	case host == "*":
	case !strings.Contains(host, "."):
		c.Fail(at, s, "a short name is no host of a gateway", `write it in full, like "reviews.apps.svc.cluster.local", or "*" for all`)
	case check.IsIP(host):
	case object.PartialWildcard(host):
		c.Fail(at, s, "a wildcard is the whole first label on a gateway", `write "*.example.com"`)
	case reason != "":
		c.Fail(at, s, "not a valid host: "+reason, hostRemedy)
	}
}

// serverProtocol checks that the protocol and the TLS settings go together.
func (c Checker) serverProtocol(at string, s *networking.Server) {
	protocol := strings.ToUpper(s.Port.Protocol)
	secure := protocol == "HTTPS" || protocol == "TLS"
	plainHTTP := strings.HasPrefix(protocol, "HTTP") && !secure || strings.HasPrefix(protocol, "GRPC")
	switch {
	case protocol == "UDP":
		c.Remark(at+".port.protocol", "datagrams are not proxied: the server takes TCP connections", "use TCP, or remove the server")
	case secure && s.Tls == nil:
		c.Fail(at+".tls", nil, "missing for protocol "+protocol, "set tls.mode, such as SIMPLE with credentialName")
	}
	switch {
	case s.Tls == nil:
		return
	case secure:
		c.serverTLS(at+".tls", s.Tls)
	case !plainHTTP:
		c.Fail(at+".tls", nil, "protocol "+protocol+" is not encrypted", "use protocol TLS, or HTTPS")
	case !passesTLS(s.Tls), s.Tls.CaCertificates != "", s.Tls.PrivateKey != "", s.Tls.ServerCertificate != "",
		s.Tls.CaCrl != "" && s.Tls.CredentialName != "":
		c.Fail(at+".tls", nil, "protocol "+protocol+" is plaintext", "use protocol HTTPS; a plaintext port can only have tls.httpsRedirect")
	case !proto.Equal(s.Tls, &networking.ServerTLSSettings{HttpsRedirect: s.Tls.HttpsRedirect}):
		c.oneSource(at+".tls", s.Tls)
		c.Warn(at+".tls", "protocol "+protocol+" is plaintext",
			"use protocol HTTPS; of tls a plaintext port has httpsRedirect alone")
	}
	if s.Tls.HttpsRedirect && !plainHTTP {
		c.Warn(at+".tls.httpsRedirect",
			"protocol "+protocol+" has no plaintext requests to redirect", "set it on a server with protocol HTTP")
	}
}

// passesTLS reports whether a server passes TLS through without terminating it.
func passesTLS(t *networking.ServerTLSSettings) bool {
	return t.Mode == networking.ServerTLSSettings_PASSTHROUGH || t.Mode == networking.ServerTLSSettings_AUTO_PASSTHROUGH
}
