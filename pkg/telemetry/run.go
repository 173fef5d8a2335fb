package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"fairlead.dev/pkg/process"
)

// flushTimeout bounds how long the last traces may take to leave.
const flushTimeout = 3 * time.Second

// RunConfig says what a service's flags said of its telemetry.
type RunConfig struct {
	// Service names the program.
	Service string
	// LogLevel is the value of --log-level.
	LogLevel string
	// OTLPEndpoint is the value of --otlp-endpoint; empty sends no traces.
	OTLPEndpoint string
}

// Run gives a service its log on standard error, its metrics and its traces for as long as serve runs, and flushes the
// traces after it. A value that cannot be used is an error of usage that names its flag.
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
