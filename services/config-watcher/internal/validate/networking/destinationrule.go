package networking

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// destinationRule follows https://istio.io/latest/docs/reference/config/networking/destination-rule/.
func (c Checker) destinationRule(dr *networking.DestinationRule) {
	if c.istioHost("spec.host", dr.Host) {
		c.wholeWildcard("spec.host", dr.Host)
	}
	c.trafficPolicy("spec.trafficPolicy", dr.TrafficPolicy)
	seen := map[string]int{}
	for i, s := range dr.Subsets {
		at := manifest.Index("spec.subsets", i)
		if s.Name == "" {
			c.Fail(at+".name", nil, "missing", "name the subset")
		} else {
			c.subsetName(at+".name", s.Name)
			if first, dup := check.Again(seen, s.Name, i); dup {
				c.Fail(at+".name", s.Name, fmt.Sprintf("same name as subsets[%d]", first), "rename one of them")
			}
		}
		c.looseLabels(at+".labels", s.Labels)
		c.trafficPolicy(at+".trafficPolicy", s.TrafficPolicy)
	}
	c.ExportTo("spec.exportTo", dr.ExportTo, check.Exporter{Selective: dr.WorkloadSelector != nil})
	if dr.WorkloadSelector != nil {
		c.WorkloadLabels("spec.workloadSelector.matchLabels", dr.WorkloadSelector.MatchLabels)
		if len(dr.WorkloadSelector.MatchLabels) == 0 {
			c.Warn("spec.workloadSelector", "it has no labels: the rule is for every workload", "set matchLabels, or remove it")
		}
	}
}

func (c Checker) trafficPolicy(at string, p *networking.TrafficPolicy) {
	if p == nil {
		return
	}
	if proto.Size(p) == 0 {
		c.Fail(at, nil, "traffic policy sets nothing", "set one of its fields, or remove it")
		return
	}
	c.FailIf(p.Tunnel != nil && p.ProxyProtocol != nil, at+".proxyProtocol", nil, "cannot be combined with tunnel", "keep one of them")
	c.loadBalancer(at+".loadBalancer", p.LoadBalancer, p.OutlierDetection)
	c.ConnectionPool(at+".connectionPool", p.ConnectionPool)
	c.OutlierDetection(at+".outlierDetection", p.OutlierDetection)
	c.ClientTLS(at+".tls", p.Tls)
	seen := map[uint32]int{}
	for i, s := range p.PortLevelSettings {
		pp := manifest.Index(at+".portLevelSettings", i)
		if s.Port == nil {
			c.Fail(pp+".port", nil, "missing", "name the port by number")
		} else {
			c.portLevelPort(pp+".port.number", s.Port.Number, i, seen)
		}
		if s.LoadBalancer == nil && s.ConnectionPool == nil && s.OutlierDetection == nil && s.Tls == nil {
			c.Fail(pp, nil, "nothing is set for the port", "set loadBalancer, connectionPool, outlierDetection or tls")
		}
		c.loadBalancer(pp+".loadBalancer", s.LoadBalancer, s.OutlierDetection)
		c.ConnectionPool(pp+".connectionPool", s.ConnectionPool)
		c.OutlierDetection(pp+".outlierDetection", s.OutlierDetection)
		c.ClientTLS(pp+".tls", s.Tls)
	}
	if t := p.Tunnel; t != nil {
		if t.Protocol != "" && t.Protocol != "CONNECT" && t.Protocol != "POST" {
			c.Fail(at+".tunnel.protocol", t.Protocol, "unknown tunnel protocol", "use CONNECT or POST")
		}
		switch reason := nameProblem(t.TargetHost); {
		case check.IsIP(t.TargetHost):
		case strings.Contains(t.TargetHost, "*"):
			c.Fail(at+".tunnel.targetHost", t.TargetHost, "a tunnel cannot lead to a wildcard", "name one host")
		case reason != "":
			c.Fail(at+".tunnel.targetHost", t.TargetHost, reason, "name one host, or an address")
		}
		check.Port(c.Verdict, at+".tunnel.targetPort", t.TargetPort)
	}
	if b := p.RetryBudget; b.GetPercent() != nil {
		c.Percent(at+".retryBudget.percent", b.Percent.Value)
	}
}

