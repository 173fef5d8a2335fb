package networking

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// wildcardLabelRE matches the first label of a host, which may be a wildcard or begin with one.
var wildcardLabelRE = regexp.MustCompile(`^(\*|(\*-?)?[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)$`)

// hostProblem returns why Istio's webhook refuses a host; "" if it does not. An IP address is no host. A host of one
// label may be a number, since a Service's name may.
func hostProblem(s string) string {
	first, rest, dotted := strings.Cut(s, ".")
	switch {
	case s == "":
		return "host is empty"
	case len(s) > 255:
		return "host is longer than 255 characters"
	case check.IsIP(s):
		return "an address is no host here"
	case len(first) > 63 || !wildcardLabelRE.MatchString(first):
		return fmt.Sprintf("%q is not a valid part of a host", first)
	case dotted && first == "*" && rest == "":
		return "a wildcard needs a domain"
	case dotted:
		return domainProblem(rest)
	}
	return ""
}

// nameProblem is hostProblem for a name without wildcard.
func nameProblem(s string) string {
	switch {
	case s == "":
		return "name is empty"
	case len(s) > 255:
		return "name is longer than 255 characters"
	}
	return domainProblem(s)
}

func domainProblem(s string) string {
	labels := strings.Split(s, ".")
	last := labels[len(labels)-1]
	if _, err := strconv.Atoi(last); err == nil {
		return fmt.Sprintf("the last part, %q, is a number", last)
	}
	if last == "" {
		labels = labels[:len(labels)-1]
	}
	for _, l := range labels {
		if !check.NameLabel(l) {
			return fmt.Sprintf("%q is not a valid part of a host", l)
		}
	}
	return ""
}

// dnsName reports whether s is a name in the DNS: labels of letters, digits and '-', the last one not a number, with or
// without a trailing dot.
func dnsName(s string) bool {
	return nameProblem(s) == "" && nameProblem(strings.TrimSuffix(s, ".")) == ""
}

const hostRemedy = `use letters, digits, '-' and '.', at most 63 characters between dots; a wildcard is the whole first label: "*.example.com"`

// istioHost checks the host of a route, a rule or a destination.
func (c Checker) istioHost(at, s string) bool {
	switch reason := hostProblem(s); {
	case s == "":
		c.Fail(at, nil, reason, hostRemedy)
	case reason != "":
		c.Fail(at, s, "not a valid host: "+reason, hostRemedy)
	default:
		return true
	}
	return false
}

// wholeWildcard warns of a host that matches hosts of the mesh only by a wildcard within a label.
func (c Checker) wholeWildcard(at, s string) {
	if object.PartialWildcard(s) {
		c.Warn(at, "only a wildcard that is the whole first label matches hosts of the mesh",
			`write "*.example.com", or the hosts one by one`)
	}
}

// covered reports whether a name, or every name of a wildcard, lies within one of the hosts.
func covered(name string, hosts []string) bool {
	for _, h := range hosts {
		suffix, wild := strings.CutPrefix(h, "*")
		if h == name || wild && strings.HasSuffix(strings.TrimPrefix(name, "*"), suffix) {
			return true
		}
	}
	return false
}

// Labels as Istio's webhook accepts them: values of any length, prefixes with upper case.
var (
	looseKeyRE = regexp.MustCompile(
		`^([a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`)
	looseValueRE = regexp.MustCompile(`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`)
)

// looseLabels checks labels that select workloads, and warns of labels that no workload can have.
func (c Checker) looseLabels(path string, m map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		prefix, name, found := strings.Cut(k, "/")
		if !found {
			prefix, name = "", k
		}
		switch at := manifest.Field(path, k); {
		case !looseKeyRE.MatchString(k) || len(prefix) > 253 || len(name) > 63:
			c.Fail(at, k, "not a valid label name", "use at most 63 letters, digits, '-', '_' and '.', with an optional DNS prefix")
		case !looseValueRE.MatchString(m[k]):
			c.Fail(at, m[k], "not a valid label value", "use at most 63 letters, digits, '-', '_' and '.'")
		case !check.LabelKey(k) || !check.LabelValue(m[k]):
			c.noWorkload(at)
		}
	}
}

// noWorkload warns of a label that selects no workload.
func (c Checker) noWorkload(at string) {
	c.Warn(at, "no workload can have such a label",
		"use at most 63 letters, digits, '-', '_' and '.', with an optional DNS prefix in lower case")
}
