package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/errgroup"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/mcp"
	"fairlead.dev/services/config-watcher/internal/object"
)

const (
	// MaxMessageBytes bounds a message: gRPC ends the stream before it reads a longer one.
	MaxMessageBytes = 64 << 20
	// maxBytes and maxEntries bound the lists of a server together. A server may have each object in three versions.
	maxBytes   = 256 << 20
	maxEntries = 300_000
	// maxLogged bounds what the log says of the entries of one message.
	maxLogged = 20
	// againAfter is how long a stream lasts. An istiod does not tell changes that none of its proxies needs.
	againAfter = 5 * time.Minute

	revisionLabel = contract.RevisionLabel
)

// Node is what the client says of itself. A server believes the certificate, not this.
type Node struct {
	// Name, Namespace and Domain are those of this process; Address is an address of it.
	Name, Namespace, Domain, Address string
}

// node is that of a proxy of a type.
func (s *Source) node(proxy string) *core.Node {
	n := s.cfg.Node
	text := func(v string) *structpb.Value { return structpb.NewStringValue(v) }
	return &core.Node{
		Id: fmt.Sprintf("%s~%s~%s.%s~%s.svc.%s", proxy, cmp.Or(n.Address, "127.0.0.1"), n.Name, n.Namespace, n.Namespace, n.Domain),
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"GENERATOR": text("api"), "ISTIO_REVISION": text(s.cfg.Revision), "NAMESPACE": text(n.Namespace),
			// A server makes no difference by version for one that says this, as istiod's own client does.
			"ISTIO_VERSION": text("65536.65536.65536"),
		}},
	}
}

// Run implements source.Source.
func (s *Source) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.keep(ctx) })
	if s.registry != nil {
		group.Go(func() error {
			rpc.Reopener{Clock: s.cfg.Clock}.Run(ctx, s.followEndpoints, func(err error, _ time.Duration) { s.endpointsFailed(err) })
			return nil
		})
	}
	group.Go(func() error {
		rpc.Reopener{Clock: s.cfg.Clock}.Run(ctx, s.follow,
			func(err error, _ time.Duration) {
				if !errors.Is(err, errAgain) {
					s.fail(err)
				}
			})
		return nil
	})
	err := group.Wait()
	s.saveAll()
	return err
}

// errAgain ends a stream that the next one follows: the server may have told less than all changes, or what it has told
// needs a second reading.
var errAgain = errors.New("everything is asked for again")

// received is a message, or why the stream has ended.
type received[M any] struct {
	message M
	err     error
}

