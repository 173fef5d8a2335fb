package identity

import (
	"context"
	"crypto/x509"
	"log/slog"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
)

// controlPlane is the workload's source with the control plane's roots. It is safe for concurrent use.
type controlPlane struct {
	notify.Notifier
	workload tlsconf.Source
	roots    *tlsconf.Files
	clock    clock.Clock
	log      *slog.Logger

	mu sync.Mutex
	// current was made of these two.
	current, workloads, planes *tlsconf.Material
}

func newControlPlane(workload tlsconf.Source, roots tlsconf.FilesConfig) *controlPlane {
	return &controlPlane{workload: workload, roots: tlsconf.NewFiles(roots), clock: clock.Or(roots.Clock), log: roots.Log}
}

// Current returns the control plane's roots, and the workload's certificate if it verifies with them.
func (c *controlPlane) Current() (*tlsconf.Material, error) {
	plane, err := c.roots.Current()
	if err != nil {
		return nil, err
	}
	own, err := c.workload.Current()
	if err != nil {
		return plane, nil //nolint:nilerr // a token authenticates until there is a certificate
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && c.workloads == own && c.planes == plane {
		return c.current, nil
	}
	c.workloads, c.planes, c.current = own, plane, plane
	if own.Certificate == nil {
		return plane, nil
	}
	if err := verify(own, plane.Roots, c.clock.Now()); err != nil {
		c.log.Warn("the control plane does not trust the workload's certificate, a token authenticates", "error", err)
		return plane, nil
	}
	both := *own
	both.Roots, both.RootsPEM = plane.Roots, plane.RootsPEM
	c.current = &both
	return c.current, nil
}

// Run follows the control plane's roots and the workload's source until ctx ends.
func (c *controlPlane) Run(ctx context.Context) error {
	go func() { _ = c.roots.Run(ctx) }() // ends with ctx, never with an error
	return forward(ctx, &c.Notifier, c.workload, c.roots)
}

// forward notifies of the changes of sources until ctx ends.
func forward(ctx context.Context, to *notify.Notifier, sources ...interface{ Changed() <-chan struct{} }) error {
	var all sync.WaitGroup
	for _, s := range sources {
		all.Go(func() {
			for {
				changed := s.Changed()
				to.Notify() // what has changed before that
				select {
				case <-ctx.Done():
					return
				case <-changed:
				}
			}
		})
	}
	all.Wait()
	return nil
}

// verify checks that a client with this certificate is accepted by a server with these roots.
func verify(m *tlsconf.Material, roots *x509.CertPool, now time.Time) error {
	intermediates := x509.NewCertPool()
	for _, raw := range m.Certificate.Certificate[1:] {
		cert, err := x509.ParseCertificate(raw)
		if err != nil {
			return err
		}
		intermediates.AddCert(cert)
	}
	_, err := m.Certificate.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}
