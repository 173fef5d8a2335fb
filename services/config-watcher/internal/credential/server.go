package credential

import (
	"log/slog"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Bounds of one stream and of one subscription.
const (
	maxSubscriptions = 20_000
	maxNameBytes     = 253 // of a Secret's name, and of a namespace's
	maxIdentityBytes = 2048
	maxInstanceBytes = 512
	// subscriptionBytes is the memory of a subscription besides its names: its map entries.
	subscriptionBytes = 256
	// maxIdentityCost bounds what the subscriptions for one identity cost on one stream: some 5,000 credentials, more
	// than one gateway can serve within Envoy's own limits. So one identity cannot use up the stream that all
	// identities of an xds-server share.
	maxIdentityCost = 2 << 20
)

// answerWithin is how long a new subscription that is not allowed yet waits before it is answered with no credential.
// What would allow it may be late: the report that its proxy is connected comes on another stream, up to a second after
// a burst of connections, and so may the revision that names the credential.
const answerWithin = 3 * time.Second

// readyWithin is how long a subscriber waits until the sources are read. Then it gets UNAVAILABLE and tries another
// replica.
const readyWithin = 2 * time.Second

// Fleet knows the identities of the proxies that are connected to each xds-server; fleet.Table implements it.
type Fleet interface {
	Connected(instance, identity string) fleet.Presence
	IdentitiesChanged() <-chan struct{}
}

// Bans looks up banned identities; ban.Table implements it.
type Bans interface {
	Banned(identity string) *object.Ban
	Changed() <-chan struct{}
}

// Lookup is a source that reads Secrets and ConfigMaps one by one, after Wanted has named them; source/kubernetes
// implements it.
type Lookup interface {
	// Reading reports whether an object has been asked for, and whether the answer is still to come.
	Reading(object.Key) (asked, reading bool)
	// Looked is closed when an answer of Reading may have changed.
	Looked() <-chan struct{}
}

// ServerConfig of a Server. All fields but Lookup are required.
type ServerConfig struct {
	Table       *Table
	References  *References
	Fleet       Fleet
	Bans        Bans
	TrustDomain spiffeid.TrustDomain
	// Ready returns nil after the table has the credentials of all sources, and before a channel that closes when that
	// may have changed.
	Ready func() <-chan struct{}
	// Lookup is nil if the table has the credentials of all sources as soon as it is ready.
	Lookup Lookup
	// Ended is called when a proxy that was handed a credential may not have it any more, because no object that is
	// there names it for the proxy.
	Ended func(ref Ref, identity string)
	// Stop is closed to end all watches when the process drains.
	Stop  <-chan struct{}
	Clock clock.Clock
	Log   *slog.Logger
}

// Server implements SecretService.
type Server struct {
	secretv1.UnimplementedSecretServiceServer
	cfg ServerConfig
}

// NewServer returns a server for a table.
func NewServer(cfg ServerConfig) *Server { return &Server{cfg: cfg} }

// subscription names a credential and the identity on whose behalf it is read.
type subscription struct {
	ref      Ref
	identity string
}

func (s subscription) proto() *secretv1.Subscription {
	return &secretv1.Subscription{Namespace: s.ref.Namespace, Name: s.ref.Name, Identity: s.identity}
}

// isOwn reports whether the credential is of the identity's namespace. One of another namespace is answered at once,
// and again when a listener that names it comes.
func (s subscription) isOwn() bool {
	namespace, _, ok := auth.ParseWorkload(s.identity)
	return ok && namespace == s.ref.Namespace
}

func (s subscription) cost() int {
	return subscriptionBytes + len(s.ref.Namespace) + len(s.ref.Name) + len(s.identity)
}

// answered is the last answer to a subscription.
type answered struct {
	// sent is false until the first answer. A subscription that is not allowed yet gets none before patience.
	sent     bool
	patience time.Time
	version  string
}

// watch is one stream.
type watch struct {
	server *Server
	stream grpc.BidiStreamingServer[secretv1.WatchRequest, secretv1.WatchResponse]
	// instance is the name of the subscriber, "" if it gives none.
	instance string
	held     map[subscription]*answered
	costs    map[string]int // by identity
	// recheck is when an answer may change although nothing else does; zero for never.
	recheck time.Time
}

// Watch implements SecretService. It answers each new subscription, and again whenever the answer changes. It hands out
// a credential only on behalf of an identity that the subscribing xds-server has reported as connected and whose
// Workload is selected by a Gateway or DestinationRule that names the credential. The answer to any other subscription
// is the same as for a credential that does not exist.
func (s *Server) Watch(stream grpc.BidiStreamingServer[secretv1.WatchRequest, secretv1.WatchResponse]) error {
	if err := s.ready(stream); err != nil {
		return err
	}
	requests := rpc.Requests(stream)
	w := &watch{server: s, stream: stream, held: map[subscription]*answered{}, costs: map[string]int{}}
	for first := true; ; {
		changed, connected, banned := s.cfg.Table.Changed(), s.cfg.Fleet.IdentitiesChanged(), s.cfg.Bans.Changed()
		var looked <-chan struct{}
		if s.cfg.Lookup != nil {
			looked = s.cfg.Lookup.Looked()
		}
		version, revised := s.cfg.References.Sync()
		if err := w.answerAll(); err != nil {
			return err
		}
		for again := false; !again; {
			due, stop := w.timer()
			select {
			case <-stream.Context().Done():
				return status.FromContextError(stream.Context().Err()).Err()
			case <-s.cfg.Stop:
				return status.Error(codes.Unavailable, "config-watcher is stopping")
			case <-revised:
				// Most revisions change no permission.
				var now uint64
				now, revised = s.cfg.References.Sync()
				again = now != version
			case <-changed:
				again = true
			case <-looked:
				again = true
			case <-connected:
				again = true
			case <-banned:
				again = true
			case <-due:
				again = true
			case r := <-requests:
				if r.Err != nil {
					return rpc.EndOf(r.Err)
				}
				if first {
					if first, w.instance = false, r.Message.GetInstance(); len(w.instance) > maxInstanceBytes {
						return status.Error(codes.InvalidArgument, "the name of the instance is too long")
					}
				}
				if err := w.apply(r.Message); err != nil {
					return err
				}
			}
			stop()
		}
	}
}

// timer returns a channel that fires at recheck, nil if recheck is zero, and a function that stops the timer.
func (w *watch) timer() (due <-chan time.Time, stop func()) {
	if w.recheck.IsZero() {
		return nil, func() {}
	}
	t := w.server.cfg.Clock.NewTimer(w.recheck.Sub(w.server.cfg.Clock.Now()))
	return t.C(), func() { t.Stop() }
}

// answerAll checks every subscription again.
func (w *watch) answerAll() error {
	w.recheck = time.Time{}
	for sub, last := range w.held {
		if err := w.answer(sub, last); err != nil {
			return err
		}
	}
	return nil
}

// apply applies a request: it drops and adds subscriptions, and answers the new ones.
func (w *watch) apply(m *secretv1.WatchRequest) error {
	for _, p := range m.GetUnsubscribe() {
		w.drop(subscriptionOf(p))
	}
	for _, p := range m.GetSubscribe() {
		sub := subscriptionOf(p)
		if len(sub.ref.Name) > maxNameBytes || len(sub.ref.Namespace) > maxNameBytes || len(sub.identity) > maxIdentityBytes {
			return status.Error(codes.InvalidArgument, "subscription with a name that no Secret, namespace or identity can have")
		}
		w.drop(sub)
		if len(w.held) >= maxSubscriptions {
			return status.Errorf(codes.ResourceExhausted, "more than %d subscriptions on one stream", maxSubscriptions)
		}
		if w.costs[sub.identity]+sub.cost() > maxIdentityCost {
			w.server.cfg.Log.Warn("credential refused: too many are asked for on behalf of one identity", "identity", sub.identity, "namespace",
				sub.ref.Namespace,
				"name", sub.ref.Name, "subscriber", w.instance)
			if err := w.stream.Send(&secretv1.WatchResponse{Subscription: sub.proto()}); err != nil {
				return err
			}
			continue
		}
		last := &answered{patience: w.server.cfg.Clock.Now().Add(answerWithin)}
		w.held[sub] = last
		w.costs[sub.identity] += sub.cost()
		if err := w.answer(sub, last); err != nil {
			return err
		}
	}
	return nil
}

func (w *watch) drop(sub subscription) {
	last := w.held[sub]
	if last == nil {
		return
	}
	if last.version != "" { // the subscriber may have seen first what ends the access
		w.server.cfg.References.Sync()
		if verdict, _ := w.mayRead(sub); verdict == unnamed {
			w.server.cfg.Ended(sub.ref, sub.identity)
		}
	}
	delete(w.held, sub)
	if w.costs[sub.identity] -= sub.cost(); w.costs[sub.identity] <= 0 {
		delete(w.costs, sub.identity)
	}
}

// answer sends the current answer to a subscription if it differs from the last one.
func (w *watch) answer(sub subscription, last *answered) error {
	var found *object.Credential
	switch verdict, recheck := w.mayRead(sub); {
	case verdict == allowed:
		// The source is asked before the table is: it knows a credential no earlier than the table has it.
		unknown := w.unknown(sub, last)
		found = w.server.cfg.Table.Get(sub.ref)
		w.recheckAt(recheck)
		if found == nil && unknown {
			return nil
		}
	case verdict == unnamed && last.version != "":
		w.server.cfg.Ended(sub.ref, sub.identity)
	case verdict != never && sub.isOwn() && !last.sent && w.server.cfg.Clock.Now().Before(last.patience):
		w.recheckAt(last.patience)
		return nil
	}
	if last.sent && found.Version() == last.version {
		return nil
	}
	last.sent, last.version = true, found.Version()
	return w.stream.Send(&secretv1.WatchResponse{Subscription: sub.proto(), Credential: found.Proto()})
}

// unknown reports whether it is not known yet whether a credential exists. The last answer stands meanwhile. A
// credential that nobody has asked the source for counts as unknown for a moment: the revision that names it may be
// new.
func (w *watch) unknown(sub subscription, last *answered) bool {
	if w.server.cfg.Lookup == nil {
		return false
	}
	anyAsked := false
	for _, k := range objectsOf(sub.ref) {
		asked, reading := w.server.cfg.Lookup.Reading(k)
		if reading {
			return true
		}
		anyAsked = anyAsked || asked
	}
	if anyAsked || last.sent || !w.server.cfg.Clock.Now().Before(last.patience) {
		return false
	}
	w.recheckAt(last.patience)
	return true
}

func (w *watch) recheckAt(at time.Time) {
	if !at.IsZero() && (w.recheck.IsZero() || at.Before(w.recheck)) {
		w.recheck = at
	}
}

func subscriptionOf(p *secretv1.Subscription) subscription {
	return subscription{Ref{p.GetNamespace(), p.GetName()}, p.GetIdentity()}
}

// verdict says whether a credential may be read on behalf of an identity.
type verdict int

const (
	// never: the identity is banned or invalid.
	never verdict = iota
	// notYet: the identity is not connected.
	notYet
	// unnamed: no object names the credential for the identity.
	unnamed
	allowed
)

// mayRead decides whether a subscription may be answered with its credential, and when that must be checked again; zero
// for never.
func (w *watch) mayRead(sub subscription) (verdict, time.Time) {
	s := w.server
	id, err := spiffeid.FromString(sub.identity)
	if err != nil || !id.MemberOf(s.cfg.TrustDomain) {
		return never, time.Time{}
	}
	namespace, _, ok := auth.ParseWorkload(sub.identity)
	if !ok || s.cfg.Bans.Banned(sub.identity) != nil {
		return never, time.Time{}
	}
	p := s.cfg.Fleet.Connected(w.instance, sub.identity)
	switch {
	case !p.Connected:
		return notYet, time.Time{}
	case !s.cfg.References.MayUse(sub.ref, namespace, sub.identity, p.Gateway):
		return unnamed, time.Time{}
	}
	return allowed, p.Recheck
}

// ready waits until the table has the credentials of all sources; an earlier answer could be wrong.
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
