package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"fairlead.dev/tests/internal/probe"
)

// Admin asks Envoy's admin interface of the Pod for a path.
func (p *Pod) Admin(ctx context.Context, path string) ([]byte, error) {
	if p.Agent == nil {
		return nil, fmt.Errorf("%s has no proxy", p.ID())
	}
	body, err := probe.Get(ctx, probe.Unix(p.Agent.AdminSocket), "http://envoy"+path)
	if err != nil {
		err = fmt.Errorf("%s: %w", p.ID(), err)
	}
	return body, err
}

// Stats reads the counters and gauges whose names match the regular expression.
func (p *Pod) Stats(ctx context.Context, filter string) (map[string]int64, error) {
	stats, err := probe.Stats(ctx, probe.Unix(p.Agent.AdminSocket), filter, "")
	if err != nil {
		err = fmt.Errorf("stats of %s: %w", p.ID(), err)
	}
	return stats, err
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
	if err := probe.Ready(ctx, probe.Client(nil), "http://"+p.Agent.ReadyAddress+"/healthz/ready"); err != nil {
		return fmt.Errorf("%s: %w", p.ID(), err)
	}
	return nil
}
