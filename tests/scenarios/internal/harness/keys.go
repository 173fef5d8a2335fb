package harness

import (
	"net/netip"
	"time"

	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/keys"
	"fairlead.dev/tests/scenarios/internal/runner"
)

// Keys makes the keys of a scenario. Their sets are served by a machine outside of the mesh that config-watcher, too,
// reaches; the certificate of its HTTPS servers is of the authority that Roots has.
func (h *Harness) Keys(tokens map[string]format.Token) (runner.Keys, error) {
	m, err := format.NewMaterial("issuers", format.Certificate{IPs: []netip.Addr{h.issuers.IP}}, h.issuer, time.Now())
	if err != nil {
		return nil, err
	}
	pair, err := m.TLS()
	if err != nil {
		return nil, err
	}
	return keys.New(tokens, keys.Place{IP: h.issuers.IP, Listen: h.issuers.Listen, Certificate: pair}), nil
}
