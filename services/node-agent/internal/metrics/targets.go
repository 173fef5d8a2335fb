// Package metrics answers scrapes of /stats/prometheus with the metrics of Envoy, the application and the agent as one
// exposition, as Istio's agent does. Package config calls ParseTargets, package app registers Handler.
package metrics

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Variable is the environment variable with the application's scrape annotations, which injection writes.
const Variable = "ISTIO_PROMETHEUS_ANNOTATIONS"

const (
	maxText    = 64 << 10
	maxTargets = 32
)

// Target is one endpoint of the application with metrics.
type Target struct {
	Port uint16
	URL  string
}

// reserved are the ports of the proxy, none of which has metrics of the application.
var reserved = map[uint16]string{
	15000: "Envoy's admin interface", 15001: "outbound connections", 15004: "debugging", 15006: "inbound connections",
	15008: "tunnels between proxies",
	15020: "the agent, which merges the metrics", 15021: "Envoy's readiness", 15053: "DNS", 15090: "Envoy's metrics, which are merged already",
}

// ParseTargets reads the value of Variable. It returns no targets for an empty text and for scrape=false; without port
// and path they are 80 and /metrics. own are ports of agent and Envoy besides those that Istio reserves: scraping them
// would never end.
func ParseTargets(text string, own ...uint16) ([]Target, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > maxText {
		return nil, fmt.Errorf("%s is %d bytes: at most %d are read", Variable, len(text), maxText)
	}
	type endpoint struct {
		Port string `json:"port"`
		Path string `json:"path"`
	}
	var a struct {
		Scrape string `json:"scrape"`
		endpoint
		Targets []endpoint `json:"targets"`
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return nil, fmt.Errorf(`%s: want JSON such as {"scrape":"true","port":"8080","path":"/metrics"}: %w`, Variable, err)
	}
	if a.Scrape == "false" {
		return nil, nil
	}
	if len(a.Targets) > maxTargets {
		return nil, fmt.Errorf("%s has %d targets: at most %d are read", Variable, len(a.Targets), maxTargets)
	}
	if len(a.Targets) == 0 {
		a.Port = cmp.Or(a.Port, "80")
		a.Targets = []endpoint{a.endpoint}
	}
	var out []Target
	var errs []error
	for _, e := range a.Targets {
		t, err := target(e.Port, e.Path, own)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w: correct the Pod's annotations prometheus.io/port and prometheus.io/path", Variable, err))
			continue
		}
		out = append(out, t)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

func target(port, path string, own []uint16) (Target, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return Target{}, fmt.Errorf("port %.64q: want a number, 1 to 65535", port)
	}
	number := uint16(n)
	if use, taken := reserved[number]; taken {
		return Target{}, fmt.Errorf("port %d is that of %s", number, use)
	}
	if slices.Contains(own, number) {
		return Target{}, fmt.Errorf("port %d is the proxy's own", number)
	}
	path = cmp.Or(path, "/metrics")
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	u, err := url.Parse("http://" + net.JoinHostPort("localhost", strconv.Itoa(int(number))) + path)
	if err != nil {
		return Target{}, fmt.Errorf("path %.200q: want a path of a URL", path)
	}
	u.Fragment = ""
	return Target{Port: number, URL: u.String()}, nil
}
