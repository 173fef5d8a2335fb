package rpc

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
)

// recoveryOption logs and counts a panic, and hides it from the caller.
func recoveryOption(log *slog.Logger, panics prometheus.Counter) recovery.Option {
	return recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		panics.Inc()
		log.ErrorContext(ctx, "gRPC handler panicked", "panic", p, "stack", string(debug.Stack()))
		return status.Error(codes.Internal, "internal error")
	})
}

// logUnary logs calls that have finished.
func logUnary(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		began := time.Now()
		res, err := handler(ctx, req)
		logFinished(ctx, log, info.FullMethod, began, err)
		return res, err
	}
}

// logStream logs streams that have ended.
func logStream(log *slog.Logger) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		began := time.Now()
		err := handler(srv, stream)
		logFinished(stream.Context(), log, info.FullMethod, began, err)
		return err
	}
}

// logFinished makes a line of a call if one of its level is logged. A busy server does not spend time on others.
func logFinished(ctx context.Context, log *slog.Logger, method string, began time.Time, err error) {
	code := status.Code(err)
	level := callLevel(code)
	if !log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 7)
	attrs = append(attrs, slog.String("method", method), slog.String("code", code.String()), slog.Duration("duration", time.Since(began)))
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		attrs = append(attrs, slog.String("address", p.Addr.String()))
	}
	if p, ok := auth.PeerFrom(ctx); ok {
		attrs = append(attrs, slog.String("peer", p.ID.String()), slog.String("peer_method", p.Method))
	}
	log.LogAttrs(ctx, level, "gRPC call finished", attrs...)
}

// callLevel is Debug for ordinary outcomes, mistakes of callers among them, so that a busy server does not log each
// call.
func callLevel(code codes.Code) slog.Level {
	switch code {
	case codes.Unknown, codes.Internal, codes.DataLoss, codes.Unimplemented:
		return slog.LevelError
	case codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted:
		return slog.LevelWarn
	default:
		return slog.LevelDebug
	}
}
