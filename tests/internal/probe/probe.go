// Package probe asks programs under test over HTTP, from wherever the caller dials: whether they are ready, what they
// count, and what Envoy's admin interface knows.
package probe

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Limits of one request. That of readiness is short, because it is asked again.
const (
	within      = time.Minute
	readyWithin = 5 * time.Second
)

// Dial connects to an address as somebody on the machine where a program runs.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Client is an HTTP client without state between requests. It connects by dial; nil is an ordinary connection.
func Client(dial Dial) *http.Client {
	return &http.Client{Timeout: within, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
}

// Unix is a Client that connects to a unix socket whatever the URL says.
func Unix(socket string) *http.Client {
	return Client(func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	})
}

// EnvoyAdmin is the name of the socket of Envoy's admin interface in an agent's state directory.
const EnvoyAdmin = "envoy-admin.sock"

// AgentXDS is the name there of the agent's socket, at which Envoy asks for its configuration.
const AgentXDS = "XDS"

// Get reads a page. Any status but 200 is an error, which begins with the URL.
func Get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, bytes.TrimSpace(raw[:min(len(raw), 1000)]))
	}
	return raw, err
}

// Ready asks a page that is 200 when a program is ready.
func Ready(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	_, err := Get(ctx, client, url)
	return err
}

// Metric reads a counter or gauge of a page of metrics, summed over the label sets that have all of the given labels.
// It is an error if there is none.
func Metric(ctx context.Context, client *http.Client, url, name string, labels map[string]string) (float64, error) {
	raw, err := Get(ctx, client, url)
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(raw))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", url, err)
	}
	sum, found := 0.0, false
	for _, m := range families[name].GetMetric() {
		matching := 0
		for _, pair := range m.GetLabel() {
			if labels[pair.GetName()] == pair.GetValue() {
				matching++
			}
		}
		if matching == len(labels) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			found = true
		}
	}
	if !found {
		return 0, fmt.Errorf("%s has no metric %s with %v", url, name, labels)
	}
	return sum, nil
}

// Stats reads the counters and gauges of an Envoy, through its admin interface, whose names match a regular expression.
// query has further parameters of /stats, or is empty.
func Stats(ctx context.Context, admin *http.Client, filter, query string) (map[string]int64, error) {
	raw, err := Get(ctx, admin, "http://envoy/stats?filter="+url.QueryEscape(filter)+query)
	if err != nil {
		return nil, err
	}
	stats := map[string]int64{}
	for line := range strings.Lines(string(raw)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.ParseInt(value, 10, 64); ok && err == nil {
			stats[name] = n
		}
	}
	return stats, nil
}
