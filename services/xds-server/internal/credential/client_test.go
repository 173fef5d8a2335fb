package credential_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/testkit"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/xds-server/internal/credential"
)

const patience = testkit.Patience

var (
	shop  = credential.Ref{Identity: "spiffe://cluster.local/ns/edge/sa/gateway", Name: "shop"}
	other = credential.Ref{Identity: "spiffe://cluster.local/ns/edge/sa/gateway", Name: "other"}
)

// server hands every Watch to the test.
type server struct {
	secretv1.UnimplementedSecretServiceServer
	streams chan *watching
}

// watching is one open Watch, driven by hand.
type watching struct {
	t      *testing.T
	stream secretv1.SecretService_WatchServer
	end    chan error
}

func (s *server) Watch(stream secretv1.SecretService_WatchServer) error {
	w := &watching{stream: stream, end: make(chan error, 1)}
	s.streams <- w
	select {
	case err := <-w.end:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

// expect receives one request.
func (w *watching) expect(subscribe, unsubscribe int) *secretv1.WatchRequest {
	w.t.Helper()
	m, err := w.stream.Recv()
	if err != nil {
		w.t.Fatal(err)
	}
	if len(m.GetSubscribe()) != subscribe || len(m.GetUnsubscribe()) != unsubscribe {
		w.t.Fatalf("got %v, want %d new and %d old subscriptions", m, subscribe, unsubscribe)
	}
	return m
}

func (w *watching) answer(ref credential.Ref, version string) {
	w.t.Helper()
	m := &secretv1.WatchResponse{Subscription: &secretv1.Subscription{Namespace: "edge", Name: ref.Name, Identity: ref.Identity}}
	if version != "" {
		m.Credential = &secretv1.Credential{Version: version}
	}
	if err := w.stream.Send(m); err != nil {
		w.t.Fatal(err)
	}
}

// rig is a running client.
type rig struct {
	t      *testing.T
	client *credential.Client
	server *server

	mu  sync.Mutex
	set *credential.Set
}

func start(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, server: &server{streams: make(chan *watching)}}
	conn := testkit.ServeInMemory(t, func(g *grpc.Server) { secretv1.RegisterSecretServiceServer(g, r.server) })
	var err error
	r.client, err = credential.NewClient(credential.Config{
		Watcher: secretv1.NewSecretServiceClient(conn), Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(set *credential.Set, _ []credential.Ref) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.set = set
	}
	testkit.Background(t, func(ctx context.Context) error { return r.client.Run(ctx, apply) })
	return r
}

func (r *rig) watch() *watching {
	r.t.Helper()
	select {
	case w := <-r.server.streams:
		w.t = r.t
		return w
	case <-time.After(patience):
		r.t.Fatal("no watch is open")
		return nil
	}
}

// knows waits until a set says of a reference: a version, "" for none, "?" for not known.
func (r *rig) knows(ref credential.Ref, want string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		got := "?"
		if c, ok := r.set.Get(ref); ok {
			got = c.Version()
		}
		if got != want {
			return fmt.Errorf("%s: %q, want %q", ref.Name, got, want)
		}
		return nil
	})
}

func TestFollowsWhatIsUsed(t *testing.T) {
	r := start(t)
	select {
	case <-r.server.streams:
		t.Fatal("a stream although nothing is followed")
	default:
	}
	r.client.Follow(shop)
	w := r.watch()
	s := w.expect(1, 0).GetSubscribe()[0]
	if s.GetNamespace() != "edge" || s.GetName() != "shop" || s.GetIdentity() != shop.Identity {
		t.Errorf("subscribed to %v", s)
	}
	w.answer(shop, "1")
	r.knows(shop, "1")
	r.client.Follow(shop)
	r.client.Follow(other)
	w.expect(1, 0)
	w.answer(other, "")
	r.knows(other, "")
	w.answer(shop, "2")
	r.knows(shop, "2")
	r.client.Unfollow(shop)
	r.client.Unfollow(other)
	if got := w.expect(0, 1).GetUnsubscribe()[0].GetName(); got != "other" {
		t.Errorf("unsubscribed from %s", got)
	}
	r.knows(other, "?")
	w.answer(other, "late") // on its way when it was given up
	w.answer(credential.Ref{Identity: "spiffe://cluster.local/ns/edge/sa/gateway", Name: "unasked"}, "x")
	w.answer(shop, "3")
	r.knows(shop, "3")
	r.knows(other, "?")
	r.client.Unfollow(shop)
	w.expect(0, 1)
	r.knows(shop, "?")
}

// TestFollowedAgain: what was given up is asked for anew, although the stream was not told in between.
func TestFollowedAgain(t *testing.T) {
	r := start(t)
	r.client.Follow(shop)
	w := r.watch()
	w.expect(1, 0)
	w.answer(shop, "1")
	r.knows(shop, "1")
	for range 100 {
		r.client.Unfollow(shop)
		r.client.Follow(shop)
	}
	old, again := 0, 0
	for again == 0 || old < again {
		m, err := w.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		old, again = old+len(m.GetUnsubscribe()), again+len(m.GetSubscribe())
	}
	w.answer(shop, "1")
	r.knows(shop, "1")
}

func TestKeepsWhileNobodyAnswers(t *testing.T) {
	r := start(t)
	r.client.Follow(shop)
	r.client.Follow(other)
	w := r.watch()
	for n := 0; n < 2; {
		m, err := w.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		n += len(m.GetSubscribe())
	}
	w.answer(shop, "1")
	r.knows(shop, "1")
	w.end <- errors.New("gone")
	w = r.watch()
	w.expect(2, 0)
	r.knows(shop, "1")
	w.answer(other, "2")
	r.knows(other, "2")
	r.knows(shop, "1")
	w.answer(shop, "")
	r.knows(shop, "")
}
