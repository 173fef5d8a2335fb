package validate

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
)

// checkDestinationRule follows https://istio.io/latest/docs/reference/config/networking/destination-rule/.
func checkDestinationRule(c *checker, _ *object.Object, dr *networking.DestinationRule) {
	if c.istioHost("spec.host", dr.Host) {
		c.wholeWildcard("spec.host", dr.Host)
	}
	c.trafficPolicy("spec.trafficPolicy", dr.TrafficPolicy)
	seen := map[string]int{}
	for i, s := range dr.Subsets {
		at := index("spec.subsets", i)
		if s.Name == "" {
			c.fail(at+".name", nil, "missing", "name the subset")
		} else {
			c.subsetName(at+".name", s.Name)
			if first, dup := again(seen, s.Name, i); dup {
				c.fail(at+".name", s.Name, fmt.Sprintf("same name as subsets[%d]", first), "rename one of them")
			}
		}
		c.looseLabels(at+".labels", s.Labels)
		c.trafficPolicy(at+".trafficPolicy", s.TrafficPolicy)
	}
	c.exportTo("spec.exportTo", dr.ExportTo, exporter{selective: dr.WorkloadSelector != nil})
	if dr.WorkloadSelector != nil {
		c.workloadLabels("spec.workloadSelector.matchLabels", dr.WorkloadSelector.MatchLabels)
		if len(dr.WorkloadSelector.MatchLabels) == 0 {
			c.warn("spec.workloadSelector", verdict{"it has no labels: the rule is for every workload", "set matchLabels, or remove it"})
		}
	}
}

func (c *checker) trafficPolicy(at string, p *networking.TrafficPolicy) {
	if p == nil {
		return
	}
	if proto.Size(p) == 0 {
		c.fail(at, nil, "traffic policy sets nothing", "set one of its fields, or remove it")
		return
	}
	c.failIf(p.Tunnel != nil && p.ProxyProtocol != nil, at+".proxyProtocol", nil, "cannot be combined with tunnel", "keep one of them")
	c.loadBalancer(at+".loadBalancer", p.LoadBalancer, p.OutlierDetection)
	c.connectionPool(at+".connectionPool", p.ConnectionPool)
	c.outlierDetection(at+".outlierDetection", p.OutlierDetection)
	c.clientTLS(at+".tls", p.Tls)
	seen := map[uint32]int{}
	for i, s := range p.PortLevelSettings {
		pp := index(at+".portLevelSettings", i)
		if s.Port == nil {
			c.fail(pp+".port", nil, "missing", "name the port by number")
		} else {
			c.portLevelPort(pp+".port.number", s.Port.Number, i, seen)
		}
		if s.LoadBalancer == nil && s.ConnectionPool == nil && s.OutlierDetection == nil && s.Tls == nil {
			c.fail(pp, nil, "nothing is set for the port", "set loadBalancer, connectionPool, outlierDetection or tls")
		}
		c.loadBalancer(pp+".loadBalancer", s.LoadBalancer, s.OutlierDetection)
		c.connectionPool(pp+".connectionPool", s.ConnectionPool)
		c.outlierDetection(pp+".outlierDetection", s.OutlierDetection)
		c.clientTLS(pp+".tls", s.Tls)
	}
	if t := p.Tunnel; t != nil {
		if t.Protocol != "" && t.Protocol != "CONNECT" && t.Protocol != "POST" {
			c.fail(at+".tunnel.protocol", t.Protocol, "unknown tunnel protocol", "use CONNECT or POST")
		}
		switch reason := nameProblem(t.TargetHost); {
		case isIP(t.TargetHost):
		case strings.Contains(t.TargetHost, "*"):
			c.fail(at+".tunnel.targetHost", t.TargetHost, "a tunnel cannot lead to a wildcard", "name one host")
		case reason != "":
			c.fail(at+".tunnel.targetHost", t.TargetHost, reason, "name one host, or an address")
		}
		checkPort(c, at+".tunnel.targetPort", t.TargetPort)
	}
	if b := p.RetryBudget; b.GetPercent() != nil {
		c.percent(at+".retryBudget.percent", b.Percent.Value)
	}
}

