package serve_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/serve"
	"fairlead.dev/services/xds-server/internal/serve/wire"
)

// callerHeader names the service account of a caller on the port of authenticated.
const callerHeader = "test-service-account"

type calling struct {
	grpc.ServerStream
	ctx context.Context
}

func (c *calling) Context() context.Context { return c.ctx }

// authenticated opens a port on which callers have the service account in callerHeader, of namespace default.
func (r *fixture) authenticated() *fixture {
	r.t.Helper()
	g := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec()), grpc.StreamInterceptor(
		func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			md, _ := metadata.FromIncomingContext(ss.Context())
			id, err := auth.WorkloadID(spiffeid.RequireTrustDomainFromString(testkit.TrustDomain), "default", md.Get(callerHeader)[0])
			if err != nil {
				return err
			}
			return handler(srv, &calling{ss, auth.NewContext(ss.Context(), auth.Peer{ID: id, Method: "test"})})
		}))
	r.ADS.Register(g)
	lis := testkit.LoopbackListener(r.t)
	served := make(chan error, 1)
	go func() { served <- g.Serve(lis) }()
	r.t.Cleanup(func() {
		g.Stop()
		if err := <-served; err != nil {
			r.t.Error(err)
		}
	})
	server, secure := *r.Server, *r
	server.Conn, secure.Server = dial(r.t, lis.Addr().String()), &server
	return &secure
}

func dial(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	return conn
}

// as opens a delta stream of a proxy with a service account's identity.
func (r *fixture) as(account, pod string) *deltaClient {
	r.t.Helper()
	return r.deltaWith(metadata.AppendToOutgoingContext(context.Background(), callerHeader, account), node(pod, "default"))
}

// connected subscribes to clusters and returns the error with which the stream has ended, if it has.
func (c *deltaClient) connected() error {
	c.t.Helper()
	if err := c.stream.Send(&discovery.DeltaDiscoveryRequest{Node: c.node, TypeUrl: cds, ResourceNamesSubscribe: []string{"*"}}); err != nil {
		return c.ended()
	}
	c.node = nil
	m, err := c.nextOrEnd()
	if err == nil {
		c.ack(m)
	}
	return err
}

// refused asserts that err refuses a stream for a budget, and that Refusals has the same refusal with all these texts.
// There may be other refusals for the same budget.
func (r *fixture) refused(err error, budget string, texts ...string) {
	r.t.Helper()
	if status.Code(err) != codes.ResourceExhausted {
		r.t.Fatalf("the stream ended with %v, want %v", err, codes.ResourceExhausted)
	}
	for _, f := range r.ADS.Refusals() {
		if f.GetBudget() != budget || f.GetReason() != status.Convert(err).Message() {
			continue
		}
		for _, text := range texts {
			if !strings.Contains(f.String(), text) {
				r.t.Errorf("%q is not in %s", text, f)
			}
		}
		return
	}
	r.t.Errorf("no refusal for %s with %q is remembered: %v", budget, status.Convert(err).Message(), r.ADS.Refusals())
}

// workloads are n workloads of a service account.
func workloads(account string, n int) []*configv1.Resource {
	var all []*configv1.Resource
	for i := range n {
		all = append(all, meshtest.Workload("default", fmt.Sprintf("%s-%d", account, i), fmt.Sprintf("10.8.%d.%d", i/250, i%250),
			func(w *configv1.Workload) { w.ServiceAccount = account }))
	}
	return all
}

