// Package svid gets and renews the X.509-SVID of a program. A Manager requests a certificate from the ca through
// Istio's IstioCertificateService, renews it in time, and follows the file with the root certificates; it
// is the tlsconf.Source of all that the program serves and dials. Roots come from that file alone, or from a source in
// its place, never from the ca's answer.
package svid

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
)

// Config of a Manager. CAAddress, CAIDs, Identity, TTL, and RootFile or Roots, are required.
type Config struct {
	// CAAddress is the ca service's host:port, or a comma-separated list of them.
	CAAddress string
	// CAIDs are the SPIFFE ids that the ca may have.
	CAIDs []spiffeid.ID
	// TokenFile holds the JWT with which the ca authenticates the request; it is read for every request. Without it,
	// only a valid certificate from CacheDir can be renewed.
	TokenFile string
	// RootFile holds the root certificates in PEM; it is read again when it changes.
	RootFile string
	// Roots, if it is not nil, has the root certificates in place of RootFile. Whoever gives it follows its changes.
	Roots tlsconf.Source
	// TrustDomain is the trust domain of Identity, which is the default.
	TrustDomain spiffeid.TrustDomain
	// Identity is the SPIFFE id of the certificate.
	Identity spiffeid.ID
	// TTL is the lifetime to request; the ca may give less. Required.
	TTL time.Duration
	// CacheDir, of mode 0700, keeps key and certificate across restarts; empty keeps them in memory only.
	CacheDir string
	// RestoreDir is a directory where the program's owner has key and certificate written, as ChainFile and KeyFile.
	// Run begins with them, if they are valid still; it writes nothing there.
	RestoreDir string
	// ProvisionedDir has ChainFile and KeyFile of a certificate that authenticates requests while there is no current
	// one, before the token: that of a machine whose token has expired. They are read for every request. Optional.
	ProvisionedDir string
	// CARootFile has the roots to verify the ca's server with; "" is RootFile, or Roots.
	CARootFile string

	// Key says which keys to make.
	Key KeyType
	// GraceRatio is the share of a certificate's lifetime that is left when it is renewed, more than 0 and less than 1;
	// 0 means DefaultGraceRatio. GraceJitter is added or taken away at random, in the same unit; nil means
	// DefaultGraceJitter.
	GraceRatio  float64
	GraceJitter *float64

	Clock clock.Clock
	Log   *slog.Logger
	// Registerer registers the metrics; nil means none.
	Registerer prometheus.Registerer
	// Rand returns jitter in [0, 1); nil means math/rand.
	Rand func() float64
}

func (c *Config) complete() error {
	switch {
	case c.CAAddress == "":
		return errors.New("svid: CA address is required")
	case len(c.CAIDs) == 0:
		return errors.New("svid: the CA's SPIFFE id is required")
	case c.RootFile == "" && c.Roots == nil:
		return errors.New("svid: root certificate file is required")
	case c.Identity.IsZero():
		return errors.New("svid: identity is required")
	case c.TokenFile == "" && c.CacheDir == "" && c.RestoreDir == "" && c.ProvisionedDir == "":
		return errors.New("svid: a token file is required, because there is no cached certificate to renew with")
	case !c.TrustDomain.IsZero() && !c.Identity.MemberOf(c.TrustDomain):
		return fmt.Errorf("svid: identity %s is not in trust domain %s", c.Identity, c.TrustDomain)
	case c.TTL <= 0:
		return fmt.Errorf("svid: TTL %s is not more than 0", c.TTL)
	case c.GraceRatio < 0 || c.GraceRatio >= 1:
		return fmt.Errorf("svid: grace ratio %g is not between 0 and 1", c.GraceRatio)
	case c.GraceJitter != nil && (*c.GraceJitter < 0 || *c.GraceJitter >= 1):
		return fmt.Errorf("svid: jitter of the grace ratio %g is not between 0 and 1", *c.GraceJitter)
	}
	if err := c.Key.check(); err != nil {
		return err
	}
	c.GraceRatio = cmp.Or(c.GraceRatio, DefaultGraceRatio)
	c.GraceJitter = cmp.Or(c.GraceJitter, new(DefaultGraceJitter))
	c.Clock = clock.Or(c.Clock)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return nil
}

// Defaults of a Config: a certificate is renewed at half of its life, give or take a tenth of that, so that programs
// that started together do not renew together.
const (
	DefaultGraceRatio  = 0.5
	DefaultGraceJitter = 0.05
)

// maxSleep bounds every wait, so that a machine that was suspended notices a due renewal within this time.
const maxSleep = 5 * time.Minute

// Manager gets, renews and holds the SVID.
type Manager struct {
	notify.Notifier
	cfg     Config
	roots   tlsconf.Source
	follow  func(context.Context) error
	metrics *metrics
	force   chan struct{}

	mu       sync.Mutex
	own      *identity         // nil until issued
	material *tlsconf.Material // own and the roots together
	from     *tlsconf.Material // the roots in material
	last     error             // of the last attempt, nil after a success
}

