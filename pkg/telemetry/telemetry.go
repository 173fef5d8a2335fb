// Package telemetry sets up a program's logs, metrics and traces: NewLogger and Setup make them, and Run does so for a
// service's whole life. Traces leave the process only if an OTLP endpoint is given.
package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"fairlead.dev/pkg/version"
)

// NewLogger returns a logger that writes JSON lines to w. level is debug, info, warn or error. Every line has the
// attribute service.
func NewLogger(w io.Writer, level, service string) (*slog.Logger, error) {
	var l slog.Level
	switch strings.ToLower(level) {
	case "debug":
		l = slog.LevelDebug
	case "info":
		l = slog.LevelInfo
	case "warn":
		l = slog.LevelWarn
	case "error":
		l = slog.LevelError
	default:
		return nil, fmt.Errorf("log level %q: must be one of debug, info, warn, error", level)
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l})).With("service", service), nil
}

// Config of a program's telemetry.
type Config struct {
	// Service names the program in metrics and traces.
	Service string
	// Version of the program; empty means version.Version.
	Version string
	// OTLPEndpoint receives traces by gRPC: "https://host:4317", "http://host:4317" (no TLS) or "host:4317" (TLS).
	// Empty means that no traces are recorded.
	OTLPEndpoint string
	// Log logs traces that could not be delivered. Optional.
	Log *slog.Logger
}

// Telemetry holds a program's metrics and traces.
type Telemetry struct {
	// Registry is the program's registry, with metrics of the Go runtime, the process and the build.
	Registry *prometheus.Registry
	// TracerProvider is a no-op without an endpoint. Setup also sets it as OpenTelemetry's global one, the default of
	// pkg/rpc.
	TracerProvider trace.TracerProvider

	shutdown func(context.Context) error
}

// Setup makes a program's telemetry. It does not connect: traces are sent in the background, and dropped while the
// endpoint is away.
func Setup(ctx context.Context, cfg Config) (*Telemetry, error) {
	if cfg.Service == "" {
		return nil, fmt.Errorf("telemetry: Service is required")
	}
	cfg.Version = cmp.Or(cfg.Version, version.Version)
	t := &Telemetry{Registry: newRegistry(cfg), TracerProvider: noop.NewTracerProvider()}
	if cfg.OTLPEndpoint != "" {
		endpoint, err := exporterEndpoint(cfg.OTLPEndpoint)
		if err != nil {
			return nil, err
		}
		exporter, err := otlptracegrpc.New(ctx, endpoint)
		if err != nil {
			return nil, fmt.Errorf("trace exporter for %q: %w", cfg.OTLPEndpoint, err)
		}
		provider := sdktrace.NewTracerProvider(
			sdktrace.WithBatcher(exporter),
			sdktrace.WithResource(resource.NewSchemaless(
				attribute.String("service.name", cfg.Service),
				attribute.String("service.version", cfg.Version),
			)),
		)
		t.TracerProvider, t.shutdown = provider, provider.Shutdown
	}
	otel.SetTracerProvider(t.TracerProvider)
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	if log := cfg.Log; log != nil {
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("telemetry could not be delivered", "error", err) }))
	}
	return t, nil
}

// Shutdown sends the buffered traces, until ctx ends.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	if t.shutdown == nil {
		return nil
	}
	if err := t.shutdown(ctx); err != nil {
		return fmt.Errorf("flush traces: %w", err)
	}
	return nil
}

func newRegistry(cfg Config) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := version.Info()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fairlead_build_info",
		Help: "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{
			"service": cfg.Service, "version": cfg.Version, "revision": build.Revision, "go": build.Go,
		},
	})
	info.Set(1)
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func exporterEndpoint(s string) (otlptracegrpc.Option, error) {
	if !strings.Contains(s, "://") {
		return otlptracegrpc.WithEndpoint(s), nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("OTLP endpoint %q: must be http://host:port, https://host:port or host:port", s)
	}
	return otlptracegrpc.WithEndpointURL(s), nil
}
