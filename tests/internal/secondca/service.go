package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// forwarder is who may forward the requests of others.
const forwarder = "istio-system/xds-server"

type service struct {
	security.UnimplementedIstioCertificateServiceServer
	cav1.UnimplementedForwardingServiceServer
	cav1.UnimplementedTrustServiceServer
	*authority
	log *slog.Logger
}

// CreateCertificate implements Istio's API: the caller is who its token says, or without one its certificate.
func (s *service) CreateCertificate(ctx context.Context, r *security.IstioCertificateRequest) (*security.IstioCertificateResponse, error) {
	account, err := s.caller(ctx)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	chain, err := s.issue(account, r.GetCsr(), r.GetValidityDuration())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &security.IstioCertificateResponse{CertChain: chain}, nil
}

// ForwardCertificateRequest implements cav1.ForwardingServiceServer.
func (s *service) ForwardCertificateRequest(ctx context.Context, r *cav1.ForwardCertificateRequestRequest,
) (*cav1.ForwardCertificateRequestResponse, error) {
	if by, err := s.peer(ctx); err != nil || by != forwarder {
		return nil, status.Errorf(codes.PermissionDenied, "%q may not forward requests", by)
	}
	account, err := s.token(r.GetToken())
	if err == nil && s.uri(account) != r.GetIdentity() {
		err = fmt.Errorf("the token is of %s, not of %s", account, r.GetIdentity())
	}
	if err != nil {
		return nil, about(codes.Unauthenticated, err)
	}
	chain, err := s.issue(account, r.GetCsr(), r.GetValidityDuration())
	if err != nil {
		return nil, about(codes.InvalidArgument, err)
	}
	return &cav1.ForwardCertificateRequestResponse{CertificateChain: chain}, nil
}

// about is an error about the token or the request, which the caller of ForwardCertificateRequest passes on.
func about(code codes.Code, err error) error {
	plain := status.New(code, err.Error())
	if detailed, err := plain.WithDetails(&errdetails.ErrorInfo{Reason: "REQUEST", Domain: "second.ca"}); err == nil {
		return detailed.Err()
	}
	return plain.Err()
}

// WatchBundle implements cav1.TrustServiceServer. There is one generation, until the root is replaced.
func (s *service) WatchBundle(stream cav1.TrustService_WatchBundleServer) error {
	if _, err := s.peer(stream.Context()); err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	signed, err := s.bundle()
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := stream.Send(&cav1.WatchBundleResponse{
		TrustDomain: s.domain, Epoch: generation, Generation: generation, RootCertificates: []string{string(s.rootPEM())}, SignedBundle: signed,
	}); err != nil {
		return err
	}
	for {
		ack, err := stream.Recv()
		if err != nil {
			return err
		}
		s.log.Info("acknowledged", "subscriber", first.GetSubscriber(), "generation", ack.GetAckedGeneration(), "agents", len(ack.GetAgents()))
	}
}

func (s *service) issue(account, csr string, seconds int64) ([]string, error) {
	block, _ := pem.Decode([]byte(csr))
	if block == nil {
		return nil, errors.New("the request is no PEM")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = r.CheckSignature()
	}
	if err != nil {
		return nil, err
	}
	for _, uri := range r.URIs {
		if uri.String() != s.uri(account) {
			return nil, fmt.Errorf("the request names %s", uri)
		}
	}
	leaf, err := s.sign(account, r.PublicKey, time.Duration(seconds)*time.Second)
	if err != nil {
		return nil, err
	}
	s.log.Info("issued", "account", account)
	return []string{string(encode(leaf)), string(s.rootPEM())}, nil
}

func (s *service) uri(account string) string {
	namespace, name, _ := strings.Cut(account, "/")
	return "spiffe://" + s.domain + "/ns/" + namespace + "/sa/" + name
}

// caller is who calls, namespace/service-account.
func (s *service) caller(ctx context.Context) (string, error) {
	for _, value := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		if token, ok := strings.CutPrefix(value, "Bearer "); ok {
			return s.token(token)
		}
	}
	return s.peer(ctx)
}

// peer is whose certificate the connection has; it was verified in the handshake, and may have ended since.
func (s *service) peer(ctx context.Context) (string, error) {
	p, _ := peer.FromContext(ctx)
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	if len(info.State.VerifiedChains) == 0 {
		return "", errors.New("neither a token nor a certificate")
	}
	cert := info.State.PeerCertificates[0]
	if time.Now().After(cert.NotAfter) || len(cert.URIs) != 1 {
		return "", errors.New("the certificate has expired, or has not one URI")
	}
	parts := strings.Split(cert.URIs[0].Path, "/")
	if cert.URIs[0].Host != s.domain || len(parts) != 5 {
		return "", fmt.Errorf("the certificate is of %s", cert.URIs[0])
	}
	return parts[2] + "/" + parts[4], nil
}

// token verifies a service account's.
func (s *service) token(text string) (string, error) {
	raw, err := os.ReadFile(s.keys)
	if err != nil {
		return "", err
	}
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal(raw, &keys); err != nil {
		return "", err
	}
	parsed, err := jwt.ParseSigned(text, []jose.SignatureAlgorithm{jose.ES256, jose.RS256})
	if err != nil {
		return "", err
	}
	var claims jwt.Claims
	if err := parsed.Claims(keys, &claims); err != nil {
		return "", err
	}
	if err := claims.Validate(jwt.Expected{Issuer: s.issuer, AnyAudience: jwt.Audience{"istio-ca"}, Time: time.Now()}); err != nil {
		return "", err
	}
	parts := strings.Split(claims.Subject, ":")
	if len(parts) != 4 || parts[0] != "system" || parts[1] != "serviceaccount" {
		return "", fmt.Errorf("the token is of %q, which is no service account", claims.Subject)
	}
	return parts[2] + "/" + parts[3], nil
}
