// Package sds serves Envoy's secret discovery service (SDS) on a unix socket: the workload's certificate, key and
// roots, and secrets made of files, each sent again whenever it changes. The workload's private key is never written to
// disk for it. Package app calls New, Server.Register and Server.Run.
//
// The streams are not served by go-control-plane, whose server links every discovery service: an agent per workload
// would pay for that in memory, and a few secrets need no cache.
package sds

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/pkg/tlsconf"
)

// Config of a Server. Source, Log and Registerer are required.
type Config struct {
	Source tlsconf.Source
	// Validation says how peers are verified where it is more than by the roots of Source; nil, or a result of nil, is
	// by these. It changes when Source does.
	Validation func() *tlsv3.CertificateValidationContext
	// Debounce is how long files must not have changed before they are read.
	Debounce   time.Duration
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
}

// fromFile is the metrics' label value for all secrets of files.
const fromFile = "file"

// Server implements Envoy's SecretDiscoveryService. A secret that does not exist yet is sent as soon as it exists.
type Server struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	source   tlsconf.Source
	validate func() *tlsv3.CertificateValidationContext
	files    *files
	roots    rootStreams
	log      *slog.Logger
	pushes   *prometheus.CounterVec
	rejected *prometheus.CounterVec
}

// New makes a Server.
func New(c Config) *Server {
	return &Server{
		source:   c.Source,
		validate: c.Validation,
		files:    newFiles(c.Log, c.Clock, c.Debounce),
		log:      c.Log,
		pushes: telemetry.CounterVec(c.Registerer, prometheus.CounterOpts{
			Name: "fairlead_node_agent_sds_pushes_total",
			Help: "Secrets sent to Envoy.",
		}, "secret", Default, RootCA, fromFile),
		rejected: telemetry.CounterVec(c.Registerer, prometheus.CounterOpts{
			Name: "fairlead_node_agent_sds_rejections_total",
			Help: "Secrets that Envoy refused to use.",
		}, "secret", Default, RootCA, fromFile),
	}
}

// Run follows the files of subscribed secrets until ctx ends. Without it they are read once.
func (s *Server) Run(ctx context.Context) error { return s.files.run(ctx) }

// Register adds the service to a gRPC server, which must admit only the agent's own user.
func (s *Server) Register(gs *grpc.Server) {
	secretv3.RegisterSecretDiscoveryServiceServer(gs, s)
}

// StreamSecrets is the state-of-the-world variant, which Envoy uses for an SDS source of type GRPC.
func (s *Server) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	state, nonce := newSession(s.files), ""
	defer state.end()
	roots := s.roots.begin()
	defer roots.end()
	return serve(s, stream, func(req *discoveryv3.DiscoveryRequest) error {
		if req.GetResponseNonce() != "" && req.GetResponseNonce() != nonce {
			return nil // it answers an older response
		}
		if d := req.GetErrorDetail(); d != nil {
			s.nack(req.GetResourceNames(), d.GetMessage())
		}
		if err := checkNames(len(req.GetResourceNames())); err != nil {
			return err
		}
		roots.answer(req.GetResponseNonce(), req.GetErrorDetail())
		roots.ask(slices.Contains(req.GetResourceNames(), RootCA))
		state.replace(req.GetResourceNames())
		s.warnUnknown(req.GetResourceNames())
		return checkType(req.GetTypeUrl())
	}, func(own []*resource) error {
		available := state.available(own)
		due := state.due(available)
		if len(due) == 0 {
			return nil
		}
		// A response replaces the last one, so it has all subscribed secrets.
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: TypeURL}
		for _, r := range available {
			body, err := r.body()
			if err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			resp.Resources = append(resp.Resources, body)
			resp.VersionInfo += r.version
		}
		nonce = next(nonce)
		resp.Nonce = nonce
		roots.pushRoots(nonce, available)
		s.pushed(due)
		return stream.Send(resp)
	})
}

