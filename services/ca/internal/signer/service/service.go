// Package service signs leaves by any server of fairlead.ca.v1.SignerService, the contract by which users bring a
// signer of their own. Sign is called for every leaf; WatchAuthorities, or GetRoots where a server has no more, says
// what verifies them.
package service

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/upstream"
)

const (
	// pollEvery is how often a server without WatchAuthorities is asked for its roots.
	pollEvery = time.Minute
	// Run asks again after minRetry when the server was away, after twice that the next time, up to maxRetry.
	minRetry, maxRetry = time.Second, 30 * time.Second
	// maxAnnounced is the size of an announcement in bytes: its lists of revoked certificates, and its certificates.
	maxAnnounced = upstream.MaxCRLBytes + upstream.MaxAnswer
)

// Signer is a signer.Issuer.
type Signer struct {
	deps    signer.Deps
	can     signer.Capabilities
	timeout time.Duration
	server  upstream.Service
	conn    *grpc.ClientConn
	client  cav1.SignerServiceClient
	files   *tlsconf.Files
	trust   *upstream.Trust
	// problem is why no request is sent: the server announced that it cannot do what the configuration says.
	problem atomic.Pointer[string]
	// problems are those of following the server.
	problems upstream.Problems
}

var _ signer.Issuer = (*Signer)(nil)

// New makes a Signer. own is the ca's own certificate with the roots of the mesh, or nil.
func New(cfg Config, d signer.Deps, own tlsconf.Source) (*Signer, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	d.Clock = clock.Or(d.Clock)
	s := &Signer{
		deps: d, can: cfg.capabilities(), timeout: cmp.Or(cfg.Timeout.Duration, upstream.DefaultTimeout), trust: upstream.NewTrust(d.Clock),
		server: upstream.Service{
			Name:   "the signer at " + cfg.Address,
			TLS:    "compare caFile, serverName or identity, and certFile in the signer file with the server's",
			Denied: "have its operator accept the ca's certificate, and this identity",
		},
	}
	dial := rpc.ClientConfig{Target: cfg.Address, MaxRecvBytes: upstream.MaxAnswer, KeepaliveTime: upstream.KeepaliveTime}
	if strings.HasPrefix(cfg.Address, unixScheme) {
		dial.Insecure = true
	} else {
		known := upstream.TLSConfig{
			ServerName: cfg.ServerName, CAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, Own: own, Clock: d.Clock, Log: d.Log,
		}
		var err error
		if cfg.Identity != "" {
			if known.Identity, err = spiffeid.FromString(cfg.Identity); err != nil {
				return nil, fmt.Errorf("identity: %w", err)
			}
		}
		if dial.TLS, s.files, err = upstream.TLS(known); err != nil {
			return nil, err
		}
	}
	var err error
	if s.conn, err = rpc.Dial(dial); err != nil {
		return nil, fmt.Errorf("address: %w", err)
	}
	s.client = cav1.NewSignerServiceClient(s.conn)
	return s, nil
}

// Close ends the connection. Calls in flight fail.
func (s *Signer) Close() error { return s.conn.Close() }

// Problem is what is wrong while certificates go on being issued; nil if nothing is.
func (s *Signer) Problem() error { return s.problems.Problem() }

// Capabilities implements signer.Issuer.
func (s *Signer) Capabilities() signer.Capabilities { return s.can }

// Authorities implements signer.Issuer.
func (s *Signer) Authorities() (*signer.Authorities, <-chan struct{}) { return s.trust.Authorities() }

// Issue implements signer.Issuer.
func (s *Signer) Issue(ctx context.Context, r *signer.Request) ([]*x509.Certificate, error) {
	if problem := s.problem.Load(); problem != nil {
		return nil, signer.Errorf(signer.Refused, "%s", *problem)
	}
	req, err := signRequest(r, s.can, s.deps.Clock.Now())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	answer, err := s.client.Sign(ctx, req)
	if err != nil {
		return nil, s.server.GRPCError(err, r.Token)
	}
	chain, err := upstream.Chain(s.server.Name, answer.GetCertificateChain()...)
	if err != nil {
		return nil, err
	}
	s.trust.Learn(chain)
	return chain, nil
}

