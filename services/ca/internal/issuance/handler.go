// Package issuance implements the gRPC services that issue certificates. Service is Istio's certificate service, which
// workloads call; Forwarding is Fairlead's, to which xds-servers forward requests. Both pass a request through
// admission, csr, policy and signer, choose the gRPC status, count the decision in Metrics and write an audit line.
package issuance

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/quota"
	"fairlead.dev/services/ca/internal/authn"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/csr"
	"fairlead.dev/services/ca/internal/holders"
	"fairlead.dev/services/ca/internal/policy"
	"fairlead.dev/services/ca/internal/rejection"
	"fairlead.dev/services/ca/internal/signer"
)

// Fields of a request's metadata that count.
const (
	// ImpersonatedIdentity is where Istio's ztunnel names the workload that it asks for.
	ImpersonatedIdentity = "ImpersonatedIdentity"
	// CertSigner is where Istio's agent names the profile of a signer that it wants (ISTIO_META_CERT_SIGNER). It always
	// sends the field, mostly with an empty text, which asks for none.
	CertSigner = "CertSigner"
)

// Gate admits requests; *admission.Gate implements it.
type Gate interface {
	Enter(ctx context.Context, caller string) (leave func(), err error)
	RetryAfter(fraction float64) time.Duration
}

// Clock is the part of a clock that is needed here.
type Clock interface{ Now() time.Time }

// Config of the service. All fields but Accounts, Clusters, Bans and Holders are required.
type Config struct {
	// Accounts checks that the account of a credential still exists; nil where nobody knows.
	Accounts interface {
		Check(ctx context.Context, caller auth.Peer, since time.Time) error
	}
	// Clusters says whether a remote cluster may have an identity; nil where there are none.
	Clusters interface {
		CheckCluster(name string, id spiffeid.ID) error
	}
	// Bans refuses banned identities; nil where nobody knows.
	Bans interface{ Check(id spiffeid.ID) error }
	// Holders is told of each certificate before the answer leaves; nil where nobody counts them.
	Holders interface{ Issued(holders.Certificate) }
	Gate    Gate
	Policy  *policy.Policy
	Signer  *authority.Authority
	Clock   Clock
	Log     *slog.Logger
	Metrics *Metrics
	// Random is uniform in [0,1); it spreads retries.
	Random func() float64
}

// Service is istio.v1.auth.IstioCertificateService.
type Service struct {
	security.UnimplementedIstioCertificateServiceServer
	cfg Config
	// lines limits the audit lines of refused requests, for each caller: one that is refused again and again fills
	// nobody's disk. Certificates issued are not limited: each is a line.
	lines *quota.Callers
	// signerLines limits the lines about the signer, for each reason.
	signerLines *quota.Callers
}

// The audit lines that each caller's refused requests may have. A person sees what is wrong from the first; the
// counters count every refusal.
const (
	refusedLinesEvery  = time.Second
	refusedLinesAtOnce = 20
)

// New makes the service.
func New(cfg Config) *Service {
	return &Service{cfg: cfg, lines: quota.New(refusedLinesEvery, refusedLinesAtOnce),
		signerLines: quota.New(refusedLinesEvery, refusedLinesAtOnce)}
}

// request is one certificate request with its caller.
type request struct {
	// caller is the workload, or the forwarding server while the workload is unknown.
	caller   auth.Peer
	csr      string
	validity int64
	// token is the bearer token that proved the caller's identity, empty if a certificate did.
	token string
	// metadata is nil in forwarded requests.
	metadata *structpb.Struct
	// via holds the audit log's attributes on who forwarded the request; empty if the workload itself called.
	via []any
}

// more are the attributes of audit lines beside those of every line.
func (r *request) more() []any {
	if r.caller.Cluster == "" {
		return r.via
	}
	return append([]any{"cluster", r.caller.Cluster}, r.via...)
}

// CreateCertificate issues a certificate for the authenticated caller. The chain has the leaf first and the root last.
func (s *Service) CreateCertificate(ctx context.Context, req *security.IstioCertificateRequest) (*security.IstioCertificateResponse,
	error) {
	caller, ok := auth.PeerFrom(ctx)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "no authenticated caller")
	}
	r := request{caller: caller, csr: req.GetCsr(), validity: req.GetValidityDuration(), metadata: req.GetMetadata()}
	if caller.Method == auth.MethodJWT {
		r.token, _ = auth.BearerToken(ctx) // it has been verified
	}
	chain, err := s.handle(ctx, r)
	if err != nil {
		return nil, err
	}
	return &security.IstioCertificateResponse{CertChain: chain}, nil
}

