package app

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"time"

	"crypto/x509"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/services/ca/internal/rejection"
	"fairlead.dev/services/ca/internal/trustbundle"
)

// maxBehindShown is how many subscribers /debug/bundle lists at most.
const maxBehindShown = 100

// bundlePage is /debug/bundle.
type bundlePage struct {
	TrustDomain string     `json:"trust_domain"`
	Generation  uint64     `json:"generation"`
	Roots       []rootPage `json:"roots"`
	// Watches is how many subscribers are connected; Behind is how many of them have not acknowledged the generation.
	Watches int `json:"watches"`
	Behind  int `json:"behind"`
	// BehindFirst are the first maxBehindShown of those that have not.
	BehindFirst []trustbundle.Subscription `json:"behind_first"`
	// Problem is why the newest roots could not be published, or revocation lists were left out; empty if all is well.
	Problem string `json:"problem,omitempty"`
}

type rootPage struct {
	Subject  string    `json:"subject"`
	SHA256   string    `json:"sha256"`
	NotAfter time.Time `json:"not_after"`
}

func (s *Server) bundlePage(watches *trustbundle.Watches) (bundlePage, error) {
	bundle, _ := s.publisher.Current()
	if bundle == nil {
		return bundlePage{}, errNoBundle
	}
	open, behind := watches.Behind(bundle)
	page := bundlePage{
		TrustDomain: bundle.TrustDomain, Generation: bundle.Generation, Watches: open, Behind: len(behind),
		BehindFirst: behind[:min(len(behind), maxBehindShown)],
	}
	for _, text := range bundle.Roots {
		block, _ := pem.Decode([]byte(text))
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return bundlePage{}, err
		}
		page.Roots = append(page.Roots, rootPage{Subject: cert.Subject.String(), SHA256: fingerprint(cert.Raw), NotAfter: cert.NotAfter})
	}
	if err := s.bundleProblem(); err != nil {
		page.Problem = err.Error()
	}
	return page, nil
}

// bundleProblem is why agents have another bundle than they should have.
func (s *Server) bundleProblem() error { return errors.Join(s.bundle.Check(), s.signed.Problem()) }

func fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// registerGauges registers the metrics whose values are read when they are scraped.
func (s *Server) registerGauges(sign *signing, watches *trustbundle.Watches) {
	gauge := func(name, help string, value func() float64) {
		s.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	generation := func() uint64 {
		if bundle, _ := s.publisher.Current(); bundle != nil {
			return bundle.Generation
		}
		return 0
	}
	gauge("fairlead_ca_root_expiry_timestamp_seconds", "When the first root of the signer expires.",
		func() float64 { return float64(sign.rootExpiry().Unix()) })
	gauge("fairlead_ca_issuer_expiry_timestamp_seconds", "When the first certificate that leaves need, root or intermediate, expires.",
		func() float64 { return float64(sign.expiry().Unix()) })
	gauge("fairlead_ca_signer_problem", "1 while the signer issues, and somebody must mend something: files refused, a renewal that fails.",
		func() float64 { return flag(sign.driver.Problem() != nil) })
	gauge("fairlead_ca_signer_requests_in_flight", "Requests that a signer in another process works on.",
		func() float64 { return float64(sign.Guard().State().InFlight) })
	gauge("fairlead_ca_signer_requests_waiting", "Requests that wait for their turn at a signer in another process.",
		func() float64 { return float64(sign.Guard().State().Waiting) })
	gauge("fairlead_ca_signer_paused", "1 while a signer in another process is not asked, because it has failed several times in a row.",
		func() float64 { return flag(sign.Guard().State().Open) })
	gauge("fairlead_ca_own_certificate_expiry_timestamp_seconds", "When the ca's own certificate expires.", func() float64 {
		m, err := s.ownCert.Current()
		if err != nil {
			return 0
		}
		return float64(m.NotAfter.Unix())
	})
	gauge("fairlead_ca_bundle_generation", "Generation of the trust bundle.", func() float64 { return float64(generation()) })
	gauge("fairlead_ca_bundle_watches", "Open bundle watches.", func() float64 { return float64(watches.Open()) })
	gauge("fairlead_ca_bundle_watches_behind", "Open bundle watches that have not acknowledged the newest generation.", func() float64 {
		bundle, _ := s.publisher.Current()
		_, behind := watches.Behind(bundle)
		return float64(len(behind))
	})
	for reason, count := range map[rejection.Reason]func() uint64{
		rejection.WatchDisplaced: func() uint64 { displaced, _ := watches.Rejected(); return displaced },
		rejection.WatchLimit:     func() uint64 { _, rejected := watches.Rejected(); return rejected },
	} {
		s.Registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "fairlead_ca_bundle_watches_refused_total", ConstLabels: prometheus.Labels{"reason": string(reason)},
			Help: "Bundle watches refused: watch_limit (not opened), watch_displaced (ended to make room for an identity that has fewer).",
		}, func() float64 { return float64(count()) }))
	}
	gauge("fairlead_ca_bundle_problem", "1 while the newest roots cannot be published, or revocation lists are left out.",
		func() float64 { return flag(s.bundleProblem() != nil) })
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
