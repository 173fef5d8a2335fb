// Package issuance serves Istio's certificate service: it joins admission, the request's parser, policy and signer, chooses the gRPC status, and writes one
// audit line per decision.
package issuance

import (
	"context"
	"crypto/x509"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/quota"
	"fairlead.dev/services/ca/internal/authn"
	"fairlead.dev/services/ca/internal/csr"
	"fairlead.dev/services/ca/internal/policy"
	"fairlead.dev/services/ca/internal/refusal"
	"fairlead.dev/services/ca/internal/signer"
)

// ImpersonatedIdentity is the metadata field in which Istio's node proxy names the workload it asks for.
const ImpersonatedIdentity = "ImpersonatedIdentity"

// Gate admits requests.
type Gate interface {
	Enter(ctx context.Context, caller string) (leave func(), err error)
	RetryAfter(fraction float64) time.Duration
}

// Signer signs what policy decided.
type Signer interface {
	Sign(template *x509.Certificate) (*signer.Issued, error)
	Issuer() *x509.Certificate
}

// Clock is the part of a clock that is needed here.
type Clock interface{ Now() time.Time }

// Config of the service. All fields are required.
type Config struct {
	Gate    Gate
	Policy  *policy.Policy
	Signer  Signer
	Clock   Clock
	Log     *slog.Logger
	Metrics *Metrics
	// Random is uniform in [0,1), for spreading retries.
	Random func() float64
}

// Service is istio.v1.auth.IstioCertificateService.
type Service struct {
	security.UnimplementedIstioCertificateServiceServer
	cfg Config
	// lines limits the audit lines of refused requests, for each caller: one that is refused again and again fills
	// nobody's disk. Certificates issued are not limited: each is a line.
	lines *quota.Callers
}

// The audit lines that each caller's refused requests may have. A person sees what is wrong from the first; the counters
// count every refusal.
const (
	refusedLinesEvery  = time.Second
	refusedLinesAtOnce = 20
)

// New makes the service.
func New(cfg Config) *Service {
	return &Service{cfg: cfg, lines: quota.New(refusedLinesEvery, refusedLinesAtOnce)}
}

// request is what is asked, by whom.
type request struct {
	// caller is the workload.
	caller   auth.Peer
	csr      string
	validity int64
	// metadata is nil in requests that another server has forwarded.
	metadata *structpb.Struct
	// via says in the audit log who forwarded the request; empty if the workload itself has called.
	via []any
}

// CreateCertificate issues a certificate for the authenticated caller. The chain has the leaf first and the root last.
func (s *Service) CreateCertificate(ctx context.Context, req *security.IstioCertificateRequest) (*security.IstioCertificateResponse, error) {
	caller, ok := auth.PeerFrom(ctx)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "no authenticated caller")
	}
	chain, err := s.answer(ctx, request{caller: caller, csr: req.GetCsr(), validity: req.GetValidityDuration(), metadata: req.GetMetadata()})
	if err != nil {
		return nil, err
	}
	return &security.IstioCertificateResponse{CertChain: chain}, nil
}

// answer decides a request, counts the decision and writes its audit line.
func (s *Service) answer(ctx context.Context, req request) ([]string, error) {
	start := s.cfg.Clock.Now()
	issued, err := s.issue(ctx, req)
	took := s.cfg.Clock.Now().Sub(start)
	if err != nil {
		return nil, s.refuse(ctx, req, err, took)
	}
	leaf := issued.Certificate
	s.cfg.Metrics.issuedTo(req.caller.Method, start, took)
	s.cfg.Log.InfoContext(ctx, "audit", append([]any{
		"decision", "issued", "caller", req.caller.ID.String(), "method", req.caller.Method, "identity", leaf.URIs[0].String(),
		"dns_names", leaf.DNSNames, "ip_addresses", leaf.IPAddresses, "serial", issued.Serial(), "not_after", leaf.NotAfter, "duration", took,
	}, req.via...)...)
	return issued.ChainPEM, nil
}

func (s *Service) issue(ctx context.Context, req request) (*signer.Issued, error) {
	waitFrom := s.cfg.Clock.Now()
	leave, err := s.cfg.Gate.Enter(ctx, req.caller.ID.String())
	if err != nil {
		return nil, err
	}
	defer leave()
	now := s.cfg.Clock.Now()
	s.cfg.Metrics.waited.Observe(now.Sub(waitFrom).Seconds())
	ask := policy.Ask{Caller: req.caller.ID, Proven: now, TTLSeconds: req.validity}
	if req.caller.Method == auth.MethodMTLS {
		ask.ByCertificate, ask.Proven = true, authn.Proven(ctx)
	}
	if ask.Impersonate, err = impersonated(req.metadata); err != nil {
		return nil, err
	}
	if ask.CSR, err = csr.Parse(req.csr); err != nil {
		return nil, err
	}
	issuer := s.cfg.Signer.Issuer()
	template, err := s.cfg.Policy.Decide(ask, now, policy.Validity{NotBefore: issuer.NotBefore, NotAfter: issuer.NotAfter})
	if err != nil {
		return nil, err
	}
	return s.cfg.Signer.Sign(template)
}

// impersonated is the identity that the metadata asks for instead of the caller's. A field that is there but is not a name must not read as absent.
func impersonated(metadata *structpb.Struct) (string, error) {
	value, ok := metadata.GetFields()[ImpersonatedIdentity]
	if !ok {
		return "", nil
	}
	if value.GetStringValue() == "" {
		return "", refusal.New(refusal.Invalid, refusal.RequestMetadata, "metadata field %s is not a SPIFFE ID; remove it or set it", ImpersonatedIdentity)
	}
	return value.GetStringValue(), nil
}

func (s *Service) refuse(ctx context.Context, req request, err error, took time.Duration) error {
	caller := req.caller
	refused, ok := refusal.From(err)
	if !ok {
		s.cfg.Log.ErrorContext(ctx, "certificate could not be issued", "caller", caller.ID.String(), "error", err)
		refused = &refusal.Error{Kind: refusal.Unavailable, Reason: refusal.InternalSignFailure, Detail: "the ca could not issue the certificate; its log says why"}
	}
	s.cfg.Metrics.Refused(refused.Reason)
	s.cfg.Metrics.duration.WithLabelValues("refused").Observe(took.Seconds())
	if leftOut, ok := s.lines.Allow(caller.ID.String(), s.cfg.Clock.Now()); ok {
		s.cfg.Log.InfoContext(ctx, "audit", append([]any{
			"decision", "refused", "caller", caller.ID.String(), "method", caller.Method, "reason", string(refused.Reason),
			"detail", refused.Detail, "duration", took, "lines_left_out", leftOut,
		}, req.via...)...)
	}
	return s.statusOf(refused)
}

// statusOf chooses the code. UNAVAILABLE and RESOURCE_EXHAUSTED are those that gRPC clients, Istio's agent among them, try again by themselves.
func (s *Service) statusOf(refused *refusal.Error) error {
	code := codes.Internal
	switch refused.Kind {
	case refusal.Invalid:
		code = codes.InvalidArgument
	case refusal.Denied:
		code = codes.PermissionDenied
	case refusal.Unproven:
		code = codes.Unauthenticated
	case refusal.Overloaded:
		code = codes.ResourceExhausted
	case refusal.Unavailable:
		code = codes.Unavailable
	}
	retryAfter := time.Duration(0)
	if refused.Kind == refusal.Overloaded {
		retryAfter = s.cfg.Gate.RetryAfter(s.cfg.Random())
	}
	return refusal.Detailed(status.New(code, refused.Detail), refused.Reason, retryAfter)
}
