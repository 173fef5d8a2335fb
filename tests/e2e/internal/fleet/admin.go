package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// Admin asks Envoy's admin interface of the Pod for a path.
func (p *Pod) Admin(ctx context.Context, path string) ([]byte, error) {
	if p.Agent == nil {
		return nil, fmt.Errorf("%s has no proxy", p.ID())
	}
	c := &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", p.Agent.AdminSocket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://envoy"+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s%s: status %d", p.ID(), path, res.StatusCode)
	}
	return body, err
}

// Stats reads the counters and gauges whose names match the regular expression.
func (p *Pod) Stats(ctx context.Context, filter string) (map[string]int64, error) {
	body, err := p.Admin(ctx, "/stats?format=json&filter="+filter)
	if err != nil {
		return nil, err
	}
	var out struct {
		Stats []struct {
			Name  string          `json:"name"`
			Value json.RawMessage `json:"value"`
		} `json:"stats"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return nil, fmt.Errorf("stats of %s: %w", p.ID(), err)
	}
	stats := map[string]int64{}
	for _, s := range out.Stats {
		var n int64
		if json.Unmarshal(s.Value, &n) == nil {
			stats[s.Name] = n
		}
	}
	return stats, nil
}

// AssertNothingRejected fails the test if any running proxy has rejected an update, or none could be asked.
func (m *Mesh) AssertNothingRejected(t *testing.T) {
	t.Helper()
	asked := 0
	for _, p := range m.State(t).Proxies() {
		stats, err := p.Stats(context.Background(), "update_rejected")
		if err != nil {
			t.Logf("%s cannot be asked for rejected updates: %v", p.ID(), err)
			continue
		}
		asked += len(stats)
		for name, n := range stats {
			if n != 0 {
				t.Errorf("%s: %s = %d", p.ID(), name, n)
			}
		}
	}
	if asked == 0 {
		t.Error("no proxy told how many updates it rejected")
	}
}

// Certificate is the serial number of the workload certificate that Envoy uses now: the newest, because TLS contexts
// that are being replaced still list the old one.
func (p *Pod) Certificate(ctx context.Context) (serial string, err error) {
	body, err := p.Admin(ctx, "/certs")
	if err != nil {
		return "", err
	}
	var out struct {
		Certificates []struct {
			CertChain []struct {
				SerialNumber string    `json:"serial_number"`
				ValidFrom    time.Time `json:"valid_from"`
			} `json:"cert_chain"`
		} `json:"certificates"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return "", fmt.Errorf("certificates of %s: %w", p.ID(), err)
	}
	var newest time.Time
	for _, c := range out.Certificates {
		if len(c.CertChain) > 0 && c.CertChain[0].ValidFrom.After(newest) {
			serial, newest = c.CertChain[0].SerialNumber, c.CertChain[0].ValidFrom
		}
	}
	if serial == "" {
		return "", fmt.Errorf("%s has no certificate", p.ID())
	}
	return serial, nil
}

// ProxyReady asks the Pod's readiness port, as a kubelet does.
func (p *Pod) ProxyReady(ctx context.Context) error {
	a, err := newClient(nil, false).Get(ctx, "http://"+p.Agent.ReadyAddress+"/healthz/ready")
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("%s: /healthz/ready gives %d %s", p.ID(), a.Status, a.Body)
	}
	return err
}