// portLevelPort warns of port-level settings for a port that no service can have, or that earlier settings name.
func (c Checker) portLevelPort(at string, n uint32, i int, seen map[uint32]int) {
	if n < 1 || n > 65535 {
		c.Warn(at, "no service has such a port", "use 1 to 65535")
		return
	}
	if first, dup := seen[n]; dup {
		c.Warn(at, fmt.Sprintf("the port has the settings of portLevelSettings[%d]", first), "keep one of them")
		return
	}
	seen[n] = i
}

// OutlierDetection checks when endpoints are ejected.
func (c Checker) OutlierDetection(at string, o *networking.OutlierDetection) {
	if o == nil {
		return
	}
	c.Duration(at+".interval", o.Interval)
	c.Duration(at+".baseEjectionTime", o.BaseEjectionTime)
	c.Percent(at+".maxEjectionPercent", float64(o.MaxEjectionPercent))
	c.Percent(at+".minHealthPercent", float64(o.MinHealthPercent))
	//nolint:staticcheck // deprecated in Istio, still served
	switch errors := o.ConsecutiveErrors; {
	case errors > 0:
		c.Remark(at+".consecutiveErrors", "deprecated", "use consecutiveGatewayErrors or consecutive5xxErrors")
	case errors < 0:
		c.Warn(at+".consecutiveErrors", "a number below 0 ejects nobody", "use consecutiveGatewayErrors or consecutive5xxErrors")
	}
	if o.ConsecutiveLocalOriginFailures.GetValue() > 0 && !o.SplitExternalLocalOriginErrors {
		c.Fail(at+".consecutiveLocalOriginFailures", o.ConsecutiveLocalOriginFailures.Value,
			"has no effect unless splitExternalLocalOriginErrors is true", "set splitExternalLocalOriginErrors: true")
	}
	for i, code := range o.OutlierDetectionHttpErrorCodes {
		c.FailIf(code < 100 || code > 599, manifest.Index(at+".outlierDetectionHttpErrorCodes", i), code, "no HTTP status", "use 100 to 599")
	}
}

// ConnectionPool checks the limits of connections to a destination.
func (c Checker) ConnectionPool(at string, p *networking.ConnectionPoolSettings) {
	if p == nil {
		return
	}
	c.FailIf(p.Http == nil && p.Tcp == nil, at, nil, "connection pool sets nothing", "set tcp or http")
	if h := p.Http; h != nil {
		c.NotNegative(at+".http.http1MaxPendingRequests", h.Http1MaxPendingRequests)
		c.NotNegative(at+".http.http2MaxRequests", h.Http2MaxRequests)
		c.NotNegative(at+".http.maxRequestsPerConnection", h.MaxRequestsPerConnection)
		c.NotNegative(at+".http.maxRetries", h.MaxRetries)
		c.NotNegative(at+".http.maxConcurrentStreams", h.MaxConcurrentStreams)
		c.Duration(at+".http.idleTimeout", h.IdleTimeout)
		if h.UseClientProtocol && h.H2UpgradePolicy == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE {
			c.Fail(at+".http.useClientProtocol", true, "cannot be combined with h2UpgradePolicy UPGRADE", "keep one of them")
		}
		if k := h.Http2KeepAlive; k != nil {
			c.requiredDuration(at+".http.http2KeepAlive.interval", k.Interval)
			c.requiredDuration(at+".http.http2KeepAlive.timeout", k.Timeout)
		}
	}
	if t := p.Tcp; t != nil {
		c.NotNegative(at+".tcp.maxConnections", t.MaxConnections)
		c.Duration(at+".tcp.connectTimeout", t.ConnectTimeout)
		c.Duration(at+".tcp.maxConnectionDuration", t.MaxConnectionDuration)
		if d := t.IdleTimeout.AsDuration(); d < 0 || d >= time.Millisecond { // less switches it off
			c.Duration(at+".tcp.idleTimeout", t.IdleTimeout)
		}
		c.Keepalive(at+".tcp.tcpKeepalive", t.TcpKeepalive)
	}
}

// Keepalive checks keepalive times, which the operating system takes in whole seconds.
func (c Checker) Keepalive(at string, k *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive) {
	for _, part := range []struct {
		at    string
		value *durationpb.Duration
	}{{at + ".time", k.GetTime()}, {at + ".interval", k.GetInterval()}} {
		c.Duration(part.at, part.value)
		c.RemarkIf(part.value.GetNanos() != 0, part.at, "only its whole seconds count", "round it")
	}
}

