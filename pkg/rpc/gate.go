package rpc

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"fairlead.dev/pkg/auth"
)

// gate authenticates and authorises calls. It does so in the tap, when only the headers of a call have been read: an
// interceptor of a unary call runs after the message has been received, decompressed and decoded.
type gate struct {
	authenticator auth.Authenticator
	policy        auth.Policy
	log           *slog.Logger
	logRate       *rate.Limiter
	metrics       *serverMetrics
}

func newGate(a auth.Authenticator, p auth.Policy, log *slog.Logger, m *serverMetrics) *gate {
	return &gate{authenticator: a, policy: p, log: log, logRate: newLogRate(), metrics: m}
}

// newLogRate limits the log lines about refusals, so that an attacker cannot fill a disk with them.
func newLogRate() *rate.Limiter { return rate.NewLimiter(1, 20) }

type admittedKey struct{}

// tap is grpc.InTapHandle's function. It runs on the connection's reading goroutine; its error refuses the call.
func (g *gate) tap(ctx context.Context, info *tap.Info) (_ context.Context, err error) {
	defer func() {
		if p := recover(); p != nil {
			g.metrics.panics.Inc()
			g.log.ErrorContext(ctx, "authentication panicked", "panic", p, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error")
		}
		if err != nil {
			g.refuse(ctx, info.FullMethodName, err)
		}
	}()
	admitted := context.WithValue(ctx, admittedKey{}, info.FullMethodName)
	rule := g.policy.RuleFor(info.FullMethodName)
	if rule != nil && auth.IsAnonymous(rule) {
		return g.begin(admitted, nil)
	}
	if g.authenticator == nil {
		return ctx, status.Error(codes.PermissionDenied, "method is not allowed")
	}
	caller, err := g.authenticator.Authenticate(ctx)
	switch {
	case errors.Is(err, auth.ErrNoCredentials):
		return ctx, status.Error(codes.Unauthenticated, "credentials are required")
	case err != nil:
		return ctx, status.Error(codes.Unauthenticated, "credentials refused: "+err.Error())
	case rule == nil || !rule.Allowed(caller):
		return ctx, status.Error(codes.PermissionDenied, auth.WhyNot(rule, caller))
	}
	return g.begin(auth.NewContext(admitted, caller), &caller)
}

// begin counts the call against the limits of its connection and identity.
func (g *gate) begin(ctx context.Context, caller *auth.Peer) (context.Context, error) {
	c := connOf(ctx)
	if c == nil {
		return ctx, status.Error(codes.Internal, "call on a connection that this server has not taken")
	}
	return c.begin(ctx, caller)
}

// admitted is called by the interceptors. It refuses a call that the tap has not admitted.
func (g *gate) admitted(ctx context.Context) (context.Context, error) {
	if _, ok := ctx.Value(admittedKey{}).(string); !ok {
		return nil, status.Error(codes.PermissionDenied, "call was not authenticated")
	}
	return ctx, nil
}

func (g *gate) refuse(ctx context.Context, method string, err error) {
	g.metrics.refused.WithLabelValues(status.Code(err).String()).Inc()
	if c := connOf(ctx); c != nil {
		c.refusedCall()
	}
	if g.logRate.Allow() {
		addr := ""
		if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
			addr = p.Addr.String()
		}
		g.log.WarnContext(ctx, "gRPC call refused", "method", shortened(method), "address", addr, "error", err)
	}
}

// shortened bounds what an unknown caller can make the server log.
func shortened(s string) string {
	const limit = 200
	if len(s) > limit {
		return s[:limit] + "..."
	}
	return s
}