// portLevelPort warns of port-level settings for a port that no service can have, or that earlier settings name.
func (c *checker) portLevelPort(at string, n uint32, i int, seen map[uint32]int) {
	if n < 1 || n > 65535 {
		c.warn(at, verdict{"no service has such a port", "use 1 to 65535"})
		return
	}
	if first, dup := seen[n]; dup {
		c.warn(at, verdict{fmt.Sprintf("the port has the settings of portLevelSettings[%d]", first), "keep one of them"})
		return
	}
	seen[n] = i
}

func (c *checker) outlierDetection(at string, o *networking.OutlierDetection) {
	if o == nil {
		return
	}
	c.duration(at+".interval", o.Interval)
	c.duration(at+".baseEjectionTime", o.BaseEjectionTime)
	c.percent(at+".maxEjectionPercent", float64(o.MaxEjectionPercent))
	c.percent(at+".minHealthPercent", float64(o.MinHealthPercent))
	//nolint:staticcheck // deprecated in Istio, still served
	switch errors := o.ConsecutiveErrors; {
	case errors > 0:
		c.remark(at+".consecutiveErrors", "deprecated", "use consecutiveGatewayErrors or consecutive5xxErrors")
	case errors < 0:
		c.warn(at+".consecutiveErrors", verdict{"a number below 0 ejects nobody", "use consecutiveGatewayErrors or consecutive5xxErrors"})
	}
	if o.ConsecutiveLocalOriginFailures.GetValue() > 0 && !o.SplitExternalLocalOriginErrors {
		c.fail(at+".consecutiveLocalOriginFailures", o.ConsecutiveLocalOriginFailures.Value,
			"has no effect unless splitExternalLocalOriginErrors is true", "set splitExternalLocalOriginErrors: true")
	}
	for i, code := range o.OutlierDetectionHttpErrorCodes {
		c.failIf(code < 100 || code > 599, index(at+".outlierDetectionHttpErrorCodes", i), code, "no HTTP status", "use 100 to 599")
	}
}

func (c *checker) connectionPool(at string, p *networking.ConnectionPoolSettings) {
	if p == nil {
		return
	}
	c.failIf(p.Http == nil && p.Tcp == nil, at, nil, "connection pool sets nothing", "set tcp or http")
	if h := p.Http; h != nil {
		c.notNegative(at+".http.http1MaxPendingRequests", h.Http1MaxPendingRequests)
		c.notNegative(at+".http.http2MaxRequests", h.Http2MaxRequests)
		c.notNegative(at+".http.maxRequestsPerConnection", h.MaxRequestsPerConnection)
		c.notNegative(at+".http.maxRetries", h.MaxRetries)
		c.notNegative(at+".http.maxConcurrentStreams", h.MaxConcurrentStreams)
		c.duration(at+".http.idleTimeout", h.IdleTimeout)
		if h.UseClientProtocol && h.H2UpgradePolicy == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE {
			c.fail(at+".http.useClientProtocol", true, "cannot be combined with h2UpgradePolicy UPGRADE", "keep one of them")
		}
		if k := h.Http2KeepAlive; k != nil {
			c.requiredDuration(at+".http.http2KeepAlive.interval", k.Interval)
			c.requiredDuration(at+".http.http2KeepAlive.timeout", k.Timeout)
		}
	}
	if t := p.Tcp; t != nil {
		c.notNegative(at+".tcp.maxConnections", t.MaxConnections)
		c.duration(at+".tcp.connectTimeout", t.ConnectTimeout)
		c.duration(at+".tcp.maxConnectionDuration", t.MaxConnectionDuration)
		if d := t.IdleTimeout.AsDuration(); d < 0 || d >= time.Millisecond { // less switches it off
			c.duration(at+".tcp.idleTimeout", t.IdleTimeout)
		}
		c.keepalive(at+".tcp.tcpKeepalive", t.TcpKeepalive)
	}
}

// keepalive checks keepalive times, which the operating system takes in whole seconds.
func (c *checker) keepalive(at string, k *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive) {
	for _, part := range []struct {
		at    string
		value *durationpb.Duration
	}{{at + ".time", k.GetTime()}, {at + ".interval", k.GetInterval()}} {
		c.duration(part.at, part.value)
		c.remarkIf(part.value.GetNanos() != 0, part.at, "only its whole seconds count", "round it")
	}
}

// requiredDuration is duration for a field that must be set.
func (c *checker) requiredDuration(at string, d *durationpb.Duration) {
	if d == nil {
		c.fail(at, nil, "missing", `set a time, like "10s"`)
		return
	}
	c.duration(at, d)
}

