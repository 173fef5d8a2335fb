package networking

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// sidecar follows https://istio.io/latest/docs/reference/config/networking/sidecar/.
func (c Checker) sidecar(s *networking.Sidecar) {
	c.Selector("spec.workloadSelector.labels", s.WorkloadSelector != nil, s.WorkloadSelector.GetLabels())
	if len(s.Egress) == 0 && len(s.Ingress) == 0 && s.OutboundTrafficPolicy == nil && s.InboundConnectionPool == nil {
		c.Fail("spec", nil, "Sidecar sets nothing", "add egress, ingress, outboundTrafficPolicy or inboundConnectionPool")
	}
	c.ingressListeners(s)
	c.egressListeners(s)
	c.ConnectionPool("spec.inboundConnectionPool", s.InboundConnectionPool)
	if p := s.OutboundTrafficPolicy; p != nil && p.EgressProxy != nil {
		at := "spec.outboundTrafficPolicy.egressProxy"
		c.FailIf(p.Mode != networking.OutboundTrafficPolicy_ALLOW_ANY, at, nil, "has no effect in mode REGISTRY_ONLY", "set mode ALLOW_ANY")
		c.destination(at, p.EgressProxy)
		switch h := p.EgressProxy.Host; {
		case !dnsName(h):
			c.Fail(at+".host", h, "not a DNS name", "write the FQDN of a service")
		case !strings.Contains(h, "."):
			c.Remark(at+".host", "a short name: the proxy looks up no search domains, so that no service is found", "write the FQDN")
		}
		c.FailIf(p.EgressProxy.Port == nil, at+".port", nil, "missing", "set the port's number")
	}
}

func (c Checker) ingressListeners(s *networking.Sidecar) {
	seen := map[uint32]int{}
	for i, l := range s.Ingress {
		at := manifest.Index("spec.ingress", i)
		if l.Port == nil {
			c.Fail(at+".port", nil, "missing", "set number, protocol and name")
			continue
		}
		check.Port(c.Verdict, at+".port.number", l.Port.Number)
		c.listenerName(at+".port.name", l.Port.Name)
		c.listenerProtocol(at+".port.protocol", l.Port.Protocol)
		if first, dup := check.Again(seen, l.Port.Number, i); dup {
			c.Fail(at+".port.number", l.Port.Number, fmt.Sprintf("same port as ingress[%d]: what arrives there has one destination", first),
				"keep one of them")
		}
		c.FailIf(l.Bind != "" && !check.IsIP(l.Bind), at+".bind", l.Bind, "not an IP address",
			`use an address such as "0.0.0.0"; inbound unix sockets are not supported`)
		c.defaultEndpoint(at+".defaultEndpoint", l.DefaultEndpoint)
		c.ConnectionPool(at+".connectionPool", l.ConnectionPool)
		c.ingressTLS(at, l)
	}
}

// listenerName checks the name of a Sidecar's port, which is optional.
func (c Checker) listenerName(at, s string) {
	if s != "" {
		c.entryPortName(at, s)
	}
}

// listenerProtocol checks the protocol of a Sidecar's listener. Sidecars do not proxy UDP.
func (c Checker) listenerProtocol(at, s string) {
	switch {
	case s == "":
	case strings.EqualFold(s, "UDP"):
		c.Warn(at, "datagrams pass the proxy by", "remove the listener")
	default:
		c.protocol(at, s, "HTTP_PROXY")
	}
}

// ingressTLS checks the TLS that a sidecar terminates for callers from outside the mesh, with files of its own.
func (c Checker) ingressTLS(at string, l *networking.IstioIngressListener) {
	t := l.Tls
	if t == nil {
		return
	}
	switch strings.ToUpper(l.Port.Protocol) {
	case "HTTPS", "TLS":
	default:
		c.Fail(at+".port.protocol", l.Port.Protocol, "TLS is terminated there, but the protocol is not encrypted",
			"use HTTPS or TLS, or remove tls")
	}
	at += ".tls"
	switch t.Mode {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
	default:
		c.Fail(at+".mode", t.Mode.String(), "not possible on a sidecar", "use SIMPLE or MUTUAL")
	}
	c.serverTLS(at, t)
}

