package identity

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
)

// listMargin before its end a list is not used any more: Envoy, which refuses every certificate of an authority whose
// list has ended, has forgotten it by then.
const listMargin = time.Minute

// lists are the lists of revoked certificates that the ca's bundle has, and what was found of them.
type lists struct {
	used, unusable prometheus.Gauge
	// judged wakes Run when until has changed.
	judged chan struct{}

	// The rest is guarded by the Bundle's mu. crl, in PEM, was made of these lists for this material, and counts until
	// a time; zero if it counts for as long as they do.
	of    [][]byte
	m     *tlsconf.Material
	crl   []byte
	until time.Time
	said  string
}

func newLists(r prometheus.Registerer) lists {
	f := promauto.With(r)
	return lists{
		judged: make(chan struct{}, 1),
		used: f.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_node_agent_revocation_lists", Help: "Lists of revoked certificates of the ca that Envoy verifies peers with.",
		}),
		unusable: f.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_node_agent_revocation_lists_unusable",
			Help: "1 while the ca's lists of revoked certificates are not used, because Envoy would refuse certificates that are not revoked.",
		}),
	}
}

// revoked returns the lists of the ca's bundle in PEM, if peers can be verified with them and this material; else nil.
// b.mu is held.
func (b *Bundle) revoked(m *tlsconf.Material) []byte {
	l := &b.lists
	var of [][]byte
	if b.cfg.Revocations != nil {
		of = b.cfg.Revocations()
	}
	now := b.cfg.Clock.Now()
	if l.m == m && slices.EqualFunc(l.of, of, bytes.Equal) && (l.until.IsZero() || now.Before(l.until)) {
		return l.crl
	}
	var err error
	l.of, l.m = of, m
	switch {
	case len(of) == 0:
		l.crl, l.until = nil, time.Time{}
	case len(b.domains) > 0:
		l.crl, l.until, err = nil, time.Time{}, errors.New("Envoy takes no list beside roots for single trust domains")
	default:
		l.crl, l.until, err = usable(of, m, now)
	}
	notify.Wake(l.judged)
	l.used.Set(0)
	l.unusable.Set(0)
	said := ""
	switch {
	case err != nil:
		l.unusable.Set(1)
		if said = err.Error(); said != l.said {
			b.cfg.Log.Error("revoked certificates are not refused: the lists of the ca cannot be used", "error", err)
		}
	case l.crl != nil:
		l.used.Set(float64(len(of)))
	}
	l.said = said
	return l.crl
}

// usable returns lists in PEM if Envoy can verify with them: once it has a list, it refuses every certificate below an
// authority without one. So each root, and each authority of the workload's own chain, must have a list, and each list
// must be valid now and have nothing that Envoy does not know. until is when that has to be looked at again, zero if it
// need not be.
func usable(lists [][]byte, m *tlsconf.Material, now time.Time) (crl []byte, until time.Time, err error) {
	authorities, err := tlsconf.ParseAuthorities(m.RootsPEM)
	if err != nil {
		return nil, time.Time{}, err
	}
	if m.Certificate != nil {
		for _, der := range m.Certificate.Certificate[1:] {
			c, err := x509.ParseCertificate(der)
			if err != nil {
				return nil, time.Time{}, err
			}
			authorities = append(authorities, c)
		}
	}
	var parsed []*x509.RevocationList
	for i, der := range lists {
		list, err := x509.ParseRevocationList(der)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("list %d: %w", i+1, err)
		}
		from, to, ends := list.ThisUpdate, list.NextUpdate.Add(-listMargin), !list.NextUpdate.IsZero()
		critical := unknown(list)
		switch {
		case critical != nil:
			return nil, time.Time{}, fmt.Errorf("list %d, of %q, has the critical extension %v, which Envoy refuses", i+1, list.Issuer, critical)
		case now.Before(from):
			return nil, from, fmt.Errorf("list %d, of %q, is valid from %s on", i+1, list.Issuer, from.UTC().Format(time.RFC3339))
		case ends && !now.Before(to):
			return nil, time.Time{}, fmt.Errorf("list %d, of %q, has ended, or does so within %s: %s", i+1, list.Issuer, listMargin,
				list.NextUpdate.UTC().Format(time.RFC3339))
		case ends && (until.IsZero() || to.Before(until)):
			until = to
		}
		parsed = append(parsed, list)
		crl = append(crl, pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})...)
	}
	for _, c := range authorities {
		if !slices.ContainsFunc(parsed, func(l *x509.RevocationList) bool { return listOf(l, c) }) {
			return nil, time.Time{}, fmt.Errorf("%q (serial number %x) has no list", c.Subject, c.SerialNumber)
		}
	}
	return crl, until, nil
}

// listOf reports whether an authority has issued a list.
func listOf(l *x509.RevocationList, c *x509.Certificate) bool {
	return bytes.Equal(l.RawIssuer, c.RawSubject) && (len(l.AuthorityKeyId) == 0 || bytes.Equal(l.AuthorityKeyId, c.SubjectKeyId)) &&
		l.CheckSignatureFrom(c) == nil
}

// unknown is a critical extension of a list or of one of its entries; nil if there is none.
func unknown(l *x509.RevocationList) asn1.ObjectIdentifier {
	extensions := slices.Clone(l.Extensions)
	for _, e := range l.RevokedCertificateEntries {
		extensions = append(extensions, e.Extensions...)
	}
	if i := slices.IndexFunc(extensions, func(e pkix.Extension) bool { return e.Critical }); i >= 0 {
		return extensions[i].Id
	}
	return nil
}

// lookAgain is the longest time between two looks at the lists.
const lookAgain = 24 * time.Hour

// followLists has the lists looked at again when they have to be, until ctx ends.
func (b *Bundle) followLists(ctx context.Context) {
	for ctx.Err() == nil {
		b.mu.Lock()
		left := lookAgain
		if until := b.lists.until; !until.IsZero() {
			left = min(left, until.Sub(b.cfg.Clock.Now()))
		}
		b.mu.Unlock()
		timer := b.cfg.Clock.NewTimer(left)
		select {
		case <-ctx.Done():
		case <-b.lists.judged:
		case <-timer.C():
			b.mu.Lock()
			b.lists.m, b.lists.until = nil, time.Time{}
			b.mu.Unlock()
			b.Notify() // whoever asks for Validation judges them anew
		}
		timer.Stop()
	}
}