func TestStreamsOfOneIdentityAreBounded(t *testing.T) {
	r := startQuiet(t, append(basicMesh(), workloads("many", 10)...)...).authenticated()
	for account, allowed := range map[string]int{"one": serve.DefaultMinStreams, "many": 30} {
		var last *deltaClient
		for i := range allowed {
			last = r.as(account, fmt.Sprintf("%s-%d", account, i))
			if err := last.connected(); err != nil {
				t.Fatalf("stream %d of %d: %v", i+1, allowed, err)
			}
		}
		r.refused(r.as(account, account+"-beyond").connected(), "streams", "spiffe://cluster.local/ns/default/sa/"+account, account+"-beyond",
			fmt.Sprintf("%d are allowed", allowed), "a WorkloadEntry for each workload")
		if err := r.as("another", "another").connected(); err != nil {
			t.Errorf("another identity: %v", err)
		}
		last.cancel()
		testkit.Eventually(t, patience, func() error { return r.as(account, account+"-again").connected() })
	}
}

// TestReconnectLoopIsRefused reconnects in a loop, as a refused proxy does.
func TestReconnectLoopIsRefused(t *testing.T) {
	r := startQuiet(t, basicMesh()...).authenticated()
	var err error
	for i := 0; err == nil; i++ {
		if i > 1000 {
			t.Fatal("1000 streams were opened in no time")
		}
		c := r.as("one", "one")
		err = c.connected()
		c.cancel()
	}
	testkit.Eventually(t, patience, func() error {
		c := r.as("one", "one")
		defer c.cancel()
		if err := c.connected(); !strings.Contains(fmt.Sprint(err), "too often") {
			return fmt.Errorf("ended with %w", err)
		}
		return nil
	})
	r.refused(r.as("one", "one").connected(), "stream_rate", "spiffe://cluster.local/ns/default/sa/one")
	r.clock.Advance(time.Minute)
	testkit.Eventually(t, patience, func() error { return r.as("one", "one").connected() })
	if n := len(r.ADS.Refusals()); n > 8 {
		t.Errorf("%d refusals of one identity are remembered", n)
	}
	r.clock.Advance(time.Hour)
	if n := len(r.ADS.Refusals()); n > 0 {
		t.Errorf("%d refusals are remembered an hour later", n)
	}
}

// TestDeploymentReconnectsAtOnce: all Pods of a large Deployment, which share one identity, lose and open their streams
// twice at once.
func TestDeploymentReconnectsAtOnce(t *testing.T) {
	const pods = 1000
	r := startQuiet(t, append(basicMesh(), workloads("web", pods)...)...).authenticated()
	for range 3 {
		var clients []*deltaClient
		for i := range pods {
			clients = append(clients, r.as("web", fmt.Sprintf("web-%d", i)))
		}
		for i, c := range clients {
			if err := c.connected(); err != nil {
				t.Fatalf("Pod %d: %v", i, err)
			}
		}
		for _, c := range clients {
			c.cancel()
		}
	}
	if refused := r.ADS.Refusals(); len(refused) > 0 {
		t.Errorf("refused: %v", refused)
	}
}

