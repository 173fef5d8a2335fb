// Package probe asks a process whether it is ready: the readiness probes of Pods, and those of Fairlead's own services
// and agents.
package probe

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"fairlead.dev/services/installer/internal/local/plan"
)

// client follows no redirect: as for kubelet, any status from 200 to 399 is success.
var client = &http.Client{
	Transport: &http.Transport{
		DisableKeepAlives: true,
		// A probe asks whether the server answers, not who it is (Kubernetes' rule for scheme HTTPS).
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // see above
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// maxBody is how much of an answer is read, and maxReason how much of it is shown.
const (
	maxBody   = 4 << 10
	maxReason = 300
)

// Once probes once; nil means success.
func Once(ctx context.Context, p *plan.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if p.TCP != "" {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.TCP)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	if err != nil {
		return err
	}
	req.Host = p.Host
	for k, v := range p.Headers {
		req.Header.Set(k, v)
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if res.StatusCode < 200 || res.StatusCode > 399 {
		return fmt.Errorf("%s: %s", res.Status, reason(body))
	}
	return nil
}

// reason is what an answer says about why the server is not ready: the failed checks of one of Fairlead's own, else its
// beginning.
func reason(body []byte) string {
	var own struct {
		Failed []struct{ Check, Error string }
	}
	text := string(body)
	if json.Unmarshal(body, &own) == nil && len(own.Failed) > 0 {
		var list []string
		for _, f := range own.Failed {
			list = append(list, f.Check+": "+f.Error)
		}
		text = strings.Join(list, "; ")
	}
	text = strings.Join(strings.Fields(text), " ")
	return text[:min(len(text), maxReason)]
}

// Counter turns answers into readiness by the probe's thresholds.
type Counter struct {
	probe           *plan.Probe
	ready           bool
	success, failed int
}

// NewCounter starts not ready.
func NewCounter(p *plan.Probe) *Counter { return &Counter{probe: p} }

// Add takes an answer into account and tells whether the process is ready now.
func (c *Counter) Add(ok bool) bool {
	if ok {
		c.success, c.failed = c.success+1, 0
	} else {
		c.success, c.failed = 0, c.failed+1
	}
	switch {
	case c.success >= c.probe.SuccessThreshold:
		c.ready = true
	case c.failed >= c.probe.FailureThreshold:
		c.ready = false
	}
	return c.ready
}
