package meshconfig

import (
	"net"
	"regexp"
	"strconv"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

// statTag is what a tag of a stat may be called: a label of Prometheus. It becomes part of a regular expression.
var statTag = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// proxyConfig checks what agents and their Envoys could not start with.
func (c checker) proxyConfig(at string, d *mesh.ProxyConfig) {
	c.Duration(at+".drainDuration", d.DrainDuration)
	c.DurationNotNegative(at+".terminationDrainDuration", d.TerminationDrainDuration)
	c.Duration(at+".fileFlushInterval", d.FileFlushInterval)
	c.HeaderValue(at+".proxyHeaders.server.value", d.GetProxyHeaders().GetServer().GetValue())
	c.portNumber(at+".proxyAdminPort", d.ProxyAdminPort)
	c.portNumber(at+".statusPort", d.StatusPort)
	if d.Concurrency != nil {
		c.NotNegative(at+".concurrency", d.Concurrency.Value)
	}
	for i, tag := range d.ExtraStatTags {
		c.FailIf(!statTag.MatchString(tag), manifest.Index(at+".extraStatTags", i), tag, "not a name of a tag", "use letters, digits and _")
	}
	for i, expression := range d.GetProxyStatsMatcher().GetInclusionRegexps() {
		if _, err := regexp.Compile(expression); err != nil {
			c.Fail(manifest.Index(at+".proxyStatsMatcher.inclusionRegexps", i), expression, err.Error(), "write an RE2 expression")
		}
	}
	for i, text := range d.CaCertificatesPem {
		certs, err := tlsconf.ParseCertificates([]byte(text))
		c.FailIf(err != nil || len(certs) == 0, manifest.Index(at+".caCertificatesPem", i), nil, "no certificates", "write certificates in PEM")
	}
	if d.ReadinessProbe != nil {
		c.ReadinessProbe(at+".readinessProbe", d.ReadinessProbe)
	}
	c.serverAddress(at+".discoveryAddress", d.DiscoveryAddress)
	c.serverAddress(at+".statsdUdpAddress", d.StatsdUdpAddress)
	c.serverAddress(at+".envoyMetricsServiceAddress", d.EnvoyMetricsServiceAddress) //nolint:staticcheck // Istio still takes it
	c.serverAddress(at+".envoyMetricsService.address", d.GetEnvoyMetricsService().GetAddress())
	c.serverAddress(at+".envoyAccessLogService.address", d.GetEnvoyAccessLogService().GetAddress())
	c.serverAddress(at+".tracing.zipkin.address", d.GetTracing().GetZipkin().GetAddress())
	c.serverAddress(at+".tracing.datadog.address", d.GetTracing().GetDatadog().GetAddress())
}

// serverAddress checks the address of a server that a proxy connects to on its own; "" is none. $(HOST_IP) stands for
// that of the machine.
func (c checker) serverAddress(at, address string) {
	if address == "" {
		return
	}
	host, port, err := net.SplitHostPort(strings.ReplaceAll(address, "$(HOST_IP)", "192.0.2.1"))
	number, errPort := strconv.ParseUint(port, 10, 16)
	c.FailIf(err != nil || errPort != nil || host == "" || number == 0, at, address, "not the address of a server", "write host:port")
}