// TestClassesOfOneIdentityAreBounded connects proxies with different metadata one after the other: the engine keeps
// each class for a while.
func TestClassesOfOneIdentityAreBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		claim   func(n *core.Node, i int)
		allowed int
	}{
		"proxy headers": {func(n *core.Node, i int) {
			meta, err := structpb.NewStruct(map[string]any{"PROXY_CONFIG": map[string]any{
				"proxyHeaders": map[string]any{"server": map[string]any{"value": fmt.Sprintf("server-%d", i)}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			n.Metadata = meta
		}, 4},
		"addresses": {func(n *core.Node, i int) {
			n.Id = strings.Replace(n.GetId(), "10.0.", "10.9.", 1)
			n.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{
				"INTERCEPTION_MODE": structpb.NewStringValue("NONE"), "INSTANCE_IPS": structpb.NewStringValue(fmt.Sprintf("10.9.1.%d", i)),
			}}
		}, 8},
	} {
		t.Run(name, func(t *testing.T) {
			r := startQuiet(t, basicMesh()...).authenticated()
			connect := func(i int) error {
				c := r.as("one", "one")
				defer c.cancel()
				tc.claim(c.node, i)
				return c.connected()
			}
			for i := range tc.allowed {
				if err := connect(i); err != nil {
					t.Fatalf("class %d of %d: %v", i+1, tc.allowed, err)
				}
			}
			r.refused(connect(tc.allowed), "classes", "spiffe://cluster.local/ns/default/sa/one", fmt.Sprintf("%d are allowed", tc.allowed))
			if err := connect(0); err != nil {
				t.Errorf("a class that there is: %v", err)
			}
			if err := r.quiet(); err != nil {
				t.Fatal(err)
			}
			r.clock.Advance(2 * time.Minute)
			if err := connect(tc.allowed); err != nil {
				t.Errorf("after the others have gone: %v", err)
			}
		})
	}
}

// TestNamesOfOneIdentityAreBounded subscribes to names until it is refused, in both protocol variants, and disconnects.
func TestNamesOfOneIdentityAreBounded(t *testing.T) {
	const request = 2000
	r := startWith(t, setup{translators: realTranslators, change: func(c *serve.Config) { c.MaxSubscribedBytes = 16 << 20 }},
		basicMesh()).authenticated()
	rightful := r.as("rightful", "rightful")
	rightful.connectAll()
	before := heap()
	var clients []*deltaClient
	var err error
	for n := 0; err == nil; n++ {
		if n > 100 {
			t.Fatal("200000 names were taken")
		}
		if n%4 == 0 {
			clients = append(clients, r.as("one", fmt.Sprintf("one-%d", n)))
		}
		c := clients[len(clients)-1]
		c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: cds, ResourceNamesSubscribe: namesOf(cds, n*request, request)})
		select {
		case m := <-c.got:
			c.ack(m)
		case err = <-c.err:
		case <-time.After(patience):
			t.Fatal("neither a response nor an end")
		}
		r.clock.Advance(time.Second)
	}
	r.refused(err, "names", "spiffe://cluster.local/ns/default/sa/one", "KiB are allowed")
	took := heap() - before
	t.Logf("one identity's names take %d KiB", took>>10)
	if took > 32<<20 {
		t.Errorf("one identity's names take %d MiB", took>>20)
	}
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.9"))
	rightful.next()
	for _, c := range clients {
		c.cancel()
	}
	testkit.Eventually(t, patience, func() error {
		if left := heap() - before; left > took/5 {
			return fmt.Errorf("%d KiB are left of %d", left>>10, took>>10)
		}
		return nil
	})
}

// TestRequestsOfOneIdentityAreThrottled requests names again and again that are looked up one by one.
func TestRequestsOfOneIdentityAreThrottled(t *testing.T) {
	const request = 2000
	r := startQuiet(t, basicMesh()...).authenticated()
	c := r.as("one", "one")
	done := make(chan error, 1)
	go func() {
		names, n := namesOf(eds, 0, request), c.node
		for range 20 {
			for _, m := range []*discovery.DeltaDiscoveryRequest{
				{Node: n, TypeUrl: eds, ResourceNamesSubscribe: names}, {TypeUrl: eds, ResourceNamesUnsubscribe: names},
			} {
				if err := c.stream.Send(m); err != nil {
					done <- err
					return
				}
			}
		}
		done <- c.stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: lds, ResourceNamesSubscribe: []string{"*"}})
	}()
	testkit.Eventually(t, patience, func() error {
		if next, ok := r.clock.NextIn(); !ok || next > time.Second {
			return fmt.Errorf("nobody waits for a second or less, but for %s", next)
		}
		return nil
	})
	if typeStatus(r.status("one"), lds) != nil {
		t.Error("the last request was read before its turn")
	}
	other := r.as("another", "another")
	if err := other.connected(); err != nil {
		t.Errorf("another identity: %v", err)
	}
	testkit.Eventually(t, patience, func() error {
		if typeStatus(r.status("one"), lds) != nil {
			return nil
		}
		r.clock.Advance(100 * time.Millisecond)
		return fmt.Errorf("the last request was not read")
	})
	if err := <-done; err != nil {
		t.Error(err)
	}
}
