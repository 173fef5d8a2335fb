package serve_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/serve"
)

// crowd is many delta clients that acknowledge everything, each on a connection of its own.
type crowd struct {
	conns   []*grpc.ClientConn
	streams []discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	// acked counts down when a client has acknowledged a response.
	acked sync.WaitGroup
}

// gather opens n streams, each of which sends its first requests.
func gather(b testing.TB, address string, n int, first func(i int) []*discovery.DeltaDiscoveryRequest) *crowd {
	c := &crowd{}
	b.Cleanup(func() {
		for _, conn := range c.conns {
			_ = conn.Close() // the benchmark is over
		}
	})
	for i := range n {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			b.Fatal(err)
		}
		stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		c.conns, c.streams = append(c.conns, conn), append(c.streams, stream)
		requests := first(i)
		c.acked.Add(len(requests))
		for _, m := range requests {
			if err := stream.Send(m); err != nil {
				b.Fatal(err)
			}
		}
		go func() {
			for {
				m, err := stream.Recv()
				if err != nil {
					return
				}
				_ = stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()}) // an error shows in Recv
				c.acked.Done()
			}
		}()
	}
	return c
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for the own process
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func endpointsOf(names []string) func(i int) []*discovery.DeltaDiscoveryRequest {
	return func(i int) []*discovery.DeltaDiscoveryRequest {
		return []*discovery.DeltaDiscoveryRequest{{
			Node: node(fmt.Sprintf("p%d", i), "default"), TypeUrl: eds, ResourceNamesSubscribe: names,
		}}
	}
}

// floorServer sends one message to all its streams when told, and does nothing else.
type floorServer struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	mu      sync.Mutex
	streams []discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	message *discovery.DeltaDiscoveryResponse
}

func (f *floorServer) DeltaAggregatedResources(s discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if _, err := s.Recv(); err != nil {
		return err
	}
	f.mu.Lock()
	f.streams = append(f.streams, s)
	f.mu.Unlock()
	if err := s.Send(f.message); err != nil {
		return err
	}
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}

// BenchmarkPush sends an endpoint change to 200 streams; "floor" is a bare gRPC server that sends the same bytes to as
// many.
func BenchmarkPush(b *testing.B) {
	const streams = 200
	report := func(b *testing.B, start time.Duration) {
		b.ReportMetric(float64((cpu()-start).Nanoseconds())/float64(b.N*streams)/1000, "cpu-µs/push")
	}
	b.Run("floor", func(b *testing.B) {
		f := &floorServer{message: &discovery.DeltaDiscoveryResponse{TypeUrl: eds, Nonce: "1", SystemVersionInfo: "1"}}
		r := startQuiet(b, basicMesh()...)
		probe := r.delta("probe", "default")
		probe.subscribe(eds, "80|"+hostA)
		f.message.Resources = probe.next().GetResources()
		r.Stop()
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		g := grpc.NewServer()
		discovery.RegisterAggregatedDiscoveryServiceServer(g, f)
		go func() { _ = g.Serve(lis) }() // ends with Stop
		b.Cleanup(g.Stop)
		c := gather(b, lis.Addr().String(), streams, endpointsOf([]string{"x"}))
		c.acked.Wait()
		b.ResetTimer()
		start := cpu()
		for b.Loop() {
			c.acked.Add(streams)
			for _, s := range f.streams {
				if err := s.Send(f.message); err != nil {
					b.Fatal(err)
				}
			}
			c.acked.Wait()
		}
		report(b, start)
	})
	b.Run("server", func(b *testing.B) {
		r := startQuiet(b, basicMesh()...)
		c := gather(b, r.Conn.Target(), streams, endpointsOf([]string{"80|" + hostA, "80|" + hostB}))
		c.acked.Wait()
		n := 0
		b.ResetTimer()
		start := cpu()
		for b.Loop() {
			n++
			c.acked.Add(streams)
			r.edit(meshtest.Endpoints("default", hostA, 80, fmt.Sprintf("10.2.%d.%d", n>>8&255, n&255)))
			c.acked.Wait()
		}
		report(b, start)
	})
}

// BenchmarkStream measures the memory of one more stream of a known class, with 1,100 clusters and their endpoints.
func BenchmarkStream(b *testing.B) {
	const services = 1100
	var resources []*configv1.Resource
	var names []string
	for i := range services {
		host := fmt.Sprintf("service-%04d.namespace-%d.svc.cluster.local", i, i%10)
		resources = append(resources, meshtest.Service("default", host, 80), meshtest.Endpoints("default", host, 80, "10.1.0.1", "10.1.0.2"))
		names = append(names, "80|"+host)
	}
	connect := func(from int) func(i int) []*discovery.DeltaDiscoveryRequest {
		return func(i int) []*discovery.DeltaDiscoveryRequest {
			return []*discovery.DeltaDiscoveryRequest{
				{Node: node(fmt.Sprintf("p%d", from+i), "default"), TypeUrl: cds, ResourceNamesSubscribe: []string{"*"}},
				{TypeUrl: eds, ResourceNamesSubscribe: names},
				{TypeUrl: lds, ResourceNamesSubscribe: []string{"*"}},
				{TypeUrl: rds, ResourceNamesSubscribe: []string{"80"}},
			}
		}
	}
	// heap is the memory in use. The clients are in this process too, so an idle pair of connections is measured apart.
	heap := func() int64 {
		var m runtime.MemStats
		for range 3 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse) //nolint:gosec // fits
	}
	const few, more = 100, 300
	measure := func(b *testing.B, requests func(from int) func(i int) []*discovery.DeltaDiscoveryRequest) float64 {
		// All streams come from one address here, which may have no more than its share of the names.
		r := startWith(b, setup{change: func(c *serve.Config) { c.MaxNamesBytes = 4 << 30 }}, resources)
		gather(b, r.Conn.Target(), few, requests(0)).acked.Wait()
		r.settled(few)
		before := heap()
		gather(b, r.Conn.Target(), more, requests(few)).acked.Wait()
		r.settled(few + more)
		per := float64(heap()-before) / more / 1000
		r.Stop()
		return per
	}
	for b.Loop() {
		full := measure(b, connect)
		bare := measure(b, func(from int) func(i int) []*discovery.DeltaDiscoveryRequest {
			return func(i int) []*discovery.DeltaDiscoveryRequest {
				return []*discovery.DeltaDiscoveryRequest{{
					Node: node(fmt.Sprintf("p%d", from+i), "default"), TypeUrl: eds, ResourceNamesSubscribe: []string{"80|nowhere"},
				}}
			}
		})
		b.ReportMetric(full, "kB/pair")
		b.ReportMetric(full-bare, "kB/config")
	}
}

// settled waits until so many proxies hold all that they should.
func (r *fixture) settled(n int) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		done := 0
		for _, p := range r.ADS.Statuses() {
			if p.GetSettled() {
				done++
			}
		}
		if done < n {
			return fmt.Errorf("%d of %d", done, n)
		}
		return nil
	})
}
