// Package certificate implements Istio's certificate service on the ADS port, so that an agent needs one address for
// configuration and certificates. It signs nothing: it forwards each request to the ca together with the caller's
// token, and the ca issues for the identity that the token proves.
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

// Method is what a policy must allow to callers that may request certificates.
const Method = security.IstioCertificateService_CreateCertificate_FullMethodName

// Limits. The ca has its own, and shares its workers evenly between the identities of workloads.
const (
	// maxRequestBytes and maxTokenBytes are the limits of the ca.
	maxRequestBytes, maxTokenBytes = 16 << 10, 8 << 10
	// timeout bounds a request. The ca answers or refuses within the second that a request may wait in its queue.
	timeout = 10 * time.Second
	// DefaultMaxRequests is how many requests may be under way to the ca at once.
	DefaultMaxRequests = 256
	// DefaultMaxIdentityRequests is how many of them may be of one identity: the Pods of a Deployment start together.
	DefaultMaxIdentityRequests = 64
	// retryAfter is how long a caller beyond these limits is told to wait, up to twice as long.
	retryAfter = time.Second
)

// impersonation is the metadata field in which a caller requests another identity than its own.
const impersonation = "ImpersonatedIdentity"

// Config of a Forwarder. CA, Banned, Log and Registerer are required.
type Config struct {
	// CA issues the certificates. Its connection uses xds-server's own client certificate.
	CA cav1.ForwardingServiceClient
	// Banned returns the status for a banned caller, nil for others; serve.Server.Banned does.
	Banned     func(auth.Peer) error
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// MaxRequests and MaxIdentityRequests default to the constants.
	MaxRequests, MaxIdentityRequests int
}

// Forwarder implements istio.v1.auth.IstioCertificateService.
type Forwarder struct {
	security.UnimplementedIstioCertificateServiceServer
	cfg      Config
	requests *prometheus.CounterVec

	mu sync.Mutex
	// underWay counts the requests under way by identity; total is their sum.
	underWay map[string]int
	total    int
}

// New checks the configuration.
func New(cfg Config) (*Forwarder, error) {
	if cfg.CA == nil || cfg.Banned == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("certificate: CA, Banned, Log and Registerer are required")
	}
	cfg.MaxRequests = cmp.Or(cfg.MaxRequests, DefaultMaxRequests)
	cfg.MaxIdentityRequests = cmp.Or(cfg.MaxIdentityRequests, DefaultMaxIdentityRequests)
	return &Forwarder{cfg: cfg, underWay: map[string]int{}, requests: promauto.With(cfg.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "fairlead_xds_server_certificate_requests_total",
		Help: "Certificate requests of workloads, by the gRPC status that they were answered with; OK ones were issued by the ca.",
	}, []string{"code"})}, nil
}

// Register adds the service to a gRPC server.
func (f *Forwarder) Register(g grpc.ServiceRegistrar) {
	security.RegisterIstioCertificateServiceServer(g, f)
}

// CreateCertificate forwards the request with the caller's token.
func (f *Forwarder) CreateCertificate(ctx context.Context, req *security.IstioCertificateRequest) (*security.IstioCertificateResponse,
	error) {
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
		return nil, status.Errorf(codes.InvalidArgument, "certificate request of %d bytes, at most %d are read; use a smaller key", size,
			maxRequestBytes)
	}
	if _, ok := req.GetMetadata().GetFields()[impersonation]; ok {
		return nil, status.Errorf(codes.PermissionDenied, "requests with metadata %s are not forwarded; ask the ca at its own address",
			impersonation)
	}
	end, err := f.begin(caller.ID.String())
	if err != nil {
		return nil, err
	}
	defer end()
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
		return nil, f.callerError(ctx, err)
	}
	return &security.IstioCertificateResponse{CertChain: res.GetCertificateChain()}, nil
}

// tokenOf returns the bearer token of the call. A request without a token is refused: a client certificate proves the
// caller to this process only, and there is nothing in it that could be shown to the ca.
func tokenOf(ctx context.Context) (string, error) {
	token, err := auth.BearerToken(ctx)
	if errors.Is(err, auth.ErrNoCredentials) {
		return "", status.Error(codes.Unauthenticated,
			"certificate requests are forwarded to the ca with the caller's token, and this one has none: "+
				"send a token (an agent with PROV_CERT sends none), or ask the ca at its own address (CA_ADDR), which takes a certificate too")
	}
	if err != nil || token == "" || len(token) > maxTokenBytes {
		return "", status.Errorf(codes.Unauthenticated, "authorization header is not one bearer token of at most %d bytes", maxTokenBytes)
	}
	return token, nil
}

// begin counts a request until end is called. It refuses the request beyond the limits.
func (f *Forwarder) begin(identity string) (end func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.underWay[identity] >= f.cfg.MaxIdentityRequests:
		return nil, retryLater(fmt.Sprintf("%d certificate requests of %s are under way; retry later", f.underWay[identity], identity))
	case f.total >= f.cfg.MaxRequests:
		return nil, retryLater(fmt.Sprintf("%d certificate requests are under way; retry later", f.total))
	}
	f.underWay[identity]++
	f.total++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.total--
		if f.underWay[identity]--; f.underWay[identity] == 0 {
			delete(f.underWay, identity)
		}
	}, nil
}

func retryLater(why string) error {
	delay := retryAfter + rand.N(retryAfter)
	st, err := status.New(codes.ResourceExhausted, why).WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	if err != nil {
		return status.Error(codes.ResourceExhausted, why)
	}
	return st.Err()
}

// callerError turns an error of the ca into the caller's. An answer about the request is passed on whole, with details
// and retry delay. An error of the connection between this process and the ca becomes Unavailable, because the caller
// cannot correct it and may try again.
func (f *Forwarder) callerError(ctx context.Context, err error) error {
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