// DeltaSecrets is the incremental variant.
func (s *Server) DeltaSecrets(stream secretv3.SecretDiscoveryService_DeltaSecretsServer) error {
	state, nonce := newSession(s.files), ""
	defer state.end()
	roots := s.roots.begin()
	defer roots.end()
	var gone []string
	return serve(s, stream, func(req *discoveryv3.DeltaDiscoveryRequest) error {
		if d := req.GetErrorDetail(); d != nil {
			s.nack(state.subscribed(), d.GetMessage())
		}
		if err := checkNames(len(state.sent) + len(req.GetResourceNamesSubscribe())); err != nil {
			return err
		}
		state.subscribe(req.GetResourceNamesSubscribe(), req.GetInitialResourceVersions())
		state.unsubscribe(req.GetResourceNamesUnsubscribe())
		roots.answer(req.GetResponseNonce(), req.GetErrorDetail())
		_, subscribed := state.sent[RootCA]
		roots.ask(subscribed)
		roots.holds(req.GetInitialResourceVersions()[RootCA])
		gone = append(gone, s.warnUnknown(req.GetResourceNamesSubscribe())...)
		return checkType(req.GetTypeUrl())
	}, func(own []*resource) error {
		available := state.available(own)
		due := state.due(available)
		if len(due) == 0 && len(gone) == 0 {
			return nil
		}
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: TypeURL, RemovedResources: gone}
		for _, r := range available {
			if !slices.Contains(due, r.name) {
				continue
			}
			body, err := r.body()
			if err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: r.name, Version: r.version, Resource: body})
			resp.SystemVersionInfo += r.version
		}
		gone = nil
		nonce = next(nonce)
		resp.Nonce = nonce
		if slices.Contains(due, RootCA) {
			roots.pushRoots(nonce, available)
		}
		s.pushed(due)
		return stream.Send(resp)
	})
}

// serve runs one stream. On one goroutine it calls request for each request, and push after each request and each
// change of a secret, with the workload's own secrets that exist.
func serve[Q any](s *Server, stream interface {
	Context() context.Context
	Recv() (*Q, error)
}, request func(*Q) error, push func(own []*resource) error) error {
	ctx := stream.Context()
	requests := make(chan *Q)
	failed := make(chan error, 1)
	go func() {
		for {
			req, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case requests <- req:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		changed, filesChanged := s.source.Changed(), s.files.Changed()
		if err := push(s.own()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case req := <-requests:
			if err := request(req); err != nil {
				return err
			}
		case <-changed:
		case <-filesChanged:
		}
	}
}

// own lists the workload's own secrets that exist.
func (s *Server) own() []*resource {
	m, err := s.source.Current()
	if err != nil {
		s.log.Debug("no trust material yet", "error", err)
		return nil
	}
	var validation *tlsv3.CertificateValidationContext
	if s.validate != nil {
		validation = s.validate()
	}
	return workloadSecrets(m, validation)
}

// maxSecrets bounds the secrets of one stream, since the agent follows the files of each. Envoy opens one stream per
// secret.
const maxSecrets = 256

func checkNames(n int) error {
	if n <= maxSecrets {
		return nil
	}
	return status.Errorf(codes.ResourceExhausted, "%d secrets on one stream: at most %d", n, maxSecrets)
}

func checkType(t string) error {
	if t == "" || t == TypeURL {
		return nil
	}
	return status.Errorf(codes.InvalidArgument, "type %q is not served here: only %s", t, TypeURL)
}

// warnUnknown logs and returns the names that no secret can have.
func (s *Server) warnUnknown(names []string) []string {
	var out []string
	for _, n := range names {
		if label(n) == "" {
			s.log.Warn("Envoy asks for a secret that this agent does not have", "secret", n)
			out = append(out, n)
		}
	}
	return out
}

// label is the metrics' label value of a secret, "" for a name that no secret can have.
func label(name string) string {
	switch {
	case name == Default || name == RootCA:
		return name
	case parse(name) != nil:
		return fromFile
	default:
		return ""
	}
}

func (s *Server) nack(names []string, message string) {
	for _, n := range names {
		if l := label(n); l != "" {
			s.rejected.WithLabelValues(l).Inc()
		}
	}
	s.log.Error("Envoy rejected a secret", "secrets", names, "error", message)
}

func (s *Server) pushed(names []string) {
	for _, n := range names {
		s.pushes.WithLabelValues(label(n)).Inc()
	}
	s.log.Info("secrets sent to Envoy", "secrets", names)
}

func next(nonce string) string {
	n, _ := strconv.Atoi(nonce)
	return strconv.Itoa(n + 1)
}