func (c *checker) notNegative(at string, n int32) {
	c.failIf(n < 0, at, n, "negative", "use 0 (the default) or more")
}

// clientTLS checks the TLS settings towards a destination. Certificates come from files or from a credentialName.
func (c *checker) clientTLS(at string, t *networking.ClientTLSSettings) {
	if t == nil {
		return
	}
	c.credentialName(at+".credentialName", t.CredentialName)
	if ref, ok := strings.CutPrefix(t.CredentialName, "configmap://"); ok {
		if ns, name, _ := strings.Cut(ref, "/"); ns == "" || name == "" || ns != c.namespace {
			c.fail(at+".credentialName", t.CredentialName, "not a ConfigMap of the rule's own namespace", "name a Secret")
		}
	}
	c.clientCertificates(at, t)
	if t.CaCrl != "" && t.Mode == networking.ClientTLSSettings_ISTIO_MUTUAL {
		c.warn(at+".caCrl", verdict{"mode ISTIO_MUTUAL trusts the mesh's own authorities", "remove it, or use MUTUAL"})
	}
	switch {
	case len(t.Sni) > 255:
		c.fail(at+".sni", t.Sni, "longer than 255 characters", "use a DNS name")
	case t.Sni != "" && !fqdn(t.Sni):
		c.remark(at+".sni", "no server has such a name", "use a DNS name")
	}
	for i, san := range t.SubjectAltNames {
		c.warnIf(san == "", index(at+".subjectAltNames", i), verdict{"no server has an empty name", "remove it"})
		c.printable(index(at+".subjectAltNames", i), san)
	}
	c.filePath(at+".clientCertificate", t.ClientCertificate)
	c.filePath(at+".privateKey", t.PrivateKey)
	c.filePath(at+".caCertificates", t.CaCertificates)
	c.filePath(at+".caCrl", t.CaCrl)
}

// clientCertificates checks that each mode has the certificates that it needs, and no others.
func (c *checker) clientCertificates(at string, t *networking.ClientTLSSettings) {
	files := t.ClientCertificate != "" || t.PrivateKey != "" || t.CaCertificates != ""
	skips := t.InsecureSkipVerify.GetValue()
	switch t.Mode {
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		if files || t.CredentialName != "" || skips {
			c.warn(at, verdict{"mode ISTIO_MUTUAL uses the workload's own certificate and the mesh's authorities",
				"remove the certificates, or use MUTUAL"})
		}
	case networking.ClientTLSSettings_DISABLE:
		if files || t.CredentialName != "" || t.Sni != "" || len(t.SubjectAltNames) > 0 || skips || t.CaCrl != "" {
			c.warn(at, verdict{"mode DISABLE, which is also the default, connects without TLS", "set mode, or leave mode alone in tls"})
		}
	default:
		simple := t.Mode == networking.ClientTLSSettings_SIMPLE
		if skips && (t.CaCertificates != "" || len(t.SubjectAltNames) > 0 || simple && t.CredentialName != "") {
			c.fail(at+".insecureSkipVerify", true, "contradicts what servers are verified with: caCertificates, credentialName and subjectAltNames",
				"remove insecureSkipVerify")
		}
		switch {
		case t.CredentialName != "" && (files || t.CaCrl != ""):
			c.fail(at+".credentialName", t.CredentialName, "cannot be combined with clientCertificate, privateKey, caCertificates or caCrl",
				"keep credentialName, or the files")
		case t.CredentialName != "":
		case simple && (t.ClientCertificate != "" || t.PrivateKey != ""):
			c.warn(at+".clientCertificate",
				verdict{"mode SIMPLE shows the server no certificate", "use MUTUAL, or remove clientCertificate and privateKey"})
		case !simple && t.ClientCertificate == "":
			c.fail(at+".clientCertificate", nil, "missing in mode MUTUAL", "set clientCertificate and privateKey, or credentialName")
		case !simple && t.PrivateKey == "":
			c.fail(at+".privateKey", nil, "missing in mode MUTUAL", "set clientCertificate and privateKey, or credentialName")
		}
		c.warnIf(skips && t.CaCrl != "", at+".caCrl", verdict{"with insecureSkipVerify nothing is verified", "remove one of them"})
	}
}
