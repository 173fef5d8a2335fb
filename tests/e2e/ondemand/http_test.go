package ondemand

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/tests/e2e/internal/hostmesh"
)

// annotated makes the client one that holds only what it calls.
const annotated = `fairlead.dev/on-demand: "true"`

// firstMayCost is how much longer the first request to a service may take than later ones on a machine that has nothing
// else to do.
const firstMayCost = 15 * time.Millisecond

// wantCheapFirst asserts what first requests cost. The quarter of them that was least disturbed counts, and where later
// requests are slow too, the machine is busy: a first one crosses several programs, so it may take as many times
// longer.
func wantCheapFirst(t *testing.T, what string, first, later []time.Duration) {
	t.Helper()
	slices.Sort(first)
	usual := median(later)
	t.Logf("first %s %v (median of %d), later ones %v", what, median(first), len(first), usual)
	if more := first[len(first)/4] - usual; more > max(firstMayCost, 8*usual) {
		t.Errorf("three of four first %s take %v more than later ones, which take %v", what, more, usual)
	}
}

// TestOnDemand calls services in all ways from a sidecar that is not told of any.
func TestOnDemand(t *testing.T) {
	f := newFixture(t, options{annotations: annotated})
	defer f.check()
	fixed := f.client.Held()
	t.Logf("a proxy that has called nothing holds %d clusters, %d listeners, %d virtual hosts", len(fixed.Clusters), len(fixed.Listeners),
		len(fixed.VirtualHosts))
	if len(fixed.VirtualHosts) != 0 {
		t.Errorf("before the first request it holds virtual hosts %q", fixed.VirtualHosts)
	}
	for _, name := range fixed.Clusters {
		if strings.HasPrefix(name, "outbound|") || strings.HasPrefix(name, "ondemand|") {
			t.Errorf("before the first request it holds cluster %q", name)
		}
	}

	t.Run("it holds what it has called", func(t *testing.T) {
		f.ok(t, request{address: serverVIP + ":80", authority: "server"})
		f.talk(t, serverVIP+":9090", "hello", "v1: hello", "v2: hello")
		held := f.client.Held()
		wantAdded(t, "clusters", fixed.Clusters, held.Clusters, "outbound|80||server.apps.svc.cluster.local", "ondemand|tcp|"+serverVIP+"|9090")
		wantAdded(t, "virtual hosts", fixed.VirtualHosts, held.VirtualHosts, "80/server")
		wantAdded(t, "listeners", fixed.Listeners, held.Listeners)
	})
	t.Run("names of a service", func(t *testing.T) {
		const fqdn = "server.apps.svc.cluster.local"
		for _, authority := range []string{
			"server", "server.apps", "server.apps.svc", fqdn, fqdn + ":80", "server:80", serverVIP, serverVIP + ":80", "Server.Apps", fqdn + ".",
		} {
			f.ok(t, request{address: serverVIP + ":80", authority: authority})
		}
		f.ok(t, request{address: farVIP + ":80", authority: "far.else"})
		f.ok(t, request{address: serverVIP + ":81", authority: "server:81"})
		f.ok(t, request{address: sharedVIP + ":8000", authority: "shared:8000"})
	})
	t.Run("what a first request costs", func(t *testing.T) { f.firstCosts(t, 0, 9) })
	t.Run("a large body in a first request", func(t *testing.T) {
		body := bytes.Repeat([]byte("0123456789abcdef"), 2<<20/16)
		if a := f.ok(t, request{address: numberedVIP(10) + ":80", authority: numberedName(10), body: body}); a.seen.Size != int64(len(body)) {
			t.Errorf("the application read %d bytes, want %d", a.seen.Size, len(body))
		}
	})
	t.Run("first requests in parallel", func(t *testing.T) {
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() {
				a, err := call(f.client.Host, request{address: numberedVIP(11) + ":80", authority: numberedName(11)})
				if err := errors.Join(err, from("v1", "v2")(a)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
	t.Run("first requests to many hosts at once", func(t *testing.T) {
		var all sync.WaitGroup
		for i := 12; i < 32; i++ {
			all.Go(func() {
				a, err := call(f.client.Host, request{address: numberedVIP(i) + ":80", authority: numberedName(i)})
				if err := errors.Join(err, from("v1", "v2")(a)); err != nil {
					t.Errorf("%s: %v", numberedName(i), err)
				}
			})
		}
		all.Wait()
	})
	t.Run("gRPC", func(t *testing.T) { f.grpc(t) })
	t.Run("VirtualService and DestinationRule", func(t *testing.T) { f.routed(t) })
	t.Run("TCP", func(t *testing.T) { f.tcp(t) })
	t.Run("a restarted proxy is given at once what it has called", func(t *testing.T) { f.restarted(t, fixed) })
}

// wantAdded asserts what came to a list of names.
func wantAdded(t *testing.T, what string, before, now []string, want ...string) {
	t.Helper()
	added := map[string]bool{}
	for _, name := range now {
		added[name] = true
	}
	for _, name := range before {
		if !added[name] {
			t.Errorf("%s: %q is gone", what, name)
		}
		delete(added, name)
	}
	for _, name := range want {
		if !added[name] {
			t.Errorf("%s: %q is missing in %q", what, name, now)
		}
		delete(added, name)
	}
	for name := range added {
		t.Errorf("%s: %q was not called", what, name)
	}
}

// firstCosts compares first requests to services with later ones.
func (f *fixture) firstCosts(t *testing.T, begin, end int) {
	t.Helper()
	var first, later []time.Duration
	for i := begin; i <= end; i++ {
		r := request{address: numberedVIP(i) + ":80", authority: numberedName(i)}
		first = append(first, f.ok(t, r).took)
		for range 5 {
			later = append(later, f.ok(t, r).took)
		}
	}
	wantCheapFirst(t, "requests", first, later)
}

func (f *fixture) grpc(t *testing.T) {
	conn, err := grpc.NewClient("passthrough:///server.apps:7070", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return f.client.Host.Dial(ctx, serverVIP+":7070")
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	for range 3 {
		got, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
		if err != nil || got.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Fatalf("%v, %v", got, err)
		}
	}
}

// routed follows a VirtualService with subsets and weights, and a change of it.
func (f *fixture) routed(t *testing.T) {
	r := request{address: routedVIP + ":80", authority: "routed"}
	count := func(header http.Header) map[string]int {
		t.Helper()
		pods := map[string]int{}
		for range 60 {
			r.header = header
			pods[f.ok(t, r).seen.Pod]++
		}
		return pods
	}
	if got := count(http.Header{"X-Version": {"v2"}}); got["v2"] != 60 {
		t.Errorf("with the header, requests went to %v", got)
	}
	// 75 : 25; with 60 requests, 25 or less of 45 expected has a probability below 1e-6.
	if got := count(nil); got["v1"] <= 25 || got["v2"] == 0 {
		t.Errorf("by weight, requests went to %v", got)
	}
	f.WriteConfig("routes.yaml", routes(0, 100, "second"))
	r.header = nil
	f.eventually(t, r, func(a answer) error {
		if got := a.header.Get("X-Route"); got != "second" {
			return fmt.Errorf("route %q", got)
		}
		return from("v2")(a)
	})
}

func (f *fixture) tcp(t *testing.T) {
	f.talk(t, serverVIP+":9090", "hello", "v1: hello", "v2: hello")
	f.talk(t, serverVIP+":9092", "hello\r\n", "v1: hello\r\n", "v2: hello\r\n")
	f.talk(t, serverVIP+":9091", "", greeting)
	t.Run("the server speaks first where another service's clients do", func(t *testing.T) {
		f.talk(t, greeterVIP+":8000", "", greeting)
	})
	var first, later []time.Duration
	for i := range 10 {
		address := numberedVIP(i) + ":9090"
		first = append(first, f.talk(t, address, "hello", "v1: hello", "v2: hello"))
		for range 3 {
			later = append(later, f.talk(t, address, "hello", "v1: hello", "v2: hello"))
		}
	}
	wantCheapFirst(t, "connections", first, later)
}

// restarted compares requests after a restart of agent and Envoy: none of them is a first one any more.
func (f *fixture) restarted(t *testing.T, fixed hostmesh.Held) {
	before := f.client.Held()
	f.client.Restart()
	hostmesh.WaitReady(t, f.client)
	after := f.client.Held()
	t.Logf("%d clusters and %d virtual hosts before, %d and %d after", len(before.Clusters), len(before.VirtualHosts), len(after.Clusters),
		len(after.VirtualHosts))
	wantAdded(t, "clusters", fixed.Clusters, after.Clusters, missing(before.Clusters, fixed.Clusters)...)
	wantAdded(t, "virtual hosts", fixed.VirtualHosts, after.VirtualHosts, before.VirtualHosts...)
	f.firstCosts(t, 0, 9)
	f.talk(t, serverVIP+":9090", "hello", "v1: hello", "v2: hello")
	testkit.Eventually(t, takesEffect, func() error {
		_, err := call(f.client.Host, request{address: numberedVIP(40) + ":80", authority: numberedName(40)})
		return err
	})
}

// missing lists what is not in the other list.
func missing(list, other []string) []string {
	known := map[string]bool{}
	for _, name := range other {
		known[name] = true
	}
	var out []string
	for _, name := range list {
		if !known[name] {
			out = append(out, name)
		}
	}
	return out
}
