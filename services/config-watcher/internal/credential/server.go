package credential

import (
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/rpc"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
)

// Bounds of one stream and of one subscription.
const (
	maxSubscriptions = 20_000
	maxNameBytes     = 253 // of a Secret's name, and of a namespace's
	maxIdentityBytes = 2048
)

// readyWithin is how long a subscriber is kept waiting for the sources to be read before it is sent away to try another replica.
const readyWithin = 2 * time.Second

// ServerConfig has no optional fields.
type ServerConfig struct {
	Table       *Table
	TrustDomain spiffeid.TrustDomain
	// Ready returns nil once the table holds what the sources have, else a channel that is closed when that may have changed.
	Ready func() <-chan struct{}
	// Stop ends watches when it is closed, for a drain.
	Stop <-chan struct{}
}

// Server implements SecretService.
type Server struct {
	secretv1.UnimplementedSecretServiceServer
	cfg ServerConfig
}

// NewServer serves a table.
func NewServer(cfg ServerConfig) *Server { return &Server{cfg: cfg} }

// subscription is one that a subscriber has made.
type subscription struct {
	ref      Ref
	identity string
}

func (s subscription) proto() *secretv1.Subscription {
	return &secretv1.Subscription{Namespace: s.ref.Namespace, Name: s.ref.Name, Identity: s.identity}
}

// answered is what a subscription was answered last.
type answered struct {
	version string
	allowed bool
}

// Watch implements SecretService. An answer is sent for each new subscription and whenever it is another one than before. What a proxy may
// not read is as if it were not there.
func (s *Server) Watch(stream grpc.BidiStreamingServer[secretv1.WatchRequest, secretv1.WatchResponse]) error {
	if err := s.ready(stream); err != nil {
		return err
	}
	requests := rpc.Requests(stream)
	held := map[subscription]*answered{}
	for {
		changed := s.cfg.Table.Changed()
		for sub, was := range held {
			if !was.allowed {
				continue
			}
			if now := s.cfg.Table.Get(sub.ref); now.Version() != was.version {
				if err := stream.Send(&secretv1.WatchResponse{Subscription: sub.proto(), Credential: now.Proto()}); err != nil {
					return err
				}
				was.version = now.Version()
			}
		}
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.cfg.Stop:
			return status.Error(codes.Unavailable, "config-watcher is stopping")
		case <-changed:
		case r := <-requests:
			if r.Err != nil {
				return rpc.EndOf(r.Err)
			}
			if err := s.take(stream, held, r.Message); err != nil {
				return err
			}
		}
	}
}

// take takes over a request and answers its new subscriptions.
func (s *Server) take(stream grpc.BidiStreamingServer[secretv1.WatchRequest, secretv1.WatchResponse], held map[subscription]*answered, m *secretv1.WatchRequest) error {
	for _, p := range m.GetUnsubscribe() {
		delete(held, subscriptionOf(p))
	}
	for _, p := range m.GetSubscribe() {
		sub := subscriptionOf(p)
		if len(sub.ref.Name) > maxNameBytes || len(sub.ref.Namespace) > maxNameBytes || len(sub.identity) > maxIdentityBytes {
			return status.Error(codes.InvalidArgument, "subscription with a name that no Secret, namespace or identity can have")
		}
		if _, again := held[sub]; !again && len(held) >= maxSubscriptions {
			return status.Errorf(codes.ResourceExhausted, "more than %d subscriptions on one stream", maxSubscriptions)
		}
		now := &answered{allowed: s.mayRead(sub)}
		answer := &secretv1.WatchResponse{Subscription: sub.proto()}
		if now.allowed {
			found := s.cfg.Table.Get(sub.ref)
			now.version, answer.Credential = found.Version(), found.Proto()
		}
		held[sub] = now
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
	return nil
}

func subscriptionOf(p *secretv1.Subscription) subscription {
	return subscription{Ref{p.GetNamespace(), p.GetName()}, p.GetIdentity()}
}

// mayRead decides on behalf of whom a credential is handed out: workloads of its own namespace, in the mesh's trust domain.
func (s *Server) mayRead(sub subscription) bool {
	id, err := spiffeid.FromString(sub.identity)
	if err != nil || !id.MemberOf(s.cfg.TrustDomain) {
		return false
	}
	parts := strings.Split(id.Path(), "/") // "", "ns", <namespace>, "sa", <service account>
	return len(parts) == 5 && parts[1] == "ns" && parts[3] == "sa" && parts[2] == sub.ref.Namespace
}

// ready waits until the table holds what there is: an answer before that would be wrong.
func (s *Server) ready(stream grpc.ServerStream) error {
	limit := time.NewTimer(readyWithin)
	defer limit.Stop()
	for {
		wait := s.cfg.Ready()
		if wait == nil {
			return nil
		}
		select {
		case <-wait:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.cfg.Stop:
			return status.Error(codes.Unavailable, "config-watcher is stopping")
		case <-limit.C:
			return status.Error(codes.Unavailable, "not every source has synced yet")
		}
	}
}
