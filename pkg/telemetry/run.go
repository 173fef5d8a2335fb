package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"fairlead.dev/pkg/process"
)

// flushTimeout bounds the flush of traces at the end.
const flushTimeout = 3 * time.Second

// RunConfig holds a service's flags about telemetry.
type RunConfig struct {
	// Service names the program.
	Service string
	// LogLevel is the value of --log-level.
	LogLevel string
	// OTLPEndpoint is the value of --otlp-endpoint; empty sends no traces.
	OTLPEndpoint string
}

// Run calls serve with a logger for standard error, metrics and traces, and flushes the traces after it. A wrong value
// is a usage error that names its flag.
func Run(ctx context.Context, cfg RunConfig, serve func(*slog.Logger, *Telemetry) error) error {
	log, err := NewLogger(os.Stderr, cfg.LogLevel, cfg.Service)
	if err != nil {
		return process.WithExitCode(fmt.Errorf("--log-level: %w", err), process.ExitUsage)
	}
	tel, err := Setup(ctx, Config{Service: cfg.Service, OTLPEndpoint: cfg.OTLPEndpoint, Log: log})
	if err != nil {
		return process.WithExitCode(fmt.Errorf("--otlp-endpoint: %w", err), process.ExitUsage)
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := tel.Shutdown(flush); err != nil {
			log.Warn("traces not flushed", "error", err)
		}
	}()
	return serve(log, tel)
}
