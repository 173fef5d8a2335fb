package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/metadata"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/serve"
)

// attack opens all streams that an identity may have. Until ctx ends, each subscribes to made-up names and unsubscribes
// from them as fast as the server reads. attack returns at once; wait returns when all streams have ended.
func (r *fixture) attack(ctx context.Context) (wait func()) {
	ended := make(chan struct{})
	const streams = serve.DefaultMinStreams
	for i := range streams {
		go func() {
			defer func() { ended <- struct{}{} }()
			for n := 0; ctx.Err() == nil; n++ {
				r.churn(ctx, i, n)
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Millisecond): // as a proxy that was refused
				}
			}
		}()
	}
	return func() {
		for range streams {
			<-ended
		}
	}
}

// churn is one stream of an attack.
func (r *fixture) churn(ctx context.Context, i, n int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(r.Conn).DeltaAggregatedResources(
		metadata.AppendToOutgoingContext(ctx, callerHeader, "attacker"))
	if err != nil {
		return
	}
	go func() {
		defer cancel()
		for err == nil {
			_, err = stream.Recv()
		}
	}()
	pod := node(fmt.Sprintf("attacker-%d", i), "default")
	for k := range 1000 {
		names := namesOf(eds, (i*1000+n*100+k)*1000, 1000)
		for _, m := range []*discovery.DeltaDiscoveryRequest{
			{Node: pod, TypeUrl: eds, ResourceNamesSubscribe: names}, {TypeUrl: eds, ResourceNamesUnsubscribe: names},
		} {
			if err := stream.Send(m); err != nil {
				if !errors.Is(err, io.EOF) && ctx.Err() == nil {
					r.t.Errorf("send: %v", err)
				}
				return
			}
			pod = nil
		}
	}
}

// reaction changes the mesh every few milliseconds and returns the times within which half of the changes, and 99 of
// 100, reach a proxy. A time is the CPU time that this process uses meanwhile, divided by its processors: during an
// attack, which leaves no processor idle, this is how long it takes on a machine without other work. It lasts a second,
// so that it covers more than the beginning of an attack.
func (r *fixture) reaction(c *deltaClient, from int) (median, p99 time.Duration) {
	r.t.Helper()
	const changes = 200
	took := make([]time.Duration, 0, changes)
	every := time.NewTicker(5 * time.Millisecond)
	defer every.Stop()
	for i := range changes {
		<-every.C
		start := cpu()
		r.edit(meshtest.Endpoints("default", hostA, 80, fmt.Sprintf("10.%d.%d.%d", 20+from, i/250, 1+i%250)))
		c.ack(c.next())
		took = append(took, (cpu()-start)/time.Duration(runtime.GOMAXPROCS(0)))
	}
	slices.Sort(took)
	return took[changes/2], took[changes*99/100-1]
}

// The clients of the attack run in this process and share its processors. That alone may cost so much: for one change
// in a hundred some turns of busy goroutines, for one in two the cold caches. The attack suite in tests/e2e measures
// the same with clients in another process.
const (
	turns = 40 * time.Millisecond
	cold  = time.Millisecond
)

// TestAnAttackDoesNotDelayOthers compares how long changes take to reach a proxy at rest and during an attack.
func TestAnAttackDoesNotDelayOthers(t *testing.T) {
	mesh := basicMesh()
	for i := range 300 {
		mesh = append(mesh, meshtest.Service("default", fmt.Sprintf("service-%d.default.svc.cluster.local", i), 80))
	}
	r := startWith(t, setup{translators: realTranslators, change: func(c *serve.Config) {
		c.Clock, c.MaxSubscribedBytes = clock.Or(nil), 16<<20
	}}, mesh).authenticated()
	rightful := r.as("rightful", "rightful")
	rightful.subscribe(eds, "outbound|80||"+hostA)
	rightful.ack(rightful.next())
	before := heap()
	var took []string
	// As in testkit.Quick, one of several attempts must succeed: other load on the machine only adds to the times.
	for i := range 5 {
		median, rest := r.reaction(rightful, 2*i)
		ctx, stop := context.WithCancel(t.Context())
		wait := r.attack(ctx)
		testkit.Eventually(t, patience, func() error {
			if r.ADS.NamesBytes() == 0 {
				return errors.New("no attack yet")
			}
			return nil
		})
		attackedMedian, attacked := r.reaction(rightful, 2*i+1)
		stop()
		wait()
		took = append(took, fmt.Sprintf("%s and %s at rest, %s and %s under attack", median, rest, attackedMedian, attacked))
		if raceEnabled || attackedMedian <= max(2*median, cold) && attacked <= max(2*rest, turns) {
			t.Log(took)
			testkit.Eventually(t, patience, func() error {
				if left := heap() - before; left > 8<<20 {
					return fmt.Errorf("the attack has left %d MiB", left>>20)
				}
				return nil
			})
			return
		}
	}
	t.Errorf("half of the changes and 99 of 100 took %v", took)
}

// TestAnIdentityWithTooManyStreamsReconnectsFirst has an identity with more streams than workloads beside older proxies
// of other identities.
func TestAnIdentityWithTooManyStreamsReconnectsFirst(t *testing.T) {
	r := startQuiet(t, append(basicMesh(), append(workloads("web", 5), workloads("attacker", 1)...)...)...).authenticated()
	var rightful, attackers []*deltaClient
	for i := range 5 {
		c := r.as("web", fmt.Sprintf("web-%d", i))
		c.connectAll()
		rightful = append(rightful, c)
		r.acked(fmt.Sprintf("web-%d", i))
	}
	r.clock.Advance(time.Second)
	for i := range serve.DefaultMinStreams {
		c := r.as("attacker", fmt.Sprintf("attacker-%d", i))
		c.connectAll()
		attackers = append(attackers, c)
		r.acked(fmt.Sprintf("attacker-%d", i))
	}
	r.clock.Advance(time.Minute)
	if n := r.ADS.Streams(); n != 6 {
		t.Errorf("%d streams count, want one for each workload, 6", n)
	}
	if n := r.ADS.Reconnect(10); n != 10 {
		t.Errorf("%d moved, want 10", n)
	}
	r.streamsOf("attacker", attackers, serve.DefaultMinStreams-10)
	for _, c := range rightful {
		select {
		case err := <-c.err:
			t.Errorf("a rightful proxy was moved: %v", err)
		default:
		}
	}
}

// streamsOf waits until so many of the clients are connected.
func (r *fixture) streamsOf(account string, clients []*deltaClient, want int) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		ended := 0
		for _, c := range clients {
			ended += len(c.err)
		}
		if got := len(clients) - ended; got != want {
			return fmt.Errorf("%s has %d streams, want %d", account, got, want)
		}
		return nil
	})
}

// TestSubscribedResourceIsSentOnceItExists subscribes to names before the resources exist, in both protocol variants.
func TestSubscribedResourceIsSentOnceItExists(t *testing.T) {
	r := startQuiet(t, basicMesh()...)
	c, w := r.delta("delta", "default"), r.sotw("sotw", "default")
	name := "80|" + hostC
	c.subscribe(eds, name)
	c.ack(c.expect(eds, "-"+name))
	w.subscribe(eds, name, "80|"+hostA)
	w.ack(w.next())
	r.edit(meshtest.Service("default", hostC, 80), meshtest.Endpoints("default", hostC, 80, "10.1.0.3"))
	c.ack(c.expect(eds, "+"+name))
	w.ack(w.next())
	r.acked("delta")
	r.acked("sotw")
	r.remove(meshtest.Service("default", hostC, 80))
	c.ack(c.expect(eds, "-"+name))
	r.acked("delta")
}
