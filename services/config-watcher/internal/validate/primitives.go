package validate

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/proxytext"
)

// Limits of single values, in bytes.
const (
	maxHeaderName  = 256
	maxHeaderValue = 16 << 10
	maxCaption     = 256
	maxAuthority   = 262 // a name of 255 bytes and a port
)

var (
	dnsLabelRE  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	hostLabelRE = regexp.MustCompile(`^[a-zA-Z0-9_]([-a-zA-Z0-9_]*[a-zA-Z0-9_])?$`)
	nameLabelRE = regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$`)
	portNameRE  = regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?$`)
	labelKeyRE  = regexp.MustCompile(`^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`)
	// tokenRE is RFC 9110's token: the characters of a header's or a method's name.
	tokenRE = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
)

func dnsLabel(s string) bool { return len(s) <= 63 && dnsLabelRE.MatchString(s) }

func dnsSubdomain(s string) bool {
	if len(s) == 0 || len(s) > 253 {
		return false
	}
	return lists.All(strings.Split(s, "."), dnsLabelRE.MatchString)
}

// fqdn reports whether s is a short or dotted name, with or without a trailing dot.
func fqdn(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if len(s) == 0 || len(s) > 255 {
		return false
	}
	return !slices.ContainsFunc(strings.Split(s, "."), func(l string) bool { return len(l) > 63 || !hostLabelRE.MatchString(l) })
}

// dnsName reports whether s is a name in the DNS: labels of letters, digits and '-', the last one not a number, with or
// without a trailing dot.
func dnsName(s string) bool {
	return nameProblem(s) == "" && nameProblem(strings.TrimSuffix(s, ".")) == ""
}

func nameLabel(s string) bool { return len(s) <= 63 && nameLabelRE.MatchString(s) }

// PartialWildcard reports whether a host such as "*-a.example.com" has a wildcard that is only a part of the first
// label.
func PartialWildcard(host string) bool {
	return strings.HasPrefix(host, "*") && host != "*" && !strings.HasPrefix(host, "*.")
}

func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

func (c *checker) ipOrCIDR(path, s string) {
	if strings.Contains(s, "/") {
		if _, err := netip.ParsePrefix(s); err != nil {
			c.fail(path, s, "not a valid CIDR block", `write it like "10.1.0.0/16"`)
		}
		return
	}
	c.failIf(!isIP(s), path, s, "not a valid IP address or CIDR block", `write it like "10.1.2.3" or "10.1.0.0/16"`)
}

func (c *checker) ip(path, s string) {
	c.failIf(!isIP(s), path, s, "not an IP address", "correct it")
}

func checkPort[N int32 | uint32](c *checker, path string, n N) {
	c.failIf(n < 1 || n > 65535, path, n, "not a port", "use 1 to 65535")
}

func (c *checker) portName(path, s string) {
	if s == "" {
		c.fail(path, nil, "port has no name", `name it after its protocol, such as "http"`)
		return
	}
	c.failIf(len(s) > 63 || !portNameRE.MatchString(s), path, s, "not a valid port name", "use at most 63 letters, digits and '-'")
}

// entryPortName is portName where Istio requires a DNS label.
func (c *checker) entryPortName(path, s string) {
	if s == "" || nameLabel(s) {
		c.portName(path, s)
		return
	}
	c.fail(path, s, "not a valid port name", "use at most 63 letters, digits and '-'")
}

// label checks one key: value pair of labels or of a selector.
func (c *checker) label(path, key, value string) {
	at := field(path, key)
	c.failIf(!labelKey(key), at, key, "not a valid label name",
		"use at most 63 letters, digits, '-', '_' and '.', with an optional DNS prefix")
	c.failIf(!labelValue(value), at, value, "not a valid label value", "use at most 63 letters, digits, '-', '_' and '.'")
}

func labelKey(key string) bool {
	prefix, name, hasPrefix := strings.Cut(key, "/")
	if !hasPrefix {
		name = key
	}
	return (!hasPrefix || dnsSubdomain(prefix)) && len(name) <= 63 && labelKeyRE.MatchString(name)
}

func labelValue(value string) bool {
	return value == "" || len(value) <= 63 && labelKeyRE.MatchString(value)
}

func (c *checker) labels(path string, m map[string]string) {
	for _, k := range sortedKeys(m) {
		c.label(path, k, m[k])
	}
}

// protocols are the protocols that Istio knows for a port.
var protocols = []string{"HTTP", "HTTPS", "HTTP2", "GRPC", "GRPC-WEB", "MONGO", "REDIS", "MYSQL", "TCP", "TLS", "UDP"}

func (c *checker) protocol(path, s string, more ...string) {
	known := append(append([]string(nil), protocols...), more...)
	if !slices.Contains(known, strings.ToUpper(s)) {
		c.fail(path, s, "unknown protocol", suggestion(s, known))
	}
}

// durationText checks the text of a duration: Go's form, which includes protobuf's ("1.5s").
func (c *checker) durationText(path string, v any) {
	s, ok := v.(string)
	if !ok {
		c.fail(path, v, "expected a duration, found "+typeName(v), `write it with its unit, like "0.5s"`)
		return
	}
	if _, err := time.ParseDuration(s); err != nil {
		c.fail(path, s, "not a duration", `write it with its unit, like "0.5s", "10ms" or "1h30m"`)
	}
}

