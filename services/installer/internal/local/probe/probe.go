// Package probe runs readiness probes like a kubelet: Once asks a process once, over HTTP or by a TCP connection, and a
// Counter applies the thresholds. Package local calls both, for Pods and for Fairlead's own processes.
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

// client follows no redirect: as for a kubelet, every status from 200 to 399 is success.
var client = &http.Client{
	Transport: &http.Transport{
		DisableKeepAlives: true,
		// A kubelet does not verify the certificate for scheme HTTPS either.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // see above
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// maxBody bounds what is read of a response, maxReason what is shown of it.
const (
	maxBody   = 4 << 10
	maxReason = 300
)

// Once runs a probe once; nil means success.
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

// reason is why the server is not ready: the failed checks in the answer of Fairlead's /readyz, else the beginning of
// the body.
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

// Counter turns results of a probe into readiness, by the probe's thresholds.
type Counter struct {
	probe           *plan.Probe
	ready           bool
	success, failed int
}

// NewCounter returns a counter that is not ready.
func NewCounter(p *plan.Probe) *Counter { return &Counter{probe: p} }

// Add counts a result and reports whether the process is ready now.
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
