package validate

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
)

// checkDestinationRule follows https://istio.io/latest/docs/reference/config/networking/destination-rule/.
func checkDestinationRule(c *checker, _ *object.Object, dr *networking.DestinationRule) {
	c.host("spec.host", dr.Host)
	c.trafficPolicy("spec.trafficPolicy", dr.TrafficPolicy)
	seen := map[string]int{}
	for i, s := range dr.Subsets {
		at := index("spec.subsets", i)
		if s.Name == "" {
			c.fail(at+".name", nil, "missing", "name the subset")
		} else {
			c.subsetName(at+".name", s.Name)
			if first, dup := seen[s.Name]; dup {
				c.fail(at+".name", s.Name, fmt.Sprintf("same name as subsets[%d]", first), "rename one of them")
			}
			seen[s.Name] = i
		}
		c.labels(at+".labels", s.Labels)
		c.trafficPolicy(at+".trafficPolicy", s.TrafficPolicy)
	}
	c.exportTo("spec.exportTo", dr.ExportTo)
	if dr.WorkloadSelector != nil {
		c.workloadLabels("spec.workloadSelector.matchLabels", dr.WorkloadSelector.MatchLabels)
		if len(dr.ExportTo) > 1 || contains(dr.ExportTo, "*") {
			c.warn("spec.exportTo", verdict{"a rule with workloadSelector is about workloads of its own namespace alone", `remove it, or write "."`})
		}
	}
}

func (c *checker) trafficPolicy(at string, p *networking.TrafficPolicy) {
	if p == nil {
		return
	}
	c.loadBalancer(at+".loadBalancer", p.LoadBalancer)
	c.connectionPool(at+".connectionPool", p.ConnectionPool)
	c.outlierDetection(at+".outlierDetection", p.OutlierDetection)
	c.clientTLS(at+".tls", p.Tls)
	seen := map[uint32]int{}
	for i, s := range p.PortLevelSettings {
		pp := index(at+".portLevelSettings", i)
		if s.Port == nil {
			c.fail(pp+".port", nil, "missing", "name the port by number")
		} else {
			c.port(pp+".port.number", s.Port.Number)
			if first, dup := seen[s.Port.Number]; dup {
				c.fail(pp+".port.number", s.Port.Number, fmt.Sprintf("same port as portLevelSettings[%d]", first), "keep one of them")
			}
			seen[s.Port.Number] = i
		}
		c.loadBalancer(pp+".loadBalancer", s.LoadBalancer)
		c.connectionPool(pp+".connectionPool", s.ConnectionPool)
		c.outlierDetection(pp+".outlierDetection", s.OutlierDetection)
		c.clientTLS(pp+".tls", s.Tls)
	}
	if t := p.Tunnel; t != nil {
		if t.Protocol != "" && t.Protocol != "CONNECT" && t.Protocol != "POST" {
			c.fail(at+".tunnel.protocol", t.Protocol, "unknown tunnel protocol", "use CONNECT or POST")
		}
		if strings.Contains(t.TargetHost, "*") {
			c.fail(at+".tunnel.targetHost", t.TargetHost, "a tunnel cannot lead to a wildcard", "name one host")
		} else {
			c.host(at+".tunnel.targetHost", t.TargetHost)
		}
		c.port(at+".tunnel.targetPort", t.TargetPort)
	}
	if b := p.RetryBudget; b.GetPercent() != nil {
		c.percent(at+".retryBudget.percent", b.Percent.Value)
	}
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
	c.notNegative(at+".consecutiveErrors", o.ConsecutiveErrors)
	if o.ConsecutiveLocalOriginFailures != nil && !o.SplitExternalLocalOriginErrors {
		c.fail(at+".consecutiveLocalOriginFailures", o.ConsecutiveLocalOriginFailures.Value, "has no effect unless splitExternalLocalOriginErrors is true", "set splitExternalLocalOriginErrors: true")
	}
	for i, code := range o.OutlierDetectionHttpErrorCodes {
		if code < 100 || code > 599 {
			c.fail(index(at+".outlierDetectionHttpErrorCodes", i), code, "no HTTP status", "use 100 to 599")
		}
	}
}

func (c *checker) connectionPool(at string, p *networking.ConnectionPoolSettings) {
	if p == nil {
		return
	}
	if p.Http == nil && p.Tcp == nil {
		c.fail(at, nil, "connection pool sets nothing", "set tcp or http")
	}
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
			c.needed(at+".http.http2KeepAlive.interval", k.Interval)
			c.needed(at+".http.http2KeepAlive.timeout", k.Timeout)
		}
	}
	if t := p.Tcp; t != nil {
		c.notNegative(at+".tcp.maxConnections", t.MaxConnections)
		c.duration(at+".tcp.connectTimeout", t.ConnectTimeout)
		c.duration(at+".tcp.maxConnectionDuration", t.MaxConnectionDuration)
		if d := t.IdleTimeout; d.GetSeconds() != 0 || d.GetNanos() != 0 { // 0s switches it off
			c.duration(at+".tcp.idleTimeout", d)
		}
		c.keepalive(at+".tcp.tcpKeepalive", t.TcpKeepalive)
	}
}