// duration checks a duration of at least one millisecond, the resolution of Envoy's timers.
func (c *checker) duration(path string, d *durationpb.Duration) {
	if d == nil {
		return
	}
	if !c.durationRange(path, d) {
		return
	}
	if d.AsDuration() < time.Millisecond {
		c.fail(path, d.AsDuration(), "shorter than 1ms", "use at least 1ms, or leave it out for the default")
	} else if d.AsDuration()%time.Millisecond != 0 {
		c.fail(path, d.AsDuration(), "finer than a millisecond", "round it to milliseconds")
	}
}

func (c *checker) durationRange(path string, d *durationpb.Duration) bool {
	if err := d.CheckValid(); err != nil {
		c.fail(path, fmt.Sprintf("%ds", d.GetSeconds()), "duration out of range", "use at most 290 years")
		return false
	}
	return true
}

func (c *checker) percent(path string, v float64) {
	c.failIf(!(v >= 0 && v <= 100), path, v, "not a percentage", "use 0 to 100")
}

// regex checks that Envoy compiles the expression and that it is not too large.
func (c *checker) regex(path, s string) bool {
	if err := proxytext.Regex(s); err != nil {
		c.fail(path, s, err.Error(), "see https://github.com/google/re2/wiki/Syntax")
		return false
	}
	// Istio's webhook reads characters, Envoy reads bytes.
	if _, err := regexp.Compile(s); err != nil {
		c.fail(path, s, "not a regular expression in RE2 syntax: "+strings.TrimPrefix(err.Error(), "error parsing regexp: "),
			"see https://github.com/google/re2/wiki/Syntax")
		return false
	}
	return true
}

func (c *checker) headerName(path, s string) {
	c.failIf(len(s) > maxHeaderName || !tokenRE.MatchString(s), path, s, "not a valid header name", "use letters, digits and '-'")
}

func (c *checker) token(path, s, what string) {
	c.failIf(!tokenRE.MatchString(s), path, s, "not a valid "+what, "use letters, digits and '-'")
}

// exporter says whose exportTo a list is.
type exporter struct {
	// service is true for a Service, a ServiceEntry and MeshConfig's defaults, which may have "~": exported to no
	// namespace.
	service bool
	// selective is true for a DestinationRule with a workloadSelector, which applies in its own namespace alone.
	selective bool
}

// exportTo checks a list of namespaces: names, "." for the object's own namespace, or "*" or "~" alone.
func (c *checker) exportTo(path string, list []string, of exporter) {
	seen := map[string]bool{}
	for i, s := range list {
		to, named := s, s != "." && s != "*" && s != "~"
		if s == "." {
			to = c.namespace
		}
		switch at := index(path, i); {
		case seen[to]:
			c.fail(at, s, "listed twice", `keep one of them; "." is the object's own namespace`)
		case s == "~" && !of.service:
			c.fail(at, s, "only a service can be exported to nobody", `write "." for the object's own namespace, or delete the object`)
		case named && !nameLabel(s):
			c.fail(at, s, "not a namespace", `use a namespace, "." for the object's own or "*" for all`)
		case of.selective && to != c.namespace:
			c.fail(at, s, "a rule with workloadSelector is about workloads of its own namespace alone", `remove it, or write "."`)
		case named:
			c.possibleNamespace(at, s)
		}
		seen[to] = true
	}
	for _, alone := range []string{"~", "*"} {
		if seen[alone] && len(list) > 1 && (alone == "*" || of.service) {
			c.fail(path, nil, fmt.Sprintf("%q cannot be combined with other entries", alone), "keep it alone, or list namespaces only")
			break
		}
	}
}

// workloadLabels checks the labels of a selector. It refuses wildcards, which Istio compares as text. It accepts, as
// Istio does, a label that no workload can have.
func (c *checker) workloadLabels(path string, m map[string]string) {
	for _, k := range sortedKeys(m) {
		switch {
		case k == "":
			c.fail(path, nil, "label name is empty", "name a label")
		case strings.Contains(k, "*") || strings.Contains(m[k], "*"):
			c.fail(field(path, k), m[k], "wildcards are not supported in selectors", "write the label in full")
		case !labelKey(k) || !labelValue(m[k]):
			c.remark(field(path, k), "selects nothing: no workload can have this label", "use at most 63 letters, digits, '-', '_' and '.'")
		}
	}
}

// maxSocketPath is the longest path of a unix socket that Linux binds.
const maxSocketPath = 107

// unixSocket checks an address "unix:///path" or "unix://@abstract".
func (c *checker) unixSocket(path, s string) {
	rest := strings.TrimPrefix(s, "unix://")
	if len(rest) < 2 || rest[0] != '/' && rest[0] != '@' || strings.HasSuffix(rest, "/") {
		c.fail(path, s, "not a unix socket", `write "unix:///path/of/socket" or "unix://@name"`)
	}
	if len(rest) > maxSocketPath {
		c.fail(path, s, fmt.Sprintf("path of %d bytes, at most %d are possible", len(rest), maxSocketPath), "choose a shorter one")
	}
}