// Run implements signer.Issuer. It ends the connection when ctx ends.
func (s *Signer) Run(ctx context.Context) error {
	var all sync.WaitGroup
	if s.files != nil {
		all.Go(func() { _ = s.files.Run(ctx) })
	}
	all.Go(func() { s.follow(ctx) })
	all.Wait()
	_ = s.conn.Close() // it may have been closed
	return nil
}

// follow learns what verifies the server's certificates, until ctx ends.
func (s *Signer) follow(ctx context.Context) {
	retry := minRetry
	for ctx.Err() == nil {
		heard, err := s.watch(ctx)
		wait := retry
		if status.Code(err) == codes.Unimplemented {
			if err = s.poll(ctx); err == nil {
				heard, wait = true, pollEvery
			}
		}
		if ctx.Err() != nil {
			return
		}
		retry = min(2*retry, maxRetry)
		if heard {
			retry = minRetry
			wait = max(wait, minRetry)
		}
		s.log(err)
		if !clock.Sleep(ctx, s.deps.Clock, wait) {
			return
		}
	}
}

// watch takes announcements until the stream ends, and reports whether there was one.
func (s *Signer) watch(ctx context.Context) (heard bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The first announcement comes at once, the others whenever something changes.
	first := time.AfterFunc(s.timeout, func() { cancel(fmt.Errorf("the server announced nothing for %s", s.timeout)) })
	defer first.Stop()
	stream, err := s.client.WatchAuthorities(ctx, &cav1.WatchAuthoritiesRequest{}, grpc.MaxCallRecvMsgSize(maxAnnounced))
	if err != nil {
		return false, cmp.Or(context.Cause(ctx), err)
	}
	for {
		a, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return heard, errors.New("the server ended WatchAuthorities")
		}
		if err != nil {
			return heard, cmp.Or(context.Cause(ctx), err)
		}
		first.Stop()
		heard = true
		s.log(s.announced(a))
	}
}

// poll asks a server that has no WatchAuthorities.
func (s *Signer) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	answer, err := s.client.GetRoots(ctx, &cav1.GetRootsRequest{})
	if err != nil {
		return err
	}
	return s.announced(&cav1.WatchAuthoritiesResponse{RootCertificates: answer.GetRootCertificates()})
}

// announced takes an announcement. A bad one changes nothing.
func (s *Signer) announced(a *cav1.WatchAuthoritiesResponse) error {
	parsed, err := parse(a, s.can)
	if err != nil {
		return fmt.Errorf("announcement: %w", err)
	}
	if err := s.trust.Set(parsed.roots, parsed.intermediates, parsed.crls); err != nil {
		return fmt.Errorf("announcement: %w", err)
	}
	if parsed.lacks == "" {
		s.problem.Store(nil)
		return parsed.leftOut
	}
	problem := fmt.Sprintf("%s announces other capabilities than the signer file says (%s); correct capabilities there, or the server",
		s.server.Name, parsed.lacks)
	s.problem.Store(&problem)
	return errors.Join(errors.New(problem), parsed.leftOut)
}

// log notes a problem, and writes it into the log unless that was the last.
func (s *Signer) log(err error) {
	if err != nil {
		err = errors.New(upstream.Quote(err.Error()))
	}
	if !s.problems.Set("authorities", err) {
		return
	}
	if err == nil {
		s.deps.Log.Info("signer's authorities are followed again", "signer", s.server.Name)
		return
	}
	s.deps.Log.Warn("signer's authorities cannot be followed, or only in part; the last good ones stay", "signer", s.server.Name,
		"error", err)
}