// handle decides a request, counts the decision and writes its audit line. It returns the certificate chain or a gRPC
// status.
func (s *Service) handle(ctx context.Context, req request) ([]string, error) {
	start := s.cfg.Clock.Now()
	issued, err := s.issue(ctx, req)
	took := s.cfg.Clock.Now().Sub(start)
	if err != nil {
		return nil, s.reject(ctx, req, err, took)
	}
	leaf := issued.Certificate
	if s.cfg.Holders != nil {
		s.cfg.Holders.Issued(held(ctx, req.caller, issued))
	}
	s.cfg.Metrics.issuedTo(req.caller.Method, start, took)
	s.cfg.Log.InfoContext(ctx, "audit", append([]any{
		"decision", "issued", "caller", req.caller.ID.String(), "method", req.caller.Method, "identity", leaf.URIs[0].String(),
		"dns_names", leaf.DNSNames, "ip_addresses", leaf.IPAddresses, "serial", issued.Serial(), "not_after", leaf.NotAfter, "duration", took,
	}, req.more()...)...)
	return issued.ChainPEM, nil
}

// issue decides a request and has the certificate signed. A signer in another process is asked after the worker is free
// again, so that a slow one delays only those that wait for it.
func (s *Service) issue(ctx context.Context, req request) (*authority.Issued, error) {
	waitFrom := s.cfg.Clock.Now()
	leave, err := s.cfg.Gate.Enter(ctx, req.caller.ID.String())
	if err != nil {
		return nil, err
	}
	leave = sync.OnceFunc(leave)
	defer leave()
	now := s.cfg.Clock.Now()
	s.cfg.Metrics.waited.Observe(now.Sub(waitFrom).Seconds())
	session, err := s.cfg.Signer.Begin()
	if err != nil {
		return nil, err
	}
	decided, err := s.decide(ctx, req, session, now)
	if err != nil {
		return nil, err
	}
	if session.Capabilities().Remote {
		leave()
	}
	return session.Issue(ctx, decided)
}

