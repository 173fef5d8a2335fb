// Package istio signs leaves by the CreateCertificate of another CA with Istio's API, such as istiod or istio-csr, with
// each workload's own token. That CA copies no extensions and chooses the names itself: those that the token proves.
package istio

import (
	"cmp"
	"context"
	"crypto/x509"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/upstream"
)

// Signer is a signer.Issuer.
type Signer struct {
	cfg      Config
	clock    clock.Clock
	timeout  time.Duration
	server   upstream.Service
	conn     *grpc.ClientConn
	client   security.IstioCertificateServiceClient
	files    *tlsconf.Files
	roots    upstream.RootsFile
	problems upstream.Problems
}

var _ signer.Issuer = (*Signer)(nil)

// New makes a Signer.
func New(cfg Config, d signer.Deps) (*Signer, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	d.Clock = clock.Or(d.Clock)
	s := &Signer{
		cfg: cfg, clock: d.Clock, timeout: cmp.Or(cfg.Timeout.Duration, upstream.DefaultTimeout),
		server: upstream.Service{
			Name: "the CA at " + cfg.Address,
			TLS:  "compare caFile, or rootsFile, and serverName in the signer file with its certificate",
			Denied: "the token may have expired, or the CA does not accept its issuer or its audience; compare them with the CA's " +
				"settings, and send a new token",
		},
	}
	s.roots = upstream.RootsFile{
		Path: cfg.RootsFile, Trust: upstream.NewTrust(d.Clock), Problems: &s.problems, Clock: d.Clock, Log: d.Log,
	}
	// The ca's own certificate is not presented: istiod would take its identity and not that of the token.
	known, files, err := upstream.TLS(upstream.TLSConfig{
		ServerName: cfg.serverName(), CAFile: cmp.Or(cfg.CAFile, cfg.RootsFile), Clock: d.Clock, Log: d.Log,
	})
	if err != nil {
		return nil, err
	}
	s.files = files
	s.conn, err = rpc.Dial(rpc.ClientConfig{
		Target: cfg.Address, TLS: known, MaxRecvBytes: upstream.MaxAnswer, KeepaliveTime: upstream.KeepaliveTime,
	})
	if err != nil {
		return nil, err
	}
	s.client = security.NewIstioCertificateServiceClient(s.conn)
	return s, nil
}

// Close ends the connection. Calls in flight fail.
func (s *Signer) Close() error { return s.conn.Close() }

// Problem is what is wrong while certificates go on being issued; nil if nothing is.
func (s *Signer) Problem() error { return s.problems.Problem() }

// Capabilities implements signer.Issuer.
func (s *Signer) Capabilities() signer.Capabilities {
	return signer.Capabilities{Token: true, IDsOnly: true, Remote: true}
}

// Authorities implements signer.Issuer.
func (s *Signer) Authorities() (*signer.Authorities, <-chan struct{}) {
	return s.roots.Trust.Authorities()
}

// Run implements signer.Issuer. It ends the connection when ctx ends.
func (s *Signer) Run(ctx context.Context) error {
	var all sync.WaitGroup
	all.Go(func() { _ = s.files.Run(ctx) })
	all.Go(func() { s.roots.Run(ctx) })
	all.Wait()
	_ = s.conn.Close() // it may have been closed
	return nil
}

// Issue implements signer.Issuer.
func (s *Signer) Issue(ctx context.Context, r *signer.Request) ([]*x509.Certificate, error) {
	req, err := s.request(r, s.clock.Now())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+r.Token)
	if s.cfg.ClusterID != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "clusterid", s.cfg.ClusterID)
	}
	answer, err := s.client.CreateCertificate(ctx, req)
	if err != nil {
		return nil, s.server.GRPCError(err, r.Token)
	}
	chain, roots, err := upstream.Split(s.server.Name, answer.GetCertChain()...)
	if err != nil {
		return nil, err
	}
	if unknown := s.roots.Trust.Unknown(chain, roots); len(unknown) > 0 {
		return nil, signer.Errorf(signer.Lied, "%s answered with a certificate that %s does not verify, and calls these its roots (SHA-256): "+
			"%s; if its operator confirms them, add them to that file", s.server.Name, s.cfg.RootsFile, strings.Join(unknown, ", "))
	}
	s.roots.Trust.Learn(chain)
	return chain, nil
}

// aheadShare and maxAhead are how much earlier a certificate ends than the ca allows, as a share of its lifetime: the
// other CA counts from its own clock, which may be ahead.
const (
	aheadShare = 20
	maxAhead   = 30 * time.Second
)

// request writes a request in the words of Istio's API.
func (s *Signer) request(r *signer.Request, now time.Time) (*security.IstioCertificateRequest, error) {
	life := r.Template.NotAfter.Sub(now)
	life -= min(life/aheadShare, maxAhead)
	switch {
	case r.Token == "":
		return nil, signer.Errorf(signer.Unsuitable, "%s needs a token for every certificate; send one with the request", s.server.Name)
	case len(r.CSR) == 0:
		return nil, signer.Errorf(signer.Unsuitable, "%s needs a CSR for every certificate; send one with the request", s.server.Name)
	case len(r.Template.DNSNames) > 0 || len(r.Template.IPAddresses) > 0:
		return nil, signer.Errorf(signer.Unsuitable, "%s writes no DNS names and IP addresses into certificates; remove those configured for "+
			"%s, or use another signer", s.server.Name, r.Identity)
	case life < time.Second:
		return nil, signer.Errorf(signer.Unsuitable, "the certificate would end at %s; ask for a longer one",
			r.Template.NotAfter.UTC().Format(time.RFC3339))
	case r.Profile != "" && !slices.Contains(s.cfg.CertSigners, r.Profile):
		return nil, signer.Errorf(signer.Unsuitable, "metadata field CertSigner: %q is not among certSigners of the signer file; leave it out, "+
			"or have the ca's operator add it", upstream.Quote(r.Profile))
	}
	out := &security.IstioCertificateRequest{Csr: upstream.PEM(r.CSR), ValidityDuration: int64(life / time.Second)}
	if r.Profile != "" {
		out.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"CertSigner": structpb.NewStringValue(r.Profile)}}
	}
	return out, nil
}
