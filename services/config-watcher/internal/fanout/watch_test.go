package fanout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
)

type onlyWatch struct {
	configv1.UnimplementedConfigServiceServer
	*Server
}

func (o onlyWatch) Watch(s grpc.BidiStreamingServer[configv1.WatchRequest, configv1.WatchResponse]) error {
	return o.Server.Watch(s)
}

// serve runs a Server for a log on loopback.
func serve(t *testing.T) (*revision.Log, configv1.ConfigServiceClient, *Server) {
	t.Helper()
	log := revision.NewLog("epoch", clock.Real())
	s := NewServer(log, testkit.Logger(t), &configv1.Subscriber{Instance: "test"}, nil)
	conn := testkit.ServeInMemory(t, func(g *grpc.Server) { configv1.RegisterConfigServiceServer(g, onlyWatch{Server: s}) })
	return log, configv1.NewConfigServiceClient(conn), s
}

func namespace(t *testing.T, name, value string) *configv1.Resource {
	t.Helper()
	r, err := resource.New(resource.Key{Kind: "Namespace", Name: name}, &configv1.Namespace{Name: name, Labels: map[string]string{"v": value}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

type watch = grpc.BidiStreamingClient[configv1.WatchRequest, configv1.WatchResponse]

func open(t *testing.T, c configv1.ConfigServiceClient, requests ...*configv1.WatchRequest) watch {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	w, err := c.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		// EOF: the server has refused an earlier request, and Recv returns why.
		if err := w.Send(r); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	return w
}

var hello = &configv1.WatchRequest{
	Message: &configv1.WatchRequest_Hello{Hello: &configv1.WatchHello{Subscriber: &configv1.Subscriber{Instance: "a"}}}}

func receiveOne(t *testing.T, w watch) []*configv1.WatchResponse {
	t.Helper()
	var out []*configv1.WatchResponse
	for {
		m, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if out = append(out, m); m.Commit {
			return out
		}
	}
}

func TestLargeStateGoesInChunks(t *testing.T) {
	log, client, _ := serve(t)
	const count, size = 3000, 10_000
	var all []*configv1.Resource
	for i := range count {
		all = append(all, namespace(t, fmt.Sprintf("ns-%05d", i), strings.Repeat("x", size)))
	}
	// A resource larger than a chunk is sent alone.
	all = append(all, namespace(t, "zz-huge", strings.Repeat("y", 2<<20)))
	log.Commit(all, nil, "")
	chunks := receiveOne(t, open(t, client, hello))
	total := 0
	for i, c := range chunks {
		total += len(c.Upserts)
		if n := proto.Size(c); n > ChunkBytes && len(c.Upserts) > 1 {
			t.Errorf("chunk %d has %d bytes and %d resources", i, n, len(c.Upserts))
		}
		if c.Commit != (i == len(chunks)-1) {
			t.Errorf("chunk %d of %d: commit %v", i, len(chunks), c.Commit)
		}
		if (c.Server != nil) != (i == 0) {
			t.Errorf("chunk %d introduces the server: %v", i, c.Server)
		}
	}
	if total != count+1 || len(chunks) < count*size>>20 {
		t.Errorf("%d resources in %d chunks", total, len(chunks))
	}
}

func TestSlowSubscriberGetsNewestDifference(t *testing.T) {
	log, client, _ := serve(t)
	log.Commit(nil, nil, "")
	w := open(t, client, hello)
	receiveOne(t, w)
	// The subscriber reads nothing while far more is committed than flow control lets pass.
	const revisions, size = 400, 200_000
	for i := range revisions {
		log.Commit([]*configv1.Resource{namespace(t, "busy", fmt.Sprint(i, strings.Repeat("x", size)))}, nil, "")
	}
	last, _ := log.Current()
	received := 0
	for {
		m := receiveOne(t, w)
		received++
		if m[len(m)-1].Revision.Sequence == last.Sequence() {
			if got := m[len(m)-1].Upserts; len(got) != 1 || !strings.HasPrefix(got[0].GetNamespace().Labels["v"], fmt.Sprint(revisions-1, "x")) {
				t.Errorf("last difference %d resources", len(got))
			}
			break
		}
	}
	if received > revisions/2 {
		t.Errorf("%d of %d revisions were queued for a reader that did not read", received, revisions)
	}
}

func TestHello(t *testing.T) {
	log, client, s := serve(t)
	log.Commit([]*configv1.Resource{namespace(t, "a", "1"), namespace(t, "b", "1")}, nil, "")
	held := func(keys []string, hashes []byte) *configv1.WatchRequest {
		return &configv1.WatchRequest{Message: &configv1.WatchRequest_Held{Held: &configv1.Held{Kind: "Namespace", Keys: keys, Hashes: hashes}}}
	}
	t.Run("held resources are not sent, and unknown ones are removed", func(t *testing.T) {
		got := receiveOne(t, open(t, client,
			held([]string{"/a", "/b", "/c"}, slices.Concat(namespace(t, "a", "1").Hash, namespace(t, "b", "old").Hash, make([]byte, 16))), hello))
		if len(got[0].Upserts) != 1 || got[0].Upserts[0].Key.Name != "b" || len(got[0].Removed) != 1 || got[0].Removed[0].Name != "c" {
			t.Errorf("got %v", got)
		}
	})
	for name, requests := range map[string][]*configv1.WatchRequest{
		"hashes too short": {held([]string{"/a"}, make([]byte, 15)), hello},
		"key without /":    {held([]string{"a"}, make([]byte, 16)), hello},
		"ack before hello": {{Message: &configv1.WatchRequest_Ack{Ack: &configv1.WatchAck{Sequence: 1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := open(t, client, requests...).Recv()
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("Stop ends streams with UNAVAILABLE", func(t *testing.T) {
		w := open(t, client, hello)
		receiveOne(t, w)
		s.Stop()
		if _, err := w.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
	})
}

func TestSubscribersAreSentAwayBeforeTheFirstRevision(t *testing.T) {
	_, client, _ := serve(t)
	if _, err := open(t, client, hello).Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
}
