package svid

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
)

const (
	requestTimeout = 10 * time.Second

	minRetry = 200 * time.Millisecond
	// maxRetryWithout bounds the back-off without a valid certificate, maxRetryWith the one with it.
	maxRetryWithout = 5 * time.Second
	maxRetryWith    = time.Minute
)

// renew requests a certificate and returns when to renew it.
func (m *Manager) renew(ctx context.Context) (time.Time, error) {
	roots, err := m.roots.Current()
	if err != nil {
		return time.Time{}, err
	}
	key, err := m.cfg.Key.generate()
	if err != nil {
		return time.Time{}, err
	}
	csr, err := newCSR(key, m.cfg.Identity)
	if err != nil {
		return time.Time{}, err
	}
	answer, method, err := m.request(ctx, roots, csr)
	if err != nil {
		return time.Time{}, err
	}
	now := m.cfg.Clock.Now()
	certs, err := tlsconf.ParseCertificates([]byte(strings.Join(answer.GetCertChain(), "\n")))
	if err != nil {
		return time.Time{}, fmt.Errorf("answer of the CA: chain: %w", err)
	}
	id, err := newIdentity(key, certs, m.cfg.Key)
	if err != nil {
		return time.Time{}, fmt.Errorf("answer of the CA: %w", err)
	}
	if err := id.verify(roots.Roots, m.cfg.Identity, now); err != nil {
		return time.Time{}, fmt.Errorf("answer of the CA: %w", err)
	}
	m.warnForeignRoots(id, roots, now)
	m.adopt(id)
	m.metrics.renewals.Inc()
	next := m.renewalTime(now, id.leaf.NotAfter)
	m.keep(id)
	m.cfg.Log.Info("certificate obtained", "identity", m.cfg.Identity.String(), "authenticated_by", method,
		"not_after", id.leaf.NotAfter, "renew_at", next)
	return next, nil
}

// request authenticates with the current certificate if it is valid; without one, or if that fails, with the
// provisioned certificate, and at last with the token.
func (m *Manager) request(ctx context.Context, roots *tlsconf.Material, csr []byte) (*securityv1alpha1.IstioCertificateResponse, string,
	error) {
	m.mu.Lock()
	own := m.own
	m.mu.Unlock()
	var errs []error
	if own != nil && own.verify(roots.Roots, m.cfg.Identity, m.cfg.Clock.Now()) == nil {
		answer, err := m.call(ctx, own.material(roots), "", csr)
		if err == nil {
			return answer, "certificate", nil
		}
		errs = append(errs, fmt.Errorf("with the current certificate: %w", err))
	}
	if m.cfg.ProvisionedDir != "" && ctx.Err() == nil {
		id, err := loadDir(m.cfg.ProvisionedDir, m.cfg.Key)
		if err == nil && !m.cfg.Clock.Now().Before(id.leaf.NotAfter) {
			err = fmt.Errorf("%s expired at %s", filepath.Join(m.cfg.ProvisionedDir, ChainFile), id.leaf.NotAfter.Format(time.RFC3339))
		}
		if err == nil {
			var answer *securityv1alpha1.IstioCertificateResponse
			if answer, err = m.call(ctx, id.material(roots), "", csr); err == nil {
				return answer, "provisioned certificate", nil
			}
		}
		errs = append(errs, fmt.Errorf("with the provisioned certificate: %w", err))
	}
	if m.cfg.TokenFile != "" && ctx.Err() == nil {
		answer, err := m.call(ctx, roots, m.cfg.TokenFile, csr)
		if err == nil {
			return answer, "token", nil
		}
		errs = append(errs, fmt.Errorf("with the token: %w", err))
	}
	if len(errs) == 0 {
		return nil, "", errors.New("there is neither a token file nor a valid certificate to authenticate with")
	}
	return nil, "", fmt.Errorf("ask the CA at %s: %w", m.cfg.CAAddress, errors.Join(errs...))
}

// call makes one request on a connection of its own, whose handshake uses this material, and the roots of CARootFile
// if there is one.
func (m *Manager) call(ctx context.Context, with *tlsconf.Material, tokenFile string,
	csr []byte) (*securityv1alpha1.IstioCertificateResponse, error) {
	if m.cfg.CARootFile != "" {
		bundle, err := fileio.Read(m.cfg.CARootFile, maxFile)
		if err != nil {
			return nil, fmt.Errorf("roots to verify the CA with: %w", err)
		}
		own := *with
		if own.Roots, err = tlsconf.ParseRoots(bundle); err != nil {
			return nil, fmt.Errorf("roots to verify the CA with: %s: %w", m.cfg.CARootFile, err)
		}
		with = &own
	}
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target:     m.cfg.CAAddress,
		TLS:        tlsconf.Client(fixed{with}, m.cfg.CAIDs...),
		TokenFile:  tokenFile,
		Registerer: m.cfg.Registerer,
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return securityv1alpha1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{
		Csr:              string(csr),
		ValidityDuration: int64(m.cfg.TTL / time.Second),
	}, grpc.WaitForReady(false))
}

// warnForeignRoots logs roots in the ca's answer that are not trusted. They are not adopted: otherwise a compromised ca
// could add its own.
func (m *Manager) warnForeignRoots(id *identity, roots *tlsconf.Material, now time.Time) {
	for _, c := range id.foreignRoots {
		if _, err := c.Verify(x509.VerifyOptions{Roots: roots.Roots, CurrentTime: now}); err != nil {
			m.cfg.Log.Warn("CA answered with a root that is not trusted here, ignored", "subject", c.Subject.String())
		}
	}
}

// retryAfter is the pause after a failed attempt: the one that the ca asks for, else exponential back-off with jitter.
func (m *Manager) retryAfter(err error, attempt int) time.Duration {
	limit := maxRetryWithout
	if m.Check() == nil {
		limit = maxRetryWith
	}
	backoff := time.Duration(math.Min(float64(minRetry)*math.Pow(2, float64(attempt)), float64(limit)))
	if asked := retryDelay(err); asked > backoff {
		backoff = min(asked, maxRetryWith)
	}
	return time.Duration(float64(backoff) * (0.75 + 0.5*m.cfg.Rand()))
}

func retryDelay(err error) time.Duration {
	s, ok := status.FromError(err)
	if !ok {
		return 0
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// fixed is a tlsconf.Source that never changes.
type fixed struct{ m *tlsconf.Material }

func (f fixed) Current() (*tlsconf.Material, error) { return f.m, nil }
func (f fixed) Changed() <-chan struct{}            { return nil }
