package attack

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/testkit/adstest"
)

// types are what a proxy may ask for by name.
var types = []string{
	resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType, resource.VirtualHostType, resource.SecretType,
	resource.ExtensionConfigType,
}

const (
	// perConnection is how many streams an attacker opens on one connection: less than a server allows.
	perConnection = 200
	// openers open them at once.
	openers = 16
	// pause is how long an attacker that was refused waits before it tries again.
	pause = time.Second
)

// rested waits a pause, and reports whether the attack goes on.
func rested(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// testNames: one identity subscribes to names that nobody has, of every type, without end, on a few streams of each
// protocol.
func testNames(t *testing.T, f *fixture) {
	const (
		streams = 4
		most    = 4_000_000 // names in all
		each    = 2000      // names in a request
	)
	id := f.identity(t, batch, time.Hour)
	address := f.service(t, "xds-server-0").GRPCAddress
	// made-up names are as long as those that translators would look something up for.
	made := func(n int64) string {
		return fmt.Sprintf("outbound|%d||made-up-%d.example-%d.edge.svc.cluster.local", n%60000+1, n, n%977)
	}
	var number atomic.Int64
	next := func() []string {
		names := make([]string, each)
		for i := range names {
			names[i] = made(number.Add(1))
		}
		return names
	}
	attacks := map[string]func(ctx context.Context, conn *grpc.ClientConn, s *score) error{
		"delta": func(ctx context.Context, conn *grpc.ClientConn, s *score) error {
			stream, err := adstest.OpenDelta(ctx, conn, node(id.pod), grpc.WaitForReady(false))
			if err != nil {
				return err
			}
			ended := drained(stream.Drain)
			for i := 0; number.Load() < most; i++ {
				if stream.Subscribe(types[i%len(types)], next()...) != nil {
					return <-ended
				}
				s.did("names asked for", each)
			}
			s.loaded()
			return <-ended
		},
		"state of the world": func(ctx context.Context, conn *grpc.ClientConn, s *score) error {
			stream, err := adstest.OpenSotw(ctx, conn, node(id.pod), grpc.WaitForReady(false))
			if err != nil {
				return err
			}
			ended := drained(stream.Drain)
			names := map[string][]string{}
			for i := 0; number.Load() < most; i++ {
				url := types[i%len(types)]
				names[url] = append(names[url], next()...)
				if stream.Send(&discovery.DiscoveryRequest{TypeUrl: url, ResourceNames: names[url]}) != nil {
					return <-ended
				}
				s.did("names asked for", each)
			}
			s.loaded()
			return <-ended
		},
	}
	for protocol, ask := range attacks {
		t.Run(protocol, func(t *testing.T) {
			number.Store(0)
			f.under(t, attack{refused: true, run: func(ctx context.Context, s *score) {
				time.AfterFunc(5*time.Second, s.loaded)
				var wg sync.WaitGroup
				for range streams {
					wg.Go(func() {
						conn, err := id.dial(address)
						if err != nil {
							s.failed(ctx, err)
							return
						}
						defer conn.Close()
						for ok := true; ok; ok = rested(ctx) {
							s.failed(ctx, ask(ctx, conn, s))
						}
					})
				}
				wg.Wait()
			}})
		})
	}
}

// drained drains a stream while the caller sends, and tells why it ended.
func drained(drain func() error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- drain() }()
	return ended
}

// streams keeps count delta streams of one identity open, each with the node that nodeOf gives. Each asks for clusters
// and listeners and receives both.
func streams(id *identity, address string, count int, nodeOf func(i int) *corev3.Node) func(context.Context, *score) {
	return func(ctx context.Context, s *score) {
		var conns []*grpc.ClientConn
		for range (count + perConnection - 1) / perConnection {
			conn, err := id.dial(address)
			if err != nil {
				s.failed(ctx, err)
				return
			}
			defer conn.Close()
			conns = append(conns, conn)
		}
		var wg, opened sync.WaitGroup
		turns := make(chan struct{}, openers)
		opened.Add(count)
		go func() { opened.Wait(); s.loaded() }()
		for i := range count {
			wg.Go(func() {
				first := sync.OnceFunc(opened.Done)
				defer first()
				// One that is refused comes again.
				for ok := true; ok; ok = rested(ctx) {
					s.failed(ctx, stay(ctx, conns[i%len(conns)], nodeOf(i), turns, first, s))
					first()
				}
			})
		}
		wg.Wait()
	}
}

// stay opens a stream in turn and keeps it.
func stay(ctx context.Context, conn *grpc.ClientConn, n *corev3.Node, turns chan struct{}, opened func(), s *score) error {
	select {
	case turns <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	release := sync.OnceFunc(func() { <-turns })
	defer release()
	stream, err := adstest.OpenDelta(ctx, conn, n, grpc.WaitForReady(false))
	if err != nil {
		return err
	}
	for _, url := range []string{resource.ClusterType, resource.ListenerType} {
		if stream.Subscribe(url, "*") != nil {
			return stream.Drain()
		}
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
	s.did("streams configured", 1)
	release()
	opened()
	return stream.Drain()
}

// testClasses: one identity claims another DNS domain, other labels and another place on every stream.
func testClasses(t *testing.T, f *fixture) {
	id := f.identity(t, batch, time.Hour)
	for what, nodeOf := range map[string]func(i int) *corev3.Node{
		"DNS domains": func(i int) *corev3.Node {
			return nodeNamed("sidecar", id.pod.IP, id.pod.Name, id.pod.Namespace, fmt.Sprintf("edge.svc.made-up-%d.local", i))
		},
		"names, labels and places": func(i int) *corev3.Node {
			n := withLabels(nodeNamed("sidecar", fmt.Sprintf("192.0.2.%d", i%250), fmt.Sprintf("batch-%d", i), id.pod.Namespace,
				"edge.svc.cluster.local"),
				map[string]any{"app": fmt.Sprintf("app-%d", i), "version": strings.Repeat("v", 60)})
			n.Locality = &corev3.Locality{Region: fmt.Sprintf("region-%d", i), Zone: "zone"}
			return n
		},
	} {
		t.Run(what, func(t *testing.T) {
			f.under(t, attack{refused: true, run: streams(id, f.service(t, "xds-server-0").GRPCAddress, 4000, nodeOf)})
		})
	}
}

// testStreams: one identity opens thousands of streams that are all alike.
func testStreams(t *testing.T, f *fixture) {
	id := f.identity(t, batch, time.Hour)
	f.under(t, attack{refused: true,
		run: streams(id, f.service(t, "xds-server-0").GRPCAddress, 5000, func(int) *corev3.Node { return node(id.pod) })})
}
