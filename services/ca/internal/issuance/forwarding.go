package issuance

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/refusal"
)

// Tokens verifies workloads' tokens; auth.JWT does.
type Tokens interface {
	Verify(ctx context.Context, token string) (auth.Peer, error)
}

// Forwarding is fairlead.ca.v1.ForwardingService: certificate requests that xds-servers received. The token that came
// with a request decides whose certificate it is. The forwarding server's own identity gives a right to call this
// method and nothing else: it is never the identity of a certificate issued here.
type Forwarding struct {
	cav1.UnimplementedForwardingServiceServer
	service *Service
	tokens  Tokens
}

// NewForwarding makes the service; the requests are decided as those of service are.
func NewForwarding(service *Service, tokens Tokens) *Forwarding {
	return &Forwarding{service: service, tokens: tokens}
}

// ForwardCertificateRequest issues a certificate for the identity that the forwarded token proves.
func (f *Forwarding) ForwardCertificateRequest(
	ctx context.Context, req *cav1.ForwardCertificateRequestRequest,
) (*cav1.ForwardCertificateRequestResponse, error) {
	by, ok := auth.PeerFrom(ctx)
	if !ok || by.Method != auth.MethodMTLS {
		return nil, status.Error(codes.PermissionDenied, "only a server with a client certificate may forward certificate requests")
	}
	via := []any{"via", by.ID.String(), "address", req.GetAddress()}
	caller, err := f.tokens.Verify(ctx, req.GetToken())
	if err != nil {
		// Whose request this was is not known: the audit line is the forwarding server's.
		unproven := refusal.New(refusal.Unproven, refusal.Unauthenticated, "%v; send a valid token with the request", err)
		return nil, f.service.refuse(ctx, request{caller: by, via: via}, unproven, 0)
	}
	forwarded := request{caller: caller, csr: req.GetCsr(), validity: req.GetValidityDuration(), via: via}
	if caller.ID.String() != req.GetIdentity() {
		foreign := refusal.New(refusal.Denied, refusal.ForeignIdentity,
			"the token is of %s, and the workload was authenticated as %s; send a token of the same identity", caller.ID, req.GetIdentity())
		return nil, f.service.refuse(ctx, forwarded, foreign, 0)
	}
	chain, err := f.service.answer(ctx, forwarded)
	if err != nil {
		return nil, err
	}
	return &cav1.ForwardCertificateRequestResponse{CertificateChain: chain}, nil
}