// requiredDuration is duration for a field that must be set.
func (c Checker) requiredDuration(at string, d *durationpb.Duration) {
	if d == nil {
		c.Fail(at, nil, "missing", `set a time, like "10s"`)
		return
	}
	c.Duration(at, d)
}

// ClientTLS checks the TLS settings towards a destination. Certificates come from files or from a credentialName.
func (c Checker) ClientTLS(at string, t *networking.ClientTLSSettings) {
	if t == nil {
		return
	}
	c.credentialName(at+".credentialName", t.CredentialName)
	if ref, ok := strings.CutPrefix(t.CredentialName, "configmap://"); ok {
		if ns, name, _ := strings.Cut(ref, "/"); ns == "" || name == "" || ns != c.Namespace {
			c.Fail(at+".credentialName", t.CredentialName, "not a ConfigMap of the rule's own namespace", "name a Secret")
		}
	}
	c.clientCertificates(at, t)
	if t.CaCrl != "" && t.Mode == networking.ClientTLSSettings_ISTIO_MUTUAL {
		c.Warn(at+".caCrl", "mode ISTIO_MUTUAL trusts the mesh's own authorities", "remove it, or use MUTUAL")
	}
	switch {
	case len(t.Sni) > 255:
		c.Fail(at+".sni", t.Sni, "longer than 255 characters", "use a DNS name")
	case t.Sni != "" && !check.FQDN(t.Sni):
		c.Remark(at+".sni", "no server has such a name", "use a DNS name")
	}
	for i, san := range t.SubjectAltNames {
		c.WarnIf(san == "", manifest.Index(at+".subjectAltNames", i), "no server has an empty name", "remove it")
		c.Printable(manifest.Index(at+".subjectAltNames", i), san)
	}
	c.filePath(at+".clientCertificate", t.ClientCertificate)
	c.filePath(at+".privateKey", t.PrivateKey)
	c.filePath(at+".caCertificates", t.CaCertificates)
	c.filePath(at+".caCrl", t.CaCrl)
}

// clientCertificates checks that each mode has the certificates that it needs, and no others.
func (c Checker) clientCertificates(at string, t *networking.ClientTLSSettings) {
	files := t.ClientCertificate != "" || t.PrivateKey != "" || t.CaCertificates != ""
	skips := t.InsecureSkipVerify.GetValue()
	switch t.Mode {
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		if files || t.CredentialName != "" || skips {
			c.Warn(at, "mode ISTIO_MUTUAL uses the workload's own certificate and the mesh's authorities",
				"remove the certificates, or use MUTUAL")
		}
	case networking.ClientTLSSettings_DISABLE:
		if files || t.CredentialName != "" || t.Sni != "" || len(t.SubjectAltNames) > 0 || skips || t.CaCrl != "" {
			c.Warn(at, "mode DISABLE, which is also the default, connects without TLS", "set mode, or leave mode alone in tls")
		}
	default:
		simple := t.Mode == networking.ClientTLSSettings_SIMPLE
		if skips && (t.CaCertificates != "" || len(t.SubjectAltNames) > 0 || simple && t.CredentialName != "") {
			c.Fail(at+".insecureSkipVerify", true, "contradicts what servers are verified with: caCertificates, credentialName and subjectAltNames",
				"remove insecureSkipVerify")
		}
		switch {
		case t.CredentialName != "" && (files || t.CaCrl != ""):
			c.Fail(at+".credentialName", t.CredentialName, "cannot be combined with clientCertificate, privateKey, caCertificates or caCrl",
				"keep credentialName, or the files")
		case t.CredentialName != "":
		case simple && (t.ClientCertificate != "" || t.PrivateKey != ""):
			c.Warn(at+".clientCertificate",
				"mode SIMPLE shows the server no certificate", "use MUTUAL, or remove clientCertificate and privateKey")
		case !simple && t.ClientCertificate == "":
			c.Fail(at+".clientCertificate", nil, "missing in mode MUTUAL", "set clientCertificate and privateKey, or credentialName")
		case !simple && t.PrivateKey == "":
			c.Fail(at+".privateKey", nil, "missing in mode MUTUAL", "set clientCertificate and privateKey, or credentialName")
		}
		c.WarnIf(skips && t.CaCrl != "", at+".caCrl", "with insecureSkipVerify nothing is verified", "remove one of them")
	}
}
