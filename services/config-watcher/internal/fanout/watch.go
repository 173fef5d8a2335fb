// Package fanout implements ConfigService.Watch: it streams revisions to xds-servers. Server sends each subscriber the
// difference between what it holds and the newest revision. Nothing is queued for a slow reader: the next difference is
// computed after the last one has been written.
package fanout

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/rpc"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// Limits of a stream.
const (
	// ChunkBytes bounds the size of a chunk. A single larger resource is a chunk of its own.
	ChunkBytes = 1 << 20
	// MaxHeld bounds the number of resources that a subscriber may say it holds.
	MaxHeld = 4 << 20
	// helloWithin bounds the time until the subscriber's hello.
	helloWithin = 30 * time.Second
)

// Observer receives events of subscribers, for metrics and the fleet.
type Observer interface {
	Subscribed(instance string)
	Unsubscribed(instance string)
	Sent(revision *configv1.Revision, resources int, bytes int)
	Acked(instance string, sequence uint64)
}

// Server implements the Watch method of ConfigService.
type Server struct {
	log     *revision.Log
	slog    *slog.Logger
	self    *configv1.Subscriber
	observe Observer

	stop     chan struct{}
	stopOnce sync.Once
}

// NewServer returns a server that presents itself to subscribers as self. observe may be nil.
func NewServer(log *revision.Log, logger *slog.Logger, self *configv1.Subscriber, observe Observer) *Server {
	return &Server{log: log, slog: logger, self: self, observe: observe, stop: make(chan struct{})}
}

// Stop ends all streams with UNAVAILABLE, so that subscribers move to another replica before this one stops.
func (s *Server) Stop() { s.stopOnce.Do(func() { close(s.stop) }) }

// held is what the subscriber holds, by key.
type held map[resource.Key]resource.Hash

func (h held) take(m *configv1.Held) error {
	if len(m.Hashes) != len(m.Keys)*resource.HashSize {
		return status.Errorf(codes.InvalidArgument, "held %s: %d keys need %d bytes of hashes, got %d", m.Kind, len(m.Keys),
			len(m.Keys)*resource.HashSize, len(m.Hashes))
	}
	if len(h)+len(m.Keys) > MaxHeld {
		return status.Errorf(codes.InvalidArgument, "held: more than %d keys", MaxHeld)
	}
	for i, k := range m.Keys {
		at := bytes.IndexByte([]byte(k), '/')
		if at < 0 {
			return status.Errorf(codes.InvalidArgument, "held %s: key %q is not <namespace>/<name>", m.Kind, k)
		}
		h[resource.Key{Kind: m.Kind, Namespace: k[:at], Name: k[at+1:]}] = resource.Hash(m.Hashes[i*resource.HashSize:])
	}
	return nil
}

type interest struct{ kinds, namespaces []string }

func (f interest) wants(k resource.Key) bool {
	return (len(f.kinds) == 0 || slices.Contains(f.kinds, k.Kind)) &&
		(len(f.namespaces) == 0 || k.Namespace == "" || slices.Contains(f.namespaces, k.Namespace))
}

// Watch implements ConfigService.
func (s *Server) Watch(stream grpc.BidiStreamingServer[configv1.WatchRequest, configv1.WatchResponse]) error {
	requests := rpc.Requests(stream)
	has, hello, err := s.introduction(stream.Context(), requests)
	if err != nil {
		return err
	}
	snapshot, changed := s.first(stream.Context())
	if snapshot == nil {
		return status.Error(codes.Unavailable, "not every source has synced yet")
	}
	instance := hello.GetSubscriber().GetInstance()
	s.slog.Info("subscriber joined", "instance", instance, "version", hello.GetSubscriber().GetVersion(), "holds", len(has))
	if s.observe != nil {
		s.observe.Subscribed(instance)
		defer s.observe.Unsubscribed(instance)
	}
	filter := interest{hello.GetInterest().GetKinds(), hello.GetInterest().GetNamespaces()}
	out := &sender{stream: stream, server: s.self, observe: s.observe}
	if err := out.send(snapshot, initial(has, snapshot, filter)); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.stop:
			return status.Error(codes.Unavailable, "config-watcher is stopping")
		case r := <-requests:
			if r.Err != nil {
				return rpc.EndOf(r.Err)
			}
			if ack := r.Message.GetAck(); ack != nil {
				if s.observe != nil {
					s.observe.Acked(instance, ack.Sequence)
				}
				continue
			}
			return status.Error(codes.InvalidArgument, "only acks may follow hello")
		case <-changed:
		}
		next, nextChanged := s.log.Current()
		if next == snapshot {
			continue
		}
		if err := out.send(next, filtered(s.log.Between(snapshot, next), filter)); err != nil {
			return err
		}
		snapshot, changed = next, nextChanged
	}
}

