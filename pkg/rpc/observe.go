package rpc

import (
	"context"
	"log/slog"
	"runtime/debug"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
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

// slogAdapter logs the one event that loggingOptions asks for.
func slogAdapter(log *slog.Logger) logging.Logger {
	return logging.LoggerFunc(func(ctx context.Context, level logging.Level, _ string, fields ...any) {
		log.Log(ctx, slog.Level(level), "gRPC call finished", fields...)
	})
}

func loggingOptions() []logging.Option {
	return []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithLevels(callLevel),
		logging.WithDurationField(logging.DurationToDurationField),
		logging.WithFieldsFromContext(func(ctx context.Context) logging.Fields {
			p, ok := auth.PeerFrom(ctx)
			if !ok {
				return nil
			}
			return logging.Fields{"peer", p.ID.String(), "peer_method", p.Method}
		}),
	}
}

// callLevel is Debug for ordinary outcomes, mistakes of callers among them, so that a busy server does not log each
// call.
func callLevel(code codes.Code) logging.Level {
	switch code {
	case codes.Unknown, codes.Internal, codes.DataLoss, codes.Unimplemented:
		return logging.LevelError
	case codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted:
		return logging.LevelWarn
	default:
		return logging.LevelDebug
	}
}
