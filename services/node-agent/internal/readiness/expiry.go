package readiness

import (
	"fmt"
	"time"

	"fairlead.dev/pkg/tlsconf"
)

// A workload whose certificate has not been renewed is taken out of traffic before handshakes with it fail: when
// lastShare of the certificate's life is left, but lastMoments at most. That is longer than a readiness probe of
// Istio's injection takes to fail, four times 15 s.
const (
	lastMoments = 75 * time.Second
	lastShare   = 20
)

// expiring returns an error in the last moments of a certificate's life.
func expiring(m *tlsconf.Material, now time.Time) error {
	last := min(lastMoments, m.NotAfter.Sub(m.Certificate.Leaf.NotBefore)/lastShare)
	if left := m.NotAfter.Sub(now); left < last {
		return fmt.Errorf("the certificate expires in %s and has not been renewed", left.Round(time.Second))
	}
	return nil
}
