package renewal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"fairlead.dev/services/installer/internal/envoyadmin"
)

// agentOf is a proxy whose Envoy shows a certificate by its serial number, which changes when the agent is asked.
func agentOf(serial *int, refuses error) *renewable {
	page := func(context.Context, string, string) ([]byte, error) {
		return fmt.Appendf(nil, `{"certificates":[{"cert_chain":[{"path":"<inline>","serial_number":"%d","subject_alt_names":[],"valid_from":"2026-01-01T00:00:00Z","expiration_time":"2026-01-02T00:00:00Z"}]}]}`, *serial), nil
	}
	return &renewable{name: "web.shop", admin: envoyadmin.NewBy(page), log: "its log", ask: func(context.Context) error {
		if refuses == nil {
			*serial++
		}
		return refuses
	}}
}

func TestRenewalWaitsForAnotherCertificate(t *testing.T) {
	serial := 41
	r, err := agentOf(&serial, nil).renew(t.Context(), time.Minute)
	if err != nil || r.Proxy != "web.shop" || r.Before.Serial != "41" || r.After.Serial != "42" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := agentOf(&serial, errors.New("too often")).renew(t.Context(), time.Minute); err == nil ||
		!strings.Contains(err.Error(), "proxy web.shop: too often") {
		t.Errorf("%v", err)
	}
	same := agentOf(&serial, nil)
	same.ask = func(context.Context) error { return nil }
	if _, err := same.renew(t.Context(), time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "no new certificate after 1ms; see its log") {
		t.Errorf("%v", err)
	}
}

func TestAnAgentWithoutRenewalIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		out  string
		err  error
		says string
	}{
		"that has taken the order":   {"", nil, ""},
		"of Istio":                   {"404 page not found\n", nil, "knows no such order"},
		"of an earlier release":      {"", errors.New("POST renew: 404 Not Found: no page"), "knows no such order"},
		"that was asked just before": {"", errors.New("POST renew: 429 Too Many Requests: try again"), "try again"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := renewalAnswer([]byte(c.out), c.err); (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
}