// keepalive times are whole seconds for the operating system's socket options.
func (c *checker) keepalive(at string, k *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive) {
	if k == nil {
		return
	}
	c.duration(at+".time", k.Time)
	c.duration(at+".interval", k.Interval)
	if k.Time != nil && k.Time.GetNanos() != 0 {
		c.fail(at+".time", k.Time.AsDuration(), "not a whole number of seconds", "round it")
	}
	if k.Interval != nil && k.Interval.GetNanos() != 0 {
		c.fail(at+".interval", k.Interval.AsDuration(), "not a whole number of seconds", "round it")
	}
}

// needed is duration for a value that has no default.
func (c *checker) needed(at string, d *durationpb.Duration) {
	if d == nil {
		c.fail(at, nil, "missing", `set a time, like "10s"`)
		return
	}
	c.duration(at, d)
}

func (c *checker) notNegative(at string, n int32) {
	if n < 0 {
		c.fail(at, n, "negative", "use 0 (the default) or more")
	}
}

// clientTLS checks how a connection to the destination is secured: certificates come either by file or by credential name.
func (c *checker) clientTLS(at string, t *networking.ClientTLSSettings) {
	if t == nil {
		return
	}
	c.credentialName(at+".credentialName", t.CredentialName)
	files := t.ClientCertificate != "" || t.PrivateKey != "" || t.CaCertificates != ""
	if t.CredentialName != "" && files {
		c.fail(at+".credentialName", t.CredentialName, "cannot be combined with clientCertificate, privateKey or caCertificates", "keep credentialName, or the files")
	}
	switch t.Mode {
	case networking.ClientTLSSettings_MUTUAL:
		if t.CredentialName == "" {
			if t.ClientCertificate == "" {
				c.fail(at+".clientCertificate", nil, "missing in mode MUTUAL", "set clientCertificate and privateKey, or credentialName")
			}
			if t.PrivateKey == "" {
				c.fail(at+".privateKey", nil, "missing in mode MUTUAL", "set clientCertificate and privateKey, or credentialName")
			}
		}
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		if files || t.CredentialName != "" {
			c.fail(at+".mode", "ISTIO_MUTUAL", "uses the workload's own certificate, none can be given", "remove the certificates, or use MUTUAL")
		}
	case networking.ClientTLSSettings_SIMPLE:
		if t.ClientCertificate != "" || t.PrivateKey != "" {
			c.warn(at+".clientCertificate", verdict{"mode SIMPLE shows the server no certificate", "use MUTUAL, or remove clientCertificate and privateKey"})
		}
	case networking.ClientTLSSettings_DISABLE:
		if files || t.CredentialName != "" || t.Sni != "" || len(t.SubjectAltNames) > 0 || t.InsecureSkipVerify.GetValue() || t.CaCrl != "" {
			c.warn(at, verdict{"mode DISABLE, which is also the default, connects without TLS", "set mode, or leave mode alone in tls"})
		}
	}
	if t.InsecureSkipVerify.GetValue() && (t.CaCertificates != "" || len(t.SubjectAltNames) > 0 || t.CaCrl != "") {
		c.fail(at+".insecureSkipVerify", true, "contradicts caCertificates, subjectAltNames and caCrl", "remove insecureSkipVerify")
	}
	if t.CaCrl != "" && (t.CredentialName != "" || t.Mode == networking.ClientTLSSettings_ISTIO_MUTUAL) {
		c.fail(at+".caCrl", t.CaCrl, "goes with caCertificates alone", "remove it; a Secret has its own list, in ca.crl")
	}
	if t.Sni != "" && !fqdn(t.Sni) {
		c.fail(at+".sni", t.Sni, "not a server name", "use a DNS name")
	}
	for i, san := range t.SubjectAltNames {
		if san == "" {
			c.fail(index(at+".subjectAltNames", i), nil, "empty name", "remove it")
		}
		c.printable(index(at+".subjectAltNames", i), san)
	}
	c.askable(at+".clientCertificate", t.ClientCertificate)
	c.askable(at+".privateKey", t.PrivateKey)
	c.askable(at+".caCertificates", t.CaCertificates)
	c.askable(at+".caCrl", t.CaCrl)
}