// receive reads a stream into a channel until ctx or the stream ends.
func receive[M any](ctx context.Context, next func() (M, error)) <-chan received[M] {
	out := make(chan received[M])
	go func() {
		for {
			m, err := next()
			select {
			case out <- received[M]{m, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

// ending waits for the error that a stream ends with.
func ending[M any](ctx context.Context, messages <-chan received[M]) error {
	for {
		select {
		case r := <-messages:
			if r.err != nil {
				return r.err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follow reads one stream to its end. Each has a connection of its own, so that changed files of roots count.
func (s *Source) follow(ctx context.Context) (useful bool, err error) {
	conn, err := s.cfg.Dial(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	if err := s.ask(stream); err != nil {
		return false, err
	}
	messages := receive(ctx, stream.Recv)
	patience := s.cfg.Clock.NewTimer(silentAfter)
	defer patience.Stop()
	again := s.cfg.Clock.NewTimer(againAfter)
	defer again.Stop()
	var due <-chan time.Time
	var dueAt time.Time
	for {
		if at := s.due(); !at.Equal(dueAt) {
			if due, dueAt = nil, at; !at.IsZero() {
				due = s.cfg.Clock.After(at.Sub(s.cfg.Clock.Now()))
			}
		}
		select {
		case <-ctx.Done():
			return useful, ctx.Err()
		case <-patience.C():
			if useful {
				s.mu.Lock()
				s.impatient = true
				s.mu.Unlock()
				s.reconsider(ctx)
			}
		case <-again.C():
			return useful, errAgain
		case <-due:
			return useful, errAgain
		case r := <-messages:
			if r.err != nil {
				return useful, r.err
			}
			answer := &discovery.DiscoveryRequest{TypeUrl: r.message.GetTypeUrl(), VersionInfo: r.message.GetVersionInfo(),
				ResponseNonce: r.message.GetNonce()}
			if err := s.take(ctx, r.message); err != nil {
				answer.VersionInfo = ""
				answer.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
			} else {
				useful = true
			}
			if err := stream.Send(answer); err != nil {
				return useful, err
			}
		}
	}
}

// ask subscribes to every version of every kind. The first request has the node.
func (s *Source) ask(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient) error {
	s.mu.Lock()
	s.impatient = false
	s.stream++
	var urls []string
	for _, k := range s.kinds {
		for _, l := range k.lists {
			l.answered = false
			urls = append(urls, l.url)
		}
	}
	s.mu.Unlock()
	// An istiod sends nothing for a change that a proxy of the type has no use for, even to clients of MCP: a sidecar
	// is told nothing of Gateways, a gateway nothing of Sidecars. A waypoint is told all.
	node := s.node("waypoint")
	for _, url := range urls {
		if err := stream.Send(&discovery.DiscoveryRequest{TypeUrl: url, Node: node}); err != nil {
			_, err = stream.Recv() // why it has ended
			return cmp.Or(err, errNeverAnswered)
		}
		node = nil
	}
	return nil
}

// reconsider brings all kinds in line with their lists, when more may be removed than before.
func (s *Source) reconsider(ctx context.Context) {
	for _, k := range s.kinds {
		s.change(ctx, k, func() {})
	}
	s.settle()
}

// take takes one message over. An error rejects it as a whole, and nothing of it counts.
func (s *Source) take(ctx context.Context, m *discovery.DiscoveryResponse) error {
	l := s.lists[m.GetTypeUrl()]
	if l == nil {
		return s.reject(fmt.Sprintf("the server sends %s, which nobody has asked for", object.Quote(m.GetTypeUrl())))
	}
	others, entries := 0, len(m.GetResources())
	for _, other := range s.lists {
		if other != l {
			others += other.bytes
			entries += len(other.entries)
		}
	}
	if entries > maxEntries {
		return s.reject(fmt.Sprintf("the list of %s has %d entries, and all lists together more than %d", l.url, len(m.GetResources()),
			maxEntries))
	}
	sums, bytes := sumsOf(m.GetResources())
	if others+bytes > maxBytes {
		return s.reject(fmt.Sprintf("the list of %s has %d bytes, and all lists together more than %d", l.url, bytes, maxBytes))
	}
	k := s.of[l.url]
	if l.same(m.GetResources(), sums) {
		s.answered()
		if l.answered {
			return nil
		}
		s.change(ctx, k, func() { l.answered = true })
		s.settle()
		return nil
	}
	unusable := 0
	next := l.next(m.GetResources(), sums, bytes, func(r *anypb.Any) *entry {
		e := s.decode(k, r)
		if len(e.problems) > 0 {
			if unusable++; unusable <= maxLogged {
				s.cfg.Log.Warn("object of an MCP server cannot be used, its last good version stays", "source", s.name,
					"problem", e.problems.Error())
			}
		}
		return e
	})
	if unusable > maxLogged {
		s.cfg.Log.Warn("more objects of an MCP server cannot be used", "source", s.name, "type", l.url, "more", unusable-maxLogged)
	}
	s.answered()
	s.change(ctx, k, func() { *l = *next })
	s.settle()
	return nil
}

// answered notes that the server can be read.
func (s *Source) answered() {
	s.mu.Lock()
	before := s.failure
	s.failure = nil
	s.rejected = nil
	s.mu.Unlock()
	if before != nil {
		s.cfg.Log.Info("MCP server can be read again", "source", s.name)
	}
}

// reject names a message that cannot be used.
func (s *Source) reject(reason string) error {
	p := object.Problem{Reason: reason, Remedy: "correct the MCP server " + s.cfg.Host}
	s.mu.Lock()
	s.rejected = object.Problems{p}
	s.mu.Unlock()
	s.cfg.Log.Warn("message of an MCP server is rejected, its last objects stay", "source", s.name, "reason", reason)
	return p
}

// decode makes the entry of one object.
func (s *Source) decode(k *kind, r *anypb.Any) *entry {
	d := mcp.Decode(k.desc, r)
	e := &entry{key: d.Key, object: d.Object, problems: d.Problems, hold: d.Hold}
	switch {
	case d.Key.Name != "" && s.outside(d.Key):
		return &entry{key: d.Key, outside: true}
	case synthetic(k.desc, d.Key):
		if s.registry != nil {
			if t := templateOf(r); t != nil {
				return &entry{key: d.Key, template: t}
			}
		}
		s.mu.Lock()
		s.synthetic++
		s.mu.Unlock()
		return &entry{key: d.Key}
	case d.Object != nil && s.foreign(d.Object.Labels):
		return &entry{key: d.Key}
	case d.Object != nil:
		if e.problems = s.claims(d.Object); e.problems != nil {
			e.object = nil
			break
		}
		d.Object.Source = s.name
	case d.Key.Name != "":
		e.saved = s.savedVersion(k, d.Key)
	}
	return e
}