// defaultEndpoint checks the address that the sidecar forwards to, which is always the workload's own.
func (c Checker) defaultEndpoint(at, s string) {
	if s == "" {
		return
	}
	if strings.HasPrefix(s, "unix://") {
		c.unixSocket(at, s)
		return
	}
	const remedy = `write "127.0.0.1:<port>", "[::1]:<port>", "0.0.0.0:<port>" (the workload's own address) or "unix:///path"`
	host, number, err := net.SplitHostPort(s)
	if err != nil {
		c.Fail(at, s, "not an address with port", remedy)
		return
	}
	port, err := strconv.ParseUint(number, 10, 16)
	c.FailIf(err != nil || port == 0, at, s, "not an address with port", remedy)
	c.FailIf(!slices.Contains([]string{"", "127.0.0.1", "::1", "0.0.0.0", "::"}, host), at, s, "a sidecar forwards only to its own workload",
		remedy)
}

func (c Checker) egressListeners(s *networking.Sidecar) {
	seen := map[string]int{}
	portless := -1
	for i, l := range s.Egress {
		at := manifest.Index("spec.egress", i)
		c.FailIf(len(l.Hosts) == 0, at+".hosts", nil, "missing", `list what may be reached, like "./*" or "*/*"`)
		for j, h := range l.Hosts {
			c.egressHost(manifest.Index(at+".hosts", j), h)
		}
		if l.Port == nil {
			if portless >= 0 {
				c.Fail(at, nil, fmt.Sprintf("egress[%d] has no port either", portless),
					"only one listener, the last, can be without a port: merge them")
			}
			portless = i
			c.WarnIf(l.Bind != "", at+".bind", "there is no port to bind", "set port")
			continue
		}
		c.egressBind(at, l)
		c.FailIf(portless >= 0, manifest.Index("spec.egress", portless), nil, "the listener without a port is not the last", "move it to the end")
		c.listenerName(at+".port.name", l.Port.Name)
		c.listenerProtocol(at+".port.protocol", l.Port.Protocol)
		onSocket := strings.HasPrefix(l.Bind, "unix://")
		switch {
		case !onSocket:
			check.Port(c.Verdict, at+".port.number", l.Port.Number)
		case l.Port.Number != 0:
			c.Fail(at+".port.number", l.Port.Number, "a unix socket has no port", "write 0, or bind an IP address")
		}
		key := fmt.Sprintf("%s:%d", l.Bind, l.Port.Number)
		if onSocket {
			key = l.Bind
		}
		if first, dup := check.Again(seen, key, i); dup {
			c.Fail(at+".port.number", l.Port.Number, fmt.Sprintf("same port and bind as egress[%d]", first), "keep one of them")
		}
	}
}

// egressBind checks the address or socket of a listener with a port.
func (c Checker) egressBind(at string, l *networking.IstioEgressListener) {
	if l.Bind != "" && !check.IsIP(l.Bind) {
		if strings.HasPrefix(l.Bind, "unix://") {
			c.unixSocket(at+".bind", l.Bind)
			if l.CaptureMode != networking.CaptureMode_DEFAULT && l.CaptureMode != networking.CaptureMode_NONE {
				c.Fail(at+".captureMode", l.CaptureMode.String(), "traffic to a unix socket cannot be captured", "use NONE")
			}
		} else {
			c.Fail(at+".bind", l.Bind, "neither an IP address nor a unix socket", `use an address such as "127.0.0.1"`)
		}
	}
}

// egressHost checks "<namespace>/<dnsName>". "~<namespace>/..." excludes the host; "~" alone stands for no namespace.
func (c Checker) egressHost(at, s string) {
	full, host, ok := strings.Cut(s, "/")
	ns := strings.TrimPrefix(full, "~")
	special := ns == "." || ns == "*" || full == "~"
	switch {
	case !ok:
		c.Fail(at, s, "no namespace", `write it as "<namespace>/<host>", with "." for this namespace, "*" for any or "~" for none`)
	case !special && !check.NameLabel(ns):
		c.Fail(at, s, "not a namespace before the slash", `use a namespace, "." for this one or "*" for any`)
	case host == "*":
	case !strings.Contains(host, "."):
		c.Fail(at, s, "short name", "write the FQDN, such as reviews.apps.svc.cluster.local")
	case !dnsName(strings.TrimPrefix(host, "*.")):
		c.Fail(at, s, "not a valid host", `use letters, digits, '-' and '.'; a wildcard is the whole first label: "*.example.com"`)
	}
	c.RemarkIf(!special && check.NameLabel(ns) && !check.DNSLabel(ns), at, "matches nothing: no namespace is called so",
		"write it in lower case")
}
