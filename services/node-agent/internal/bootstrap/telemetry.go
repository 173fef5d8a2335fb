package bootstrap

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// Telemetry says which stats Envoy keeps, and where it sends stats, access logs and traces. TelemetryFrom makes it of a
// ProxyConfig and the Pod's annotations.
type Telemetry struct {
	Matcher StatsMatcher
	// ExtraTags are names of tags that may be in the names of stats.
	ExtraTags []string
	// Buckets are the upper bounds of histograms whose names begin with Prefix.
	Buckets []Buckets
	// Flush and Eviction are intervals of Envoy's stats, 0 for Envoy's default.
	Flush, Eviction time.Duration
	// Compression lets Envoy compress its metrics for scrapers that accept it.
	Compression bool
	// Tracer is nil if Envoy has none of its own.
	Tracer *Tracer
	// Metrics and AccessLog are gRPC services; nil without one.
	Metrics, AccessLog *Remote
	// StatsdAddress is where Envoy sends stats in statsd's format by UDP; "" for nowhere. A caller that has resolved
	// the name sets Statsd of Input.
	StatsdAddress string
}

// Buckets are the buckets of some histograms.
type Buckets struct {
	Prefix string
	Bounds []float64
}

// Tracer is a collector of traces.
type Tracer struct {
	// Datadog is false for Zipkin.
	Datadog bool
	Remote  Remote
}

// Remote is a server that Envoy connects to on its own.
type Remote struct {
	Host      string
	Port      uint16
	TLS       *networking.ClientTLSSettings
	Keepalive *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive
}

// Annotations of a Pod about stats. The lists are comma separated.
const (
	prefixesAnnotation = "sidecar.istio.io/statsInclusionPrefixes"
	suffixesAnnotation = "sidecar.istio.io/statsInclusionSuffixes"
	regexpsAnnotation  = "sidecar.istio.io/statsInclusionRegexps"
	tagsAnnotation     = "sidecar.istio.io/extraStatTags"
	bucketsAnnotation  = "sidecar.istio.io/statsHistogramBuckets"
	flushAnnotation    = "sidecar.istio.io/statsFlushInterval"
	evictionAnnotation = "sidecar.istio.io/statsEvictionInterval"
)

// hostIP in an address stands for the IP address of the machine, which Istio's injection puts into a variable.
const hostIP = "$(HOST_IP)"

// defaultFlush is Envoy's stats_flush_interval.
const defaultFlush = 5 * time.Second

// tagName is what a tag of a stat may be called: a label of Prometheus. It becomes part of a regular expression.
var tagName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// TelemetryFrom reads a ProxyConfig and the annotations of a Pod, which replace lists of the ProxyConfig. addresses are
// the workload's, of which {pod_ip} in a pattern stands for each, host is the machine's for $(HOST_IP). Its error names
// every field and annotation to correct; warnings name what this Envoy cannot do.
func TelemetryFrom(pc *meshv1alpha1.ProxyConfig, annotations map[string]string, addresses []string, host string) (t Telemetry,
	warnings []string, err error) {
	var errs []error
	matcher := pc.GetProxyStatsMatcher()
	pick := func(annotation string, otherwise []string) []string {
		values := otherwise
		if text := annotations[annotation]; text != "" {
			values = strings.Split(text, ",")
		}
		var out []string
		for _, v := range values {
			v = strings.TrimSpace(v)
			switch {
			case v == "":
			case strings.Contains(v, "{pod_ip}"):
				for _, a := range addresses {
					out = append(out, strings.ReplaceAll(v, "{pod_ip}", a))
				}
			default:
				out = append(out, v)
			}
		}
		return out
	}
	t.Matcher = StatsMatcher{
		Prefixes: pick(prefixesAnnotation, matcher.GetInclusionPrefixes()),
		Suffixes: pick(suffixesAnnotation, matcher.GetInclusionSuffixes()),
		Regexps:  pick(regexpsAnnotation, matcher.GetInclusionRegexps()),
	}
	for _, expression := range t.Matcher.Regexps {
		if _, err := regexp.Compile(expression); err != nil {
			errs = append(errs, fmt.Errorf("proxyStatsMatcher.inclusionRegexps, or annotation %s: %w: write an RE2 expression", regexpsAnnotation,
				err))
		}
	}
	t.ExtraTags = slices.Concat(pick("", pc.GetExtraStatTags()), pick(tagsAnnotation, nil))
	slices.Sort(t.ExtraTags)
	t.ExtraTags = slices.Compact(t.ExtraTags)
	for _, tag := range t.ExtraTags {
		if !tagName.MatchString(tag) {
			errs = append(errs, fmt.Errorf("extraStatTags, or annotation %s: %q: want letters, digits and _, as in destination_zone", tagsAnnotation,
				tag))
		}
	}
	t.Compression = pc.GetStatsCompression() == nil || pc.GetStatsCompression().GetValue()
	var problem error
	t.Buckets, problem = buckets(annotations[bucketsAnnotation])
	errs = append(errs, problem)
	errs = append(errs, t.intervals(annotations))

	remote := func(field, address string, tls *networking.ClientTLSSettings,
		keepalive *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive) *Remote {
		r, problem := remoteAt(field, address, host)
		if problem == nil {
			problem = checkTLS(field, tls)
		}
		errs = append(errs, problem)
		r.TLS, r.Keepalive = tls, keepalive
		return &r
	}
	if s := pc.GetEnvoyMetricsService(); s.GetAddress() != "" {
		t.Metrics = remote("envoyMetricsService.address", s.GetAddress(), s.GetTlsSettings(), s.GetTcpKeepalive())
	} else if address := pc.GetEnvoyMetricsServiceAddress(); address != "" { //nolint:staticcheck // Istio still reads it
		t.Metrics = remote("envoyMetricsServiceAddress", address, nil, nil)
	}
	if s := pc.GetEnvoyAccessLogService(); s.GetAddress() != "" {
		t.AccessLog = remote("envoyAccessLogService.address", s.GetAddress(), s.GetTlsSettings(), s.GetTcpKeepalive())
	}
	if address := pc.GetStatsdUdpAddress(); address != "" {
		r := remote("statsdUdpAddress", address, nil, nil)
		t.StatsdAddress = net.JoinHostPort(r.Host, strconv.Itoa(int(r.Port)))
	}
	tracing := pc.GetTracing()
	switch tracer := tracing.GetTracer().(type) {
	case *meshv1alpha1.Tracing_Zipkin_:
		t.Tracer = &Tracer{Remote: *remote("tracing.zipkin.address", tracer.Zipkin.GetAddress(), tracing.GetTlsSettings(), nil)}
	case *meshv1alpha1.Tracing_Datadog_:
		t.Tracer = &Tracer{Datadog: true, Remote: *remote("tracing.datadog.address", tracer.Datadog.GetAddress(), tracing.GetTlsSettings(), nil)}
	case nil:
	default:
		warnings = append(warnings, "ProxyConfig tracing: Envoy has no tracer for Lightstep, Stackdriver or OpenCensus any more, so there is "+
			"none: use zipkin or datadog")
	}
	return t, warnings, errors.Join(errs...)
}