var _ tlsconf.Source = (*Manager)(nil)

// New checks the configuration; Run gets the certificate.
func New(cfg Config) (*Manager, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	m := &Manager{
		cfg:     cfg,
		roots:   cfg.Roots,
		follow:  func(context.Context) error { return nil },
		metrics: newMetrics(cfg.Registerer),
		force:   make(chan struct{}, 1),
	}
	if m.roots == nil {
		files := tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: cfg.RootFile, Clock: cfg.Clock, Log: cfg.Log})
		m.roots, m.follow = files, files.Run
	}
	return m, nil
}

// Current returns the certificate, nil until one is issued, and the roots of now.
func (m *Manager) Current() (*tlsconf.Material, error) {
	roots, err := m.roots.Current()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own == nil {
		return roots, nil
	}
	if m.material == nil || m.from != roots {
		m.material, m.from = m.own.material(roots), roots
	}
	return m.material, nil
}

// Renew requests a new certificate now, also during a back-off.
func (m *Manager) Renew() {
	select {
	case m.force <- struct{}{}:
	default: // one is under way already
	}
}

// Check returns an error while there is no valid certificate; it is a readiness check.
func (m *Manager) Check() error {
	m.mu.Lock()
	own, last := m.own, m.last
	m.mu.Unlock()
	var err error
	switch {
	case own == nil:
		err = tlsconf.ErrNoCertificate
	case !m.cfg.Clock.Now().Before(own.leaf.NotAfter):
		err = errors.New("certificate has expired")
	default:
		return nil
	}
	if last != nil {
		err = fmt.Errorf("%w: %w", err, last)
	}
	return err
}

// WaitReady waits for a valid certificate. If ctx ends first, the error is that of the last request.
func (m *Manager) WaitReady(ctx context.Context) error {
	for {
		changed := m.Changed()
		err := m.Check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for a certificate for %s: %w: %w", m.cfg.Identity, context.Cause(ctx), m.Check())
		case <-changed:
		}
	}
}

// Run gets and renews the certificate until ctx ends. While the ca is away, the last certificate stays in use, and Run
// tries again with back-off.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		_ = m.follow(ctx) // ends with ctx, never with an error
	}()
	defer func() { cancel(); <-followed }()

	next, attempt := m.restore(), 0
	seen, _ := m.roots.Current()
	for {
		changed := m.roots.Changed()
		if roots, err := m.roots.Current(); err == nil && roots != seen {
			seen = roots
			m.Notify()
			if !m.trustedBy(roots) {
				next = m.cfg.Clock.Now()
			}
		}
		if now := m.cfg.Clock.Now(); !now.Before(next) {
			renewed, err := m.renew(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if err == nil {
				next, attempt = renewed, 0
			} else {
				wait := m.retryAfter(err, attempt)
				next, attempt = m.cfg.Clock.Now().Add(wait), attempt+1
				m.failed(err, wait)
			}
		}
		timer := m.cfg.Clock.NewTimer(min(next.Sub(m.cfg.Clock.Now()), maxSleep))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		case <-m.force:
			next = time.Time{}
		case <-changed:
			if attempt > 0 {
				next = time.Time{} // attempts may have failed for lack of the new roots
			}
		}
		timer.Stop()
	}
}

// trustedBy reports whether the certificate verifies with the roots; true without a certificate.
func (m *Manager) trustedBy(roots *tlsconf.Material) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.own == nil || m.own.verify(roots.Roots, m.cfg.Identity, m.cfg.Clock.Now()) == nil
}

// adopt makes id the current identity.
func (m *Manager) adopt(id *identity) {
	m.mu.Lock()
	m.own, m.material, m.last = id, nil, nil
	m.mu.Unlock()
	m.metrics.expiry.Set(float64(id.leaf.NotAfter.Unix()))
	m.Notify()
}

// failed records and logs a failed attempt: as an error once there is no valid certificate left.
func (m *Manager) failed(err error, wait time.Duration) {
	m.metrics.failures.Inc()
	m.mu.Lock()
	m.last = err
	m.mu.Unlock()
	level := slog.LevelWarn
	if m.Check() != nil && m.hasOwn() {
		level = slog.LevelError
	}
	m.cfg.Log.Log(context.Background(), level, "certificate could not be obtained, will retry", "error", err, "retry_in", wait.String())
}

func (m *Manager) hasOwn() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.own != nil
}

// renewalTime is when the time left until notAfter is GraceRatio of that at from, give or take GraceJitter of it. It is
// never in the first or the last hundredth of that time.
func (m *Manager) renewalTime(from, notAfter time.Time) time.Time {
	left := float64(notAfter.Sub(from))
	share := 1 - m.cfg.GraceRatio + *m.cfg.GraceJitter*(2*m.cfg.Rand()-1)
	return from.Add(max(time.Duration(left*min(max(share, 0.01), 0.99)), time.Second))
}
