package access

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/audit"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Bounds of the audit lines in one answer.
const (
	defaultLines = 100
	maxLines     = 1000
)

// Lines reads the audit log; audit.Log implements it.
type Lines interface {
	Last(n int) ([]string, error)
	Verify() (covers, broken string, err error)
}

// Service implements AccessService.
type Service struct {
	configv1.UnimplementedAccessServiceServer
	access *Access
	lines  Lines
}

// NewService returns a service for an Access and an audit log.
func NewService(a *Access, lines Lines) *Service { return &Service{access: a, lines: lines} }

// Caller returns the verified caller of the call that ctx belongs to. The error is a status for the caller.
func Caller(ctx context.Context) (auth.Peer, error) {
	p, ok := auth.PeerFrom(ctx)
	if !ok {
		return p, status.Error(codes.PermissionDenied, "call was not authenticated")
	}
	return p, nil
}

// WhoAmI implements AccessService.
func (s *Service) WhoAmI(ctx context.Context, _ *configv1.WhoAmIRequest) (*configv1.WhoAmIResponse, error) {
	p, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	out := &configv1.WhoAmIResponse{Identity: p.ID.String(), Method: p.Method}
	for _, g := range s.access.Grants(p.ID.String()) {
		out.Grants = append(out.Grants, &configv1.Grant{Role: g.Role, Verbs: g.Verbs, Namespaces: g.Namespaces})
	}
	return out, nil
}

// CanI implements AccessService.
func (s *Service) CanI(ctx context.Context, req *configv1.CanIRequest) (*configv1.CanIResponse, error) {
	p, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(Verbs(), req.Verb) {
		return nil, status.Errorf(codes.InvalidArgument, "verb %s is none; those are %v", object.Quote(req.Verb), Verbs())
	}
	k := object.Key{Namespace: req.Namespace}
	known := false
	if k.Group, k.Kind, known = kinds.ByName(req.Kind); !known && req.Kind != "" {
		return nil, status.Errorf(codes.InvalidArgument, "kind %s is unknown; kinds are written like VirtualService", object.Quote(req.Kind))
	}
	if kinds.ClusterScoped(k.Group, k.Kind) {
		k.Namespace = ""
	}
	if err := s.access.May(p.ID.String(), req.Verb, k); err != nil {
		return &configv1.CanIResponse{Reason: err.Error()}, nil //nolint:nilerr // the error is the answer
	}
	return &configv1.CanIResponse{Allowed: true}, nil
}

// ListAudit implements AccessService.
func (s *Service) ListAudit(ctx context.Context, req *configv1.ListAuditRequest) (*configv1.ListAuditResponse, error) {
	p, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.access.IsAdmin(p.ID.String()); err != nil {
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	n := int(cmp.Or(min(req.Last, maxLines), defaultLines))
	out := &configv1.ListAuditResponse{}
	if out.Lines, err = s.lines.Last(n); err == nil && req.Verify {
		out.Verified, out.Broken, err = s.lines.Verify()
	}
	switch {
	case errors.Is(err, audit.ErrNoFile):
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	}
	return out, nil
}