// firstWithin is how long a subscriber waits for the first revision before it gets UNAVAILABLE and tries another
// replica.
const firstWithin = 2 * time.Second

func (s *Server) first(ctx context.Context) (*revision.Snapshot, <-chan struct{}) {
	limit := time.NewTimer(firstWithin)
	defer limit.Stop()
	for {
		snapshot, changed := s.log.Current()
		if snapshot != nil {
			return snapshot, changed
		}
		select {
		case <-changed:
		case <-s.stop:
			return nil, nil
		case <-limit.C:
			return nil, nil
		case <-ctx.Done():
			return nil, nil
		}
	}
}

func (s *Server) introduction(ctx context.Context, requests <-chan rpc.Received[configv1.WatchRequest]) (held, *configv1.WatchHello,
	error) {
	has := held{}
	deadline := time.NewTimer(helloWithin)
	defer deadline.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil, status.FromContextError(ctx.Err()).Err()
		case <-s.stop:
			return nil, nil, status.Error(codes.Unavailable, "config-watcher is stopping")
		case <-deadline.C:
			return nil, nil, status.Errorf(codes.InvalidArgument, "no hello within %s", helloWithin)
		case r := <-requests:
			switch {
			case errors.Is(r.Err, io.EOF):
				return nil, nil, status.Error(codes.InvalidArgument, "no hello")
			case r.Err != nil:
				return nil, nil, r.Err
			case r.Message.GetHello() != nil:
				return has, r.Message.GetHello(), nil
			case r.Message.GetHeld() != nil:
				if err := has.take(r.Message.GetHeld()); err != nil {
					return nil, nil, err
				}
			default:
				return nil, nil, status.Error(codes.InvalidArgument, "hello comes before acks")
			}
		}
	}
}

// initial is the difference between what the subscriber holds and the snapshot.
func initial(has held, to *revision.Snapshot, f interest) revision.Difference {
	var d revision.Difference
	to.Each(func(k resource.Key, r *configv1.Resource) bool {
		if !f.wants(k) {
			return true
		}
		if h, ok := has[k]; ok {
			delete(has, k)
			if bytes.Equal(h[:], r.Hash) {
				return true
			}
		}
		d.Upserts = append(d.Upserts, r)
		return true
	})
	for k := range has {
		d.Removed = append(d.Removed, k)
	}
	slices.SortFunc(d.Removed, resource.Key.Compare)
	return d
}

func filtered(d revision.Difference, f interest) revision.Difference {
	if len(f.kinds) == 0 && len(f.namespaces) == 0 {
		return d
	}
	d.Upserts = slices.DeleteFunc(d.Upserts, func(r *configv1.Resource) bool { return !f.wants(resource.KeyOf(r.Key)) })
	d.Removed = slices.DeleteFunc(d.Removed, func(k resource.Key) bool { return !f.wants(k) })
	return d
}

// sender divides differences into chunks.
type sender struct {
	stream  grpc.BidiStreamingServer[configv1.WatchRequest, configv1.WatchResponse]
	server  *configv1.Subscriber // nil after the first chunk
	observe Observer
}

// send writes one revision. The last chunk has commit set even if nothing has changed for this subscriber, so that it
// knows that it is up to date. What only revisions of endpoints have changed has chunks of its own.
func (s *sender) send(to *revision.Snapshot, d revision.Difference) error {
	chunk := &configv1.WatchResponse{Revision: to.Revision(), Server: s.server}
	s.server = nil
	base := proto.Size(chunk) + 4
	size, total := base, 0
	flush := func() error {
		total += size
		err := s.stream.Send(chunk)
		chunk = &configv1.WatchResponse{Revision: to.Revision(), Endpoints: chunk.Endpoints}
		size = base
		return err
	}
	room := func(n int) error {
		// A field costs its tag and length, at most 6 bytes.
		if size+n+6 > ChunkBytes && size > base {
			if err := flush(); err != nil {
				return err
			}
		}
		size += n + 6
		return nil
	}
	fill := func(d revision.Difference) error {
		for _, r := range d.Upserts {
			if err := room(proto.Size(r)); err != nil {
				return err
			}
			chunk.Upserts = append(chunk.Upserts, r)
		}
		for _, k := range d.Removed {
			m := k.Proto()
			if err := room(proto.Size(m)); err != nil {
				return err
			}
			chunk.Removed = append(chunk.Removed, m)
		}
		return nil
	}
	configuration, endpoints := d.Lanes()
	if err := fill(configuration); err != nil {
		return err
	}
	if endpoints.Len() > 0 && configuration.Len() > 0 {
		if err := flush(); err != nil {
			return err
		}
		chunk.Endpoints = true
	}
	if err := fill(endpoints); err != nil {
		return err
	}
	chunk.Commit = true
	if err := flush(); err != nil {
		return err
	}
	if s.observe != nil {
		s.observe.Sent(to.Revision(), d.Len(), total)
	}
	return nil
}
