package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// DefaultMaxBackoff is the longest pause between attempts to reach a server that is away.
const DefaultMaxBackoff = 3 * time.Second

// clientWindow is how many bytes a server may send ahead of the client's reading; a server pushes whole configurations.
const clientWindow = 4 << 20

// ClientConfig describes a connection. Target and either TLS or Insecure are required.
type ClientConfig struct {
	// Target is "host:port", a list "a:1,b:2" of equal servers, or any gRPC target such as "unix:///run/x" or
	// "dns:///name:1". The client uses one server of a list, chosen at random, and moves on to the next when it is
	// lost. Names are resolved at every attempt.
	Target string
	// TLS is usually tlsconf.Client. Insecure must be set for a client without TLS.
	TLS      *tls.Config
	Insecure bool
	// TokenFile holds a bearer token, which is read for every call and sent as `authorization: Bearer`. It needs TLS.
	TokenFile string
	// KeepOrder tries the servers of a list in their order; without it they are shuffled.
	KeepOrder bool

	// MaxRecvBytes bounds one message. 0 means DefaultMaxRecvBytes.
	MaxRecvBytes int
	// The client pings after KeepaliveTime without a frame, and closes the connection after KeepaliveTimeout without an
	// answer. 0 means the defaults.
	KeepaliveTime, KeepaliveTimeout time.Duration
	// MaxBackoff defaults to DefaultMaxBackoff.
	MaxBackoff time.Duration

	// Registerer registers the client's metrics; nil means none.
	Registerer prometheus.Registerer
	// TracerProvider for spans; nil means OpenTelemetry's global one.
	TracerProvider trace.TracerProvider
}

// Dial returns a connection that is made with the first call. While the server is away, calls fail with UNAVAILABLE, or
// wait with grpc.WaitForReady.
func Dial(cfg ClientConfig, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	switch {
	case cfg.Target == "":
		return nil, errors.New("gRPC client: target is required")
	case cfg.TLS == nil && !cfg.Insecure:
		return nil, fmt.Errorf("gRPC client for %s: TLS is not configured and Insecure is not set", cfg.Target)
	case cfg.TLS != nil && cfg.Insecure:
		return nil, fmt.Errorf("gRPC client for %s: TLS is configured and Insecure is set: choose one", cfg.Target)
	case cfg.TokenFile != "" && cfg.TLS == nil:
		return nil, fmt.Errorf("gRPC client for %s: a bearer token needs TLS", cfg.Target)
	}
	orDefault(&cfg.MaxRecvBytes, DefaultMaxRecvBytes)
	orDefault(&cfg.KeepaliveTime, DefaultKeepaliveTime)
	orDefault(&cfg.KeepaliveTimeout, DefaultKeepaliveTimeout)
	orDefault(&cfg.MaxBackoff, DefaultMaxBackoff)

	transport := insecure.NewCredentials()
	if cfg.TLS != nil {
		transport = credentials.NewTLS(cfg.TLS)
	}
	all := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: cfg.MaxBackoff},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: cfg.KeepaliveTime, Timeout: cfg.KeepaliveTimeout}),
		grpc.WithStaticStreamWindowSize(clientWindow),
		grpc.WithStaticConnWindowSize(clientWindow), // see NewServer
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(cfg.MaxRecvBytes)),
		grpc.WithDefaultServiceConfig(fmt.Sprintf(`{"loadBalancingConfig":[{"pick_first":{"shuffleAddressList":%t}}]}`, !cfg.KeepOrder)),
		grpc.WithDisableServiceConfig(),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(
			otelgrpc.WithTracerProvider(tracerProvider(cfg.TracerProvider)),
			otelgrpc.WithMeterProvider(metricnoop.NewMeterProvider()),
		)),
	}
	if cfg.TokenFile != "" {
		all = append(all, grpc.WithPerRPCCredentials(TokenFile(cfg.TokenFile)))
	}
	if cfg.Registerer != nil {
		m, err := register(cfg.Registerer, grpcprom.NewClientMetrics(grpcprom.WithClientHandlingTimeHistogram()))
		if err != nil {
			return nil, fmt.Errorf("gRPC client for %s: %w", cfg.Target, err)
		}
		all = append(all,
			grpc.WithChainUnaryInterceptor(m.UnaryClientInterceptor()),
			grpc.WithChainStreamInterceptor(m.StreamClientInterceptor()))
	}
	target, resolving, err := parseTarget(cfg.Target)
	if err != nil {
		return nil, fmt.Errorf("gRPC client for %s: %w", cfg.Target, err)
	}
	if resolving != nil {
		all = append(all, grpc.WithResolvers(resolving))
	}
	conn, err := grpc.NewClient(target, append(all, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("gRPC client for %s: %w", cfg.Target, err)
	}
	return conn, nil
}

// parseTarget returns a resolver for a host:port list. The dialler gets the names themselves, because gRPC's DNS
// resolver backs off for minutes if a name does not resolve yet.
func parseTarget(target string) (string, resolver.Builder, error) {
	if strings.Contains(target, "://") || strings.HasPrefix(target, "unix:") || strings.HasPrefix(target, "unix-abstract:") {
		return target, nil, nil
	}
	var addrs []resolver.Address
	for a := range strings.SplitSeq(target, ",") {
		a = strings.TrimSpace(a)
		host, port, err := net.SplitHostPort(a)
		if err != nil || host == "" || port == "" {
			return "", nil, fmt.Errorf("address %q: must be host:port", a)
		}
		addrs = append(addrs, resolver.Address{Addr: a, ServerName: a})
	}
	r := manual.NewBuilderWithScheme("fairlead-list")
	r.InitialState(resolver.State{Addresses: addrs})
	return r.Scheme() + ":///" + addrs[0].Addr, r, nil
}

const maxTokenBytes = 16 << 10

// TokenFile returns call credentials that read a bearer token from a file for every call. They need TLS.
func TokenFile(path string) credentials.PerRPCCredentials { return tokenFile(path) }

type tokenFile string

func (f tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := ReadToken(string(f))
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

func (tokenFile) RequireTransportSecurity() bool { return true }

// ReadToken reads a bearer token from a file.
func ReadToken(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	switch {
	case token == "":
		return "", fmt.Errorf("token file %s is empty", path)
	case len(token) > maxTokenBytes || strings.ContainsAny(token, " \t\r\n"):
		return "", fmt.Errorf("token file %s does not hold a single token", path)
	}
	return token, nil
}
