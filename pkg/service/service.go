// Package service is what every process of the control plane has around its own work: a command with the common flags
// (Command), telemetry, ports, an HTTP port for operators, its own certificate, and tasks that live and die together
// (Process).
//
// A service's package internal/app holds its Options, which embed those here, and a function Open, which makes a
// Process, gives it ports and tasks, and returns it for Command to run. The example shows the whole of a service.
package service

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/svid"
)

// Deps are what Command gives a service, and what a test may replace. Log and Registry are required.
type Deps struct {
	Log      *slog.Logger
	Registry *prometheus.Registry
	// Tracer for spans; nil means OpenTelemetry's global one.
	Tracer trace.TracerProvider
	Clock  clock.Clock
}

// Process is a service that has been opened: its ports are bound and its tasks known. Its methods other than Run are
// for the goroutine that opens it. Whoever does not get as far as Run calls Close.
type Process struct {
	Deps
	// Ops is the HTTP port; nil until ServeOps.
	Ops *ops.Server

	options Options
	ports   map[string]net.Listener
	tasks   []process.Task
}

// New makes a Process without ports and tasks.
func New(o Options, deps Deps) *Process {
	deps.Clock = clock.Or(deps.Clock)
	return &Process{Deps: deps, options: o, ports: map[string]net.Listener{}}
}

// Task adds a task, which runs until the context of Run ends. If it ends before, so does the process.
func (p *Process) Task(name string, run func(context.Context) error) {
	p.tasks = append(p.tasks, process.Task{Name: name, Run: run})
}

// Listen binds the port of a flag. Ports are bound before anything runs, so that one in use is told at once.
func (p *Process) Listen(ctx context.Context, flag, address string) (net.Listener, error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	p.ports[flag] = lis
	return lis, nil
}

// Addr is the address of the port that Listen has bound for a flag.
func (p *Process) Addr(flag string) net.Addr { return p.ports[flag].Addr() }

// ServeGRPC makes a gRPC server and the task that serves it on lis. cfg needs no Log, Registerer and TracerProvider.
// The caller registers its services before Run. Calls that run at the end have Options.ShutdownGrace.
func (p *Process) ServeGRPC(task string, lis net.Listener, cfg rpc.ServerConfig, opts ...grpc.ServerOption) (*grpc.Server, error) {
	cfg.Log, cfg.Registerer, cfg.TracerProvider = p.Log, p.Registry, p.Tracer
	server, err := rpc.NewServer(cfg, opts...)
	if err != nil {
		return nil, err
	}
	p.Task(task, func(ctx context.Context) error { return rpc.Serve(ctx, server, lis, p.options.ShutdownGrace) })
	return server, nil
}

// Admin is who may read /debug: the holder of a token of this service account and audience.
type Admin struct {
	ID       spiffeid.ID
	Audience string
	// JWKSFile and Issuer are those of the administrator's tokens if no option says other ones.
	JWKSFile, Issuer string
}

// ServeOps binds --ops-address and makes Ops. /debug is for the administrator, closed without Options.AdminJWKSFile
// and Admin.JWKSFile.
func (p *Process) ServeOps(ctx context.Context, admin Admin) error {
	var authenticate func(*http.Request) error
	if file := cmp.Or(p.options.AdminJWKSFile, admin.JWKSFile); file != "" {
		tokens, err := auth.NewJWT(auth.JWTConfig{
			JWKSFile: file, Issuer: cmp.Or(p.options.AdminIssuer, admin.Issuer), Audiences: []string{admin.Audience},
			TrustDomain: admin.ID.TrustDomain(), Clock: p.Clock,
		})
		if err != nil {
			return fmt.Errorf("--admin-jwks-file: %w", err)
		}
		authenticate = auth.HTTP(tokens, auth.IDs(admin.ID.String()))
	}
	lis, err := p.Listen(ctx, "ops-address", p.options.OpsAddress)
	if err != nil {
		return err
	}
	p.Ops = ops.New(ops.Config{Listener: lis, Log: p.Log, Gatherer: p.Registry, Authenticate: authenticate})
	p.Task("ops", p.Ops.Run)
	return nil
}

// Identity makes what keeps the own certificate, and the task that renews it. cfg needs no TrustDomain, Clock, Log
// and Registerer.
func (p *Process) Identity(cfg svid.Config) (*svid.Manager, error) {
	cfg.TrustDomain, cfg.Clock, cfg.Log, cfg.Registerer = cfg.Identity.TrustDomain(), p.Clock, p.Log, p.Registry
	manager, err := svid.New(cfg)
	if err != nil {
		return nil, err
	}
	p.Task("own certificate", manager.Run)
	return manager, nil
}

// Dial prepares the connection to the server that a flag names, and closes it at the end of Run. cfg needs no
// Registerer and TracerProvider.
func (p *Process) Dial(flag string, cfg rpc.ClientConfig) (*grpc.ClientConn, error) {
	cfg.Registerer, cfg.TracerProvider = p.Registry, p.Tracer
	conn, err := rpc.Dial(cfg)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	p.Task("connection of --"+flag, func(ctx context.Context) error { <-ctx.Done(); return conn.Close() })
	return conn, nil
}

// Run runs the tasks until ctx ends or the first of them fails, whose error is the result.
func (p *Process) Run(ctx context.Context) error { return process.Run(ctx, p.Log, p.tasks...) }

// Close gives the ports up, for an Open that fails.
func (p *Process) Close() {
	for _, lis := range p.ports {
		_ = lis.Close()
	}
}