// decide makes of a request what the signer is to sign.
func (s *Service) decide(ctx context.Context, req request, session authority.Session, now time.Time) (*signer.Request, error) {
	wanted := policy.Request{Caller: req.caller.ID, TokenTime: now, Cluster: req.caller.Cluster, TTLSeconds: req.validity}
	if req.caller.Method == auth.MethodMTLS {
		wanted.ByCertificate, wanted.TokenTime = true, authn.TokenTime(ctx)
	}
	var err error
	if wanted.Impersonate, err = impersonated(req.metadata); err != nil {
		return nil, err
	}
	if wanted.CSR, err = csr.Parse(req.csr); err != nil {
		return nil, err
	}
	if err := s.standing(ctx, req.caller, wanted.TokenTime); err != nil {
		return nil, err
	}
	issuer, err := session.Bounds()
	if err != nil {
		return nil, err
	}
	template, err := s.cfg.Policy.Decide(wanted, now, issuer)
	if err != nil {
		return nil, err
	}
	out := &signer.Request{Template: template, CSR: wanted.CSR.DER, Identity: req.caller.ID, Token: req.token,
		Profile: req.metadata.GetFields()[CertSigner].GetStringValue()}
	if wanted.Impersonate != "" {
		if out.Identity, err = spiffeid.FromURI(template.URIs[0]); err != nil {
			return nil, err
		}
		out.Token = "" // it proves another identity
		// Nothing has been shown for this identity: that its account exists now is what can be known.
		if err := s.standing(ctx, auth.Peer{ID: out.Identity, Method: req.caller.Method}, now); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// standing returns why an identity gets no certificate, whoever asks: it is banned, or its account is gone. since is
// when its owner last showed a token.
func (s *Service) standing(ctx context.Context, peer auth.Peer, since time.Time) error {
	if s.cfg.Bans != nil {
		if err := s.cfg.Bans.Check(peer.ID); err != nil {
			return err
		}
	}
	if peer.Cluster != "" {
		return s.ofCluster(peer)
	}
	if s.cfg.Accounts == nil {
		return nil
	}
	return s.cfg.Accounts.Check(ctx, peer, since)
}

// ofCluster returns why a workload of a remote cluster gets no certificate. Its account is not asked about: the own
// cluster does not know it.
func (s *Service) ofCluster(peer auth.Peer) error {
	err := errors.New("this ca takes no tokens of remote clusters")
	if s.cfg.Clusters != nil {
		err = s.cfg.Clusters.CheckCluster(peer.Cluster, peer.ID)
	}
	if err != nil {
		return rejection.New(rejection.Denied, rejection.ForeignCluster, "%s: %v", peer.ID, err)
	}
	return nil
}

// impersonated returns the identity that the metadata asks for instead of the caller's, "" if the field is absent. A
// field without a name is an error and does not count as absent.
func impersonated(metadata *structpb.Struct) (string, error) {
	value, ok := metadata.GetFields()[ImpersonatedIdentity]
	if !ok {
		return "", nil
	}
	if value.GetStringValue() == "" {
		return "", rejection.New(rejection.Invalid, rejection.RequestMetadata, "metadata field %s is not a SPIFFE ID; remove it or set it",
			ImpersonatedIdentity)
	}
	return value.GetStringValue(), nil
}

// reject counts a rejection, writes its audit line unless the caller's quota is used up, and returns the gRPC status.
// Other errors are logged, and the caller is told only that the ca failed.
func (s *Service) reject(ctx context.Context, req request, err error, took time.Duration) error {
	caller := req.caller
	rejected, ok := rejection.From(err)
	if failed, of := errors.AsType[*signer.Error](err); !ok && of {
		rejected, ok = s.failed(ctx, caller, failed), true
	}
	if !ok {
		s.cfg.Log.ErrorContext(ctx, "certificate could not be issued", "caller", caller.ID.String(), "error", err)
		rejected = &rejection.Error{Kind: rejection.Unavailable, Reason: rejection.InternalSignFailure,
			Detail: "the ca could not issue the certificate; its log says why"}
	}
	s.cfg.Metrics.Refused(rejected.Reason)
	s.cfg.Metrics.duration.WithLabelValues("refused").Observe(took.Seconds())
	if leftOut, ok := s.lines.Allow(caller.ID.String(), s.cfg.Clock.Now()); ok {
		s.cfg.Log.InfoContext(ctx, "audit", append([]any{
			"decision", "refused", "caller", caller.ID.String(), "method", caller.Method, "reason", string(rejected.Reason),
			"detail", rejected.Detail, "duration", took, "lines_left_out", leftOut,
		}, req.more()...)...)
	}
	return s.statusOf(rejected)
}

// failed makes a rejection of a signer's error. What the signer says is for the ca's operator, in the log; the caller
// is told what it can do.
func (s *Service) failed(ctx context.Context, caller auth.Peer, err *signer.Error) *rejection.Error {
	r := &rejection.Error{Kind: rejection.Unavailable, RetryAfter: err.RetryAfter}
	switch err.Fault {
	case signer.Unsuitable:
		r.Kind, r.Reason, r.Detail = rejection.Invalid, rejection.SignerUnsuitable, err.Error()
		return r
	case signer.Busy:
		r.Kind, r.Reason, r.Detail = rejection.Overloaded, rejection.SignerBusy, err.Error()
		return r
	case signer.Away:
		r.Reason, r.Detail = rejection.SignerAway, "the signer of the mesh cannot be reached; retry later"
	case signer.Refused:
		r.Reason, r.Detail = rejection.SignerRefused, "the signer of the mesh refuses; the ca's log says why"
	case signer.Lied:
		r.Reason, r.Detail = rejection.SignerLied,
			"the signer of the mesh issued another certificate than it was asked for; the ca's log says which"
	}
	if _, ok := s.signerLines.Allow(string(r.Reason), s.cfg.Clock.Now()); ok {
		s.cfg.Log.ErrorContext(ctx, "the signer issued no certificate", "reason", string(r.Reason), "caller", caller.ID.String(), "error", err)
	}
	return r
}

// statusOf chooses the gRPC code. Istio's agent, like other gRPC clients, retries after UNAVAILABLE and
// RESOURCE_EXHAUSTED.
func (s *Service) statusOf(rejected *rejection.Error) error {
	code := codes.Internal
	switch rejected.Kind {
	case rejection.Invalid:
		code = codes.InvalidArgument
	case rejection.Denied:
		code = codes.PermissionDenied
	case rejection.InvalidToken:
		code = codes.Unauthenticated
	case rejection.Overloaded:
		code = codes.ResourceExhausted
	case rejection.Unavailable:
		code = codes.Unavailable
	}
	retryAfter := rejected.RetryAfter
	if rejected.Kind == rejection.Overloaded || retryAfter > 0 {
		retryAfter = max(retryAfter, s.cfg.Gate.RetryAfter(s.cfg.Random()))
	}
	return rejection.WithDetails(status.New(code, rejected.Detail), rejected.Reason, retryAfter)
}
