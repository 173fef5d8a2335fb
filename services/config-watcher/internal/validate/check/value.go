package check

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

// maxHeaderValue bounds the text of a header and of a condition on a request, in bytes.
const maxHeaderValue = 16 << 10

var (
	dnsLabelRE  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	hostLabelRE = regexp.MustCompile(`^[a-zA-Z0-9_]([-a-zA-Z0-9_]*[a-zA-Z0-9_])?$`)
	nameLabelRE = regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$`)
	portNameRE  = regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?$`)
	labelKeyRE  = regexp.MustCompile(`^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`)
)

// DNSLabel reports whether s is a label of the DNS in lower case, as Kubernetes asks for.
func DNSLabel(s string) bool { return len(s) <= 63 && dnsLabelRE.MatchString(s) }

// DNSSubdomain reports whether s is labels of the DNS in lower case, joined by dots.
func DNSSubdomain(s string) bool {
	if len(s) == 0 || len(s) > 253 {
		return false
	}
	return lists.All(strings.Split(s, "."), dnsLabelRE.MatchString)
}

// FQDN reports whether s is a short or dotted name, with or without a trailing dot.
func FQDN(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if len(s) == 0 || len(s) > 255 {
		return false
	}
	return !slices.ContainsFunc(strings.Split(s, "."), func(l string) bool { return len(l) > 63 || !hostLabelRE.MatchString(l) })
}

// NameLabel is DNSLabel with upper case.
func NameLabel(s string) bool { return len(s) <= 63 && nameLabelRE.MatchString(s) }

// IsIP reports whether s is an IP address.
func IsIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// IPOrCIDR checks an IP address or a block of them.
func (c *Checker) IPOrCIDR(path, s string) {
	if strings.Contains(s, "/") {
		if _, err := netip.ParsePrefix(s); err != nil {
			c.Fail(path, s, "not a valid CIDR block", `write it like "10.1.0.0/16"`)
		}
		return
	}
	c.FailIf(!IsIP(s), path, s, "not a valid IP address or CIDR block", `write it like "10.1.2.3" or "10.1.0.0/16"`)
}

// IP checks an IP address.
func (c *Checker) IP(path, s string) {
	c.FailIf(!IsIP(s), path, s, "not an IP address", "correct it")
}

// Port checks a number of a port.
func Port[N int32 | uint32](v *decode.Verdict, path string, n N) {
	v.FailIf(n < 1 || n > 65535, path, n, "not a port", "use 1 to 65535")
}

// PortName checks the name of a port.
func (c *Checker) PortName(path, s string) {
	if s == "" {
		c.Fail(path, nil, "port has no name", `name it after its protocol, such as "http"`)
		return
	}
	c.FailIf(len(s) > 63 || !portNameRE.MatchString(s), path, s, "not a valid port name", "use at most 63 letters, digits and '-'")
}

// Label checks one key: value pair of labels or of a selector.
func (c *Checker) Label(path, key, value string) {
	at := manifest.Field(path, key)
	c.FailIf(!LabelKey(key), at, key, "not a valid label name",
		"use at most 63 letters, digits, '-', '_' and '.', with an optional DNS prefix")
	c.FailIf(!LabelValue(value), at, value, "not a valid label value", "use at most 63 letters, digits, '-', '_' and '.'")
}

// LabelKey reports whether a label can have the key.
func LabelKey(key string) bool {
	prefix, name, hasPrefix := strings.Cut(key, "/")
	if !hasPrefix {
		name = key
	}
	return (!hasPrefix || DNSSubdomain(prefix)) && len(name) <= 63 && labelKeyRE.MatchString(name)
}

// LabelValue reports whether a label can have the value.
func LabelValue(value string) bool {
	return value == "" || len(value) <= 63 && labelKeyRE.MatchString(value)
}

// Labels checks labels, or a selector that is a map of them.
func (c *Checker) Labels(path string, m map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		c.Label(path, k, m[k])
	}
}

// Duration checks a duration of at least one millisecond, the resolution of Envoy's timers.
func (c *Checker) Duration(path string, d *durationpb.Duration) {
	if d == nil || !c.DurationRange(path, d) {
		return
	}
	if d.AsDuration() < time.Millisecond {
		c.Fail(path, d.AsDuration(), "shorter than 1ms", "use at least 1ms, or leave it out for the default")
	} else if d.AsDuration()%time.Millisecond != 0 {
		c.Fail(path, d.AsDuration(), "finer than a millisecond", "round it to milliseconds")
	}
}

// DurationRange checks that Go has a duration of the length, and returns false if it does not.
func (c *Checker) DurationRange(path string, d *durationpb.Duration) bool {
	if err := d.CheckValid(); err != nil {
		c.Fail(path, fmt.Sprintf("%ds", d.GetSeconds()), "duration out of range", "use at most 290 years")
		return false
	}
	return true
}

// Percent checks a percentage.
func (c *Checker) Percent(path string, v float64) {
	c.FailIf(!(v >= 0 && v <= 100), path, v, "not a percentage", "use 0 to 100")
}

// DurationNotNegative checks a duration that may be 0.
func (c *Checker) DurationNotNegative(path string, d *durationpb.Duration) {
	if d != nil && c.DurationRange(path, d) && d.AsDuration() < 0 {
		c.Fail(path, d.AsDuration(), "negative", "use 0s or more")
	}
}

// NotNegative checks a number that may be 0.
func (c *Checker) NotNegative(at string, n int32) {
	c.FailIf(n < 0, at, n, "negative", "use 0 (the default) or more")
}

// OneOf checks that each item of a list is known.
func (c *Checker) OneOf(at string, list []string, reason string, known []string) {
	for i, s := range list {
		if !slices.Contains(known, s) {
			c.Fail(manifest.Index(at, i), s, reason, decode.Suggest(s, known))
		}
	}
}

// HeaderValue refuses characters that no header has (RFC 9110 §5.5).
func (c *Checker) HeaderValue(at, s string) {
	c.FailIf(len(s) > maxHeaderValue, at, nil, "longer than 16 KiB", "shorten it")
	switch {
	case strings.ContainsAny(s, "\r\n\x00"):
		c.Fail(at, s, "contains a line break or a NUL", "remove it")
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		c.Fail(at, s, "contains a control character", "remove it")
	}
}

// Printable refuses control characters, and returns false if there are some. No request line and no header has them,
// and they would forge lines of a log.
func (c *Checker) Printable(at, s string) bool {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return true
	}
	c.Fail(at, s, "contains a control character", "remove it")
	return false
}

// MatchText checks the text that a part of a request is compared with.
func (c *Checker) MatchText(at, s string) {
	if len(s) > maxHeaderValue {
		c.Fail(at, nil, "longer than 16 KiB", "shorten it")
		return
	}
	c.Printable(at, s)
}
