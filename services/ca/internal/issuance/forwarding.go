package issuance

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/authn"
	"fairlead.dev/services/ca/internal/rejection"
)

// Tokens verifies workloads' tokens; *auth.JWT implements it.
type Tokens interface {
	Verify(ctx context.Context, token string) (auth.Peer, error)
}

// Forwarding is fairlead.ca.v1.ForwardingService, to which xds-servers forward the certificate requests that they
// receive. The workload's token in the request decides whose certificate is issued. The forwarding server's own
// identity permits the call and nothing else.
type Forwarding struct {
	cav1.UnimplementedForwardingServiceServer
	service *Service
	tokens  Tokens
}

// NewForwarding makes a Forwarding that decides requests with service.
func NewForwarding(service *Service, tokens Tokens) *Forwarding {
	return &Forwarding{service: service, tokens: tokens}
}

// ForwardCertificateRequest issues a certificate for the identity that the forwarded token proves.
func (f *Forwarding) ForwardCertificateRequest(
	ctx context.Context, req *cav1.ForwardCertificateRequestRequest,
) (*cav1.ForwardCertificateRequestResponse, error) {
	forwarder, ok := auth.PeerFrom(ctx)
	if !ok || forwarder.Method != auth.MethodMTLS {
		return nil, status.Error(codes.PermissionDenied, "only a server with a client certificate may forward certificate requests")
	}
	via := []any{"via", forwarder.ID.String(), "address", req.GetAddress()}
	caller, err := f.tokens.Verify(ctx, req.GetToken())
	if err != nil {
		// The workload is unknown, so the audit line names the forwarding server as the caller.
		invalid := rejection.New(rejection.InvalidToken, rejection.Unauthenticated, "%v; send a valid token with the request", err)
		return nil, f.service.reject(ctx, request{caller: forwarder, via: append(via, authn.OfCluster(err)...)}, invalid, 0)
	}
	forwarded := request{caller: caller, csr: req.GetCsr(), validity: req.GetValidityDuration(), token: req.GetToken(), via: via}
	if caller.ID.String() != req.GetIdentity() {
		foreign := rejection.New(rejection.Denied, rejection.ForeignIdentity,
			"the token is of %s, and the workload was authenticated as %s; send a token of the same identity", caller.ID, req.GetIdentity())
		return nil, f.service.reject(ctx, forwarded, foreign, 0)
	}
	chain, err := f.service.handle(ctx, forwarded)
	if err != nil {
		return nil, err
	}
	return &cav1.ForwardCertificateRequestResponse{CertificateChain: chain}, nil
}