// intervals reads how often Envoy hands its stats to sinks, and after how many such times it forgets unused ones.
func (t *Telemetry) intervals(annotations map[string]string) error {
	for _, each := range []struct {
		annotation string
		into       *time.Duration
	}{{flushAnnotation, &t.Flush}, {evictionAnnotation, &t.Eviction}} {
		text := annotations[each.annotation]
		if text == "" {
			continue
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Millisecond || d >= 5*time.Minute {
			return fmt.Errorf("annotation %s: %q: want a duration from 1ms to less than 5m, as in 10s", each.annotation, text)
		}
		*each.into = d
	}
	if flush := cmp.Or(t.Flush, defaultFlush); t.Eviction%flush != 0 {
		return fmt.Errorf("annotation %s: %s is no multiple of the flush interval %s (%s)", evictionAnnotation, t.Eviction, flush,
			flushAnnotation)
	}
	return nil
}

// buckets parses JSON of upper bounds by the prefix of histograms' names.
func buckets(text string) ([]Buckets, error) {
	if text == "" {
		return nil, nil
	}
	var byPrefix map[string][]float64
	if err := json.Unmarshal([]byte(text), &byPrefix); err != nil {
		return nil, fmt.Errorf(`annotation %s: %w: want JSON as in {"istio":[1,5,10]}`, bucketsAnnotation, err)
	}
	var out []Buckets
	for _, prefix := range slices.Sorted(maps.Keys(byPrefix)) {
		bounds := byPrefix[prefix]
		slices.Sort(bounds)
		if prefix == "" || len(bounds) == 0 || bounds[0] <= 0 || len(slices.Compact(slices.Clone(bounds))) != len(bounds) {
			return nil, fmt.Errorf("annotation %s: %q: want a prefix, and numbers above 0 that differ", bucketsAnnotation, prefix)
		}
		out = append(out, Buckets{prefix, bounds})
	}
	return out, nil
}

// remoteAt parses the address of a server.
func remoteAt(field, address, machine string) (Remote, error) {
	if machine != "" {
		if strings.Contains(machine, ":") && !strings.Contains(address, "["+hostIP+"]") {
			machine = "[" + machine + "]"
		}
		address = strings.ReplaceAll(address, hostIP, machine)
	}
	host, port, err := net.SplitHostPort(address)
	number, errPort := strconv.ParseUint(port, 10, 16)
	if err != nil || errPort != nil || host == "" || number == 0 {
		return Remote{}, fmt.Errorf("ProxyConfig %s %q: want host:port", field, address)
	}
	return Remote{Host: host, Port: uint16(number)}, nil
}

// checkTLS refuses modes that this connection cannot have.
func checkTLS(field string, tls *networking.ClientTLSSettings) error {
	section, _, _ := strings.Cut(field, ".")
	at := "ProxyConfig " + section + ".tlsSettings"
	switch tls.GetMode() {
	case networking.ClientTLSSettings_DISABLE, networking.ClientTLSSettings_ISTIO_MUTUAL:
	case networking.ClientTLSSettings_SIMPLE, networking.ClientTLSSettings_MUTUAL:
		if tls.GetCredentialName() != "" {
			return fmt.Errorf("%s.credentialName: secrets of the cluster are for gateways: use caCertificates, clientCertificate and privateKey, "+
				"which are files", at)
		}
		if tls.GetMode() == networking.ClientTLSSettings_MUTUAL && (tls.GetClientCertificate() == "" || tls.GetPrivateKey() == "") {
			return fmt.Errorf("%s: mode MUTUAL needs clientCertificate and privateKey", at)
		}
	default:
		return fmt.Errorf("%s.mode %s: want DISABLE, SIMPLE, MUTUAL or ISTIO_MUTUAL", at, tls.GetMode())
	}
	return nil
}
