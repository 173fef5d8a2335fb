// Package certificate answers Istio's certificate service on the ADS port, so that an agent needs one address for
// configuration and certificates. It signs nothing: it forwards each request to the ca together with the token that the
// caller sent, and the ca issues for the identity that the token proves.
package certificate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// Method is what a policy allows to whoever may ask for certificates here.
const Method = security.IstioCertificateService_CreateCertificate_FullMethodName

// Limits. The ca has its own, and shares its workers evenly between workloads' identities.
const (
	// maxRequestBytes and maxTokenBytes are what the ca reads of a request.
	maxRequestBytes, maxTokenBytes = 16 << 10, 8 << 10
	// timeout bounds a request: the ca answers within its queue's wait of a second, or refuses.
	timeout = 10 * time.Second
	// DefaultMaxRequests are under way to the ca at once.
	DefaultMaxRequests = 256
	// DefaultMaxIdentityRequests of them are of one identity: the Pods of a Deployment start together.
	DefaultMaxIdentityRequests = 64
	// retryAfter is what a caller beyond these limits is told to wait, up to twice as long.
	retryAfter = time.Second
)

// impersonation is the metadata field in which a caller asks for another identity than its own.
const impersonation = "ImpersonatedIdentity"

// Config of a Forwarder. CA, Banned, Log and Registerer are required.
type Config struct {
	// CA issues. The connection has xds-server's own client certificate.
	CA cav1.ForwardingServiceClient
	// Banned returns why a caller is shut out of the mesh, nil if it is not; serve.Server.Banned does.
	Banned     func(auth.Peer) error
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// MaxRequests and MaxIdentityRequests default to the constants.
	MaxRequests, MaxIdentityRequests int
}

// Forwarder is istio.v1.auth.IstioCertificateService.
type Forwarder struct {
	security.UnimplementedIstioCertificateServiceServer
	cfg      Config
	requests *prometheus.CounterVec

	mu sync.Mutex
	// open counts the requests under way by identity; all is their sum.
	open map[string]int
	all  int
}

// New checks the configuration.
func New(cfg Config) (*Forwarder, error) {
	if cfg.CA == nil || cfg.Banned == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("certificate: CA, Banned, Log and Registerer are required")
	}
	cfg.MaxRequests = cmp.Or(cfg.MaxRequests, DefaultMaxRequests)
	cfg.MaxIdentityRequests = cmp.Or(cfg.MaxIdentityRequests, DefaultMaxIdentityRequests)
	return &Forwarder{cfg: cfg, open: map[string]int{}, requests: promauto.With(cfg.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "fairlead_xds_server_certificate_requests_total",
		Help: "Certificate requests of workloads, by the gRPC status that they were answered with; OK ones were issued by the ca.",
	}, []string{"code"})}, nil
}

// Register adds the service to a gRPC server.
func (f *Forwarder) Register(g grpc.ServiceRegistrar) {
	security.RegisterIstioCertificateServiceServer(g, f)
}

// CreateCertificate forwards the request with the caller's token.
func (f *Forwarder) CreateCertificate(ctx context.Context, req *security.IstioCertificateRequest) (*security.IstioCertificateResponse, error) {
	res, err := f.forward(ctx, req)
	f.requests.WithLabelValues(status.Code(err).String()).Inc()
	return res, err
}

func (f *Forwarder) forward(ctx context.Context, req *security.IstioCertificateRequest) (*security.IstioCertificateResponse, error) {
	caller, ok := auth.PeerFrom(ctx)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "no authenticated caller")
	}
	if err := f.cfg.Banned(caller); err != nil {
		return nil, err
	}
	token, err := tokenOf(ctx)
	if err != nil {
		return nil, err
	}
	if size := proto.Size(req); size > maxRequestBytes {
		return nil, status.Errorf(codes.InvalidArgument, "certificate request of %d bytes, at most %d are read; use a smaller key", size, maxRequestBytes)
	}
	if _, ok := req.GetMetadata().GetFields()[impersonation]; ok {
		return nil, status.Errorf(codes.PermissionDenied, "requests with metadata %s are not forwarded; ask the ca at its own address", impersonation)
	}
	leave, err := f.enter(caller.ID.String())
	if err != nil {
		return nil, err
	}
	defer leave()
	address := ""
	if p, ok := peer.FromContext(ctx); ok {
		address = p.Addr.String()
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, err := f.cfg.CA.ForwardCertificateRequest(bounded, &cav1.ForwardCertificateRequestRequest{
		Token: token, Identity: caller.ID.String(), Csr: req.GetCsr(), ValidityDuration: req.GetValidityDuration(), Address: address,
	})
	if err != nil {
		return nil, f.explain(ctx, err)
	}
	return &security.IstioCertificateResponse{CertChain: res.GetCertificateChain()}, nil
}

// tokenOf is the bearer token of the call. A client certificate proves who calls to this process alone: there is
// nothing in it that could be shown to the ca, so a request without a token is refused.
func tokenOf(ctx context.Context) (string, error) {
	token, err := auth.BearerToken(ctx)
	if errors.Is(err, auth.ErrNoCredentials) {
		return "", status.Error(codes.Unauthenticated, "certificate requests are forwarded to the ca with the caller's token, and this one has none: "+
			"send a token (an agent with PROV_CERT sends none), or ask the ca at its own address (CA_ADDR), which takes a certificate too")
	}
	if err != nil || token == "" || len(token) > maxTokenBytes {
		return "", status.Errorf(codes.Unauthenticated, "authorization header is not one bearer token of at most %d bytes", maxTokenBytes)
	}
	return token, nil
}

// enter counts a request until leave is called, and refuses it beyond the limits.
func (f *Forwarder) enter(identity string) (leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.open[identity] >= f.cfg.MaxIdentityRequests:
		return nil, busy(fmt.Sprintf("%d certificate requests of %s are under way; retry later", f.open[identity], identity))
	case f.all >= f.cfg.MaxRequests:
		return nil, busy(fmt.Sprintf("%d certificate requests are under way; retry later", f.all))
	}
	f.open[identity]++
	f.all++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.all--
		if f.open[identity]--; f.open[identity] == 0 {
			delete(f.open, identity)
		}
	}, nil
}

func busy(why string) error {
	delay := retryAfter + rand.N(retryAfter)
	st, err := status.New(codes.ResourceExhausted, why).WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	if err != nil {
		return status.Error(codes.ResourceExhausted, why)
	}
	return st.Err()
}

// explain gives the caller the ca's answer, details and time to come back included, if it is about the caller's
// request. What is about the connection of this process to the ca is nothing that the caller can mend: it may try
// again.
func (f *Forwarder) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	st := status.Convert(err)
	for _, d := range st.Details() {
		if _, ok := d.(*errdetails.ErrorInfo); ok {
			return st.Err()
		}
	}
	f.cfg.Log.WarnContext(ctx, "the ca takes no certificate requests from this xds-server", "error", err)
	return status.Errorf(codes.Unavailable, "the ca cannot be asked by this xds-server now (%s: %s); try again", st.Code(), st.Message())
}
