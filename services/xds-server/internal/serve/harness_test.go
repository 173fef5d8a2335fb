package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/plan/plantest"
	"fairlead.dev/services/xds-server/internal/serve"
	"fairlead.dev/services/xds-server/internal/servetest"
)

const (
	cds = resource.ClusterType
	eds = resource.EndpointType
	lds = resource.ListenerType
	rds = resource.RouteType

	hostA = "a.default.svc.cluster.local"
	hostB = "b.default.svc.cluster.local"
	hostC = "c.default.svc.cluster.local"

	patience = testkit.Patience
)

// fixture is an xds-server under test with plantest's translators and a clock that the test sets.
type fixture struct {
	*servetest.Server
	t     testing.TB
	set   *plantest.Set
	clock *testkit.Clock
}

// start starts a server whose first revision has the resources; without resources it has no revision.
func start(t testing.TB, resources ...*configv1.Resource) *fixture {
	t.Helper()
	return startWith(t, setup{log: testkit.Logger(t)}, resources)
}

// startQuiet is start without a log, for tests with thousands of steps.
func startQuiet(t testing.TB, resources ...*configv1.Resource) *fixture {
	t.Helper()
	return startWith(t, setup{}, resources)
}

// setup is how a fixture differs from the usual one.
type setup struct {
	// log is nil for none.
	log *slog.Logger
	// translators of the engine; nil means those of plantest.
	translators func(*plantest.Set) []plan.Translator
	// change edits the configuration.
	change func(*serve.Config)
}

func startWith(t testing.TB, how setup, resources []*configv1.Resource) *fixture {
	t.Helper()
	if how.translators == nil {
		how.translators = (*plantest.Set).Translators
	}
	r := &fixture{t: t, set: plantest.New(), clock: testkit.NewClock(meshtest.Epoch)}
	r.Server = servetest.Start(t, servetest.Config{
		Translators: how.translators(r.set), Log: how.log, Clock: r.clock,
		Change: func(c *serve.Config) {
			c.MaxSubscribedBytes, c.Rand = 1<<20, func() float64 { return 0.5 }
			if how.change != nil {
				how.change(c)
			}
		},
	})
	t.Cleanup(r.Stop)
	if len(resources) > 0 {
		r.edit(resources...)
	}
	return r
}

// edit applies a revision with these upserts.
func (r *fixture) edit(upserts ...*configv1.Resource) { r.change(upserts, nil) }

// remove applies a revision without these resources.
func (r *fixture) remove(resources ...*configv1.Resource) { r.change(nil, resources) }

func (r *fixture) change(upserts, removed []*configv1.Resource) {
	var keys []*configv1.ResourceKey
	for _, res := range removed {
		keys = append(keys, res.GetKey())
	}
	r.Apply(upserts, keys)
}

// status returns the status of one proxy, nil if it is not connected.
func (r *fixture) status(pod string) *configv1.ProxyStatus {
	for _, p := range r.ADS.Statuses() {
		if p.GetWorkload() == pod {
			return p
		}
	}
	return nil
}

// acked waits until the proxy has acknowledged the newest revision.
func (r *fixture) acked(pod string) *configv1.ProxyStatus {
	r.t.Helper()
	var p *configv1.ProxyStatus
	testkit.Eventually(r.t, patience, func() error {
		if p = r.status(pod); p == nil {
			return fmt.Errorf("%s is not connected", pod)
		}
		if p.GetAcked().GetSequence() != r.Sequence {
			return fmt.Errorf("revision %d, acknowledged %d: %v", r.Sequence, p.GetAcked().GetSequence(), p)
		}
		return nil
	})
	return p
}

func typeStatus(p *configv1.ProxyStatus, url string) *configv1.ProxyTypeStatus {
	for _, t := range p.GetTypes() {
		if t.GetTypeUrl() == url {
			return t
		}
	}
	return nil
}

func node(pod, namespace string) *core.Node {
	ip := fmt.Sprintf("10.0.%d.%d", len(pod), pod[0]) // differs as long as the names of the pods do
	return &core.Node{Id: fmt.Sprintf("sidecar~%s~%s.%s~%s.svc.cluster.local", ip, pod, namespace, namespace)}
}

// nack is the status of a NACK, as Envoy sends it.
func nack(message string) *rpcstatus.Status {
	return &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: message}
}

// client is what the ADS clients of both protocol variants have in common. A test drives them by hand.
type client[Request, Response any] struct {
	t      testing.TB
	stream adsStream[Request, Response]
	node   *core.Node
	got    chan *Response
	err    chan error
	cancel context.CancelFunc
}

type adsStream[Request, Response any] interface {
	Send(*Request) error
	Recv() (*Response, error)
	CloseSend() error
	Trailer() metadata.MD
}

// open opens a stream and receives from it until it ends.
func open[Request, Response any, S adsStream[Request, Response]](
	ctx context.Context, t testing.TB, node *core.Node, method func(context.Context, ...grpc.CallOption) (S, error),
) client[Request, Response] {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	stream, err := method(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := client[Request, Response]{t: t, stream: stream, node: node, got: make(chan *Response, 100), err: make(chan error, 1), cancel: cancel}
	go receive(stream.Recv, c.got, c.err) // it does not keep the node reachable
	return c
}

func receive[Response any](recv func() (*Response, error), got chan<- *Response, ended chan<- error) {
	for {
		m, err := recv()
		if err != nil {
			ended <- err
			return
		}
		got <- m
	}
}

func (c *client[Request, Response]) next() *Response {
	c.t.Helper()
	m, err := c.nextOrEnd()
	if err != nil {
		c.t.Fatalf("stream ended: %v", err)
	}
	return m
}

// ended waits for the end of the stream.
func (c *client[Request, Response]) ended() error {
	c.t.Helper()
	select {
	case err := <-c.err:
		return err
	case <-time.After(patience):
		c.t.Fatal("the stream is still open")
		return nil
	}
}

// endsWith waits for the end of the stream, whose status must have this code.
func (c *client[Request, Response]) endsWith(want codes.Code) {
	c.t.Helper()
	if err := c.ended(); status.Code(err) != want {
		c.t.Errorf("the stream ended with %v, want %s", err, want)
	}
}

// nextOrEnd waits for the next response or the end of the stream.
func (c *client[Request, Response]) nextOrEnd() (*Response, error) {
	c.t.Helper()
	select {
	case m := <-c.got:
		return m, nil
	case err := <-c.err:
		return nil, err
	case <-time.After(patience):
		c.t.Fatal("neither a response nor an end")
		return nil, nil
	}
}

// deltaClient is a client of the delta variant.
type deltaClient struct {
	client[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse]
}

func (r *fixture) delta(pod, namespace string) *deltaClient {
	r.t.Helper()
	return r.deltaOver(context.Background(), r.Conn, node(pod, namespace))
}

func (r *fixture) deltaWith(ctx context.Context, n *core.Node) *deltaClient {
	r.t.Helper()
	return r.deltaOver(ctx, r.Conn, n)
}

// deltaOver opens a stream over another connection than Conn.
func (r *fixture) deltaOver(ctx context.Context, conn *grpc.ClientConn, node *core.Node) *deltaClient {
	r.t.Helper()
	ads := discovery.NewAggregatedDiscoveryServiceClient(conn)
	return &deltaClient{open[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse](ctx, r.t, node, ads.DeltaAggregatedResources)}
}

func (c *deltaClient) send(m *discovery.DeltaDiscoveryRequest) {
	c.t.Helper()
	m.Node, c.node = c.node, nil // like Envoy, only in the first request
	if err := c.stream.Send(m); err != nil {
		c.t.Fatal(err)
	}
}

// subscribe subscribes to names; without names, to the legacy wildcard.
func (c *deltaClient) subscribe(url string, names ...string) {
	c.t.Helper()
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: url, ResourceNamesSubscribe: names})
}

func (c *deltaClient) ack(m *discovery.DeltaDiscoveryResponse) {
	c.t.Helper()
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()})
}

func (c *deltaClient) nack(m *discovery.DeltaDiscoveryResponse, message string) {
	c.t.Helper()
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce(), ErrorDetail: nack(message)})
}

// expect takes the next response, which must be this: "+name" for each resource in order, "?name" for each "not found",
// "-name" for each removed one.
func (c *deltaClient) expect(url string, want ...string) *discovery.DeltaDiscoveryResponse {
	c.t.Helper()
	m := c.next()
	if m.GetTypeUrl() != url {
		c.t.Fatalf("got %s %v, want %s %v", m.GetTypeUrl(), describe(m), url, want)
	}
	if got := describe(m); !slices.Equal(got, want) {
		c.t.Fatalf("%s: got %q, want %q", url, got, want)
	}
	return m
}

func describe(m *discovery.DeltaDiscoveryResponse) []string {
	var s []string
	for _, r := range m.GetResources() {
		if r.GetResource() == nil {
			s = append(s, "?"+r.GetName()) // not found
			continue
		}
		s = append(s, "+"+r.GetName())
	}
	for _, name := range m.GetRemovedResources() {
		s = append(s, "-"+name)
	}
	return s
}

// askedToReconnect fails the test unless the client is asked to reconnect for this reason.
func (c *deltaClient) askedToReconnect(why string) {
	c.t.Helper()
	err := c.ended()
	if got := rpc.ReconnectAsked(c.stream.Trailer()); !errors.Is(err, io.EOF) || !strings.Contains(got, why) {
		c.t.Errorf("the stream ended with %v, asked to reconnect for %q; want the end of the stream and %q", err, got, why)
	}
}

func versions(ms ...*discovery.DeltaDiscoveryResponse) map[string]string {
	v := map[string]string{}
	for _, m := range ms {
		for _, r := range m.GetResources() {
			v[r.GetName()] = r.GetVersion()
		}
	}
	return v
}

// basicMesh has two services with endpoints.
func basicMesh() []*configv1.Resource {
	return []*configv1.Resource{
		meshtest.Service("default", hostA, 80), meshtest.Endpoints("default", hostA, 80, "10.1.0.1"),
		meshtest.Service("default", hostB, 80), meshtest.Endpoints("default", hostB, 80, "10.1.0.2"),
	}
}

func timeoutRule(name, host string, seconds int) *configv1.Resource {
	return meshtest.Config(mesh.KindDestinationRule, "default", name, meshtest.DestinationRule(host, time.Duration(seconds)*time.Second))
}

// connectAll subscribes to everything, as a sidecar does, and acknowledges it.
func (c *deltaClient) connectAll() (clusters, endpoints, listeners, routes *discovery.DeltaDiscoveryResponse) {
	c.t.Helper()
	c.subscribe(cds, "*")
	clusters = c.next()
	var names []string
	for _, r := range clusters.GetResources() {
		names = append(names, r.GetName())
	}
	c.ack(clusters)
	c.subscribe(eds, names...)
	endpoints = c.next()
	c.ack(endpoints)
	c.subscribe(lds, "*")
	listeners = c.next()
	c.ack(listeners)
	c.subscribe(rds, "80")
	routes = c.next()
	c.ack(routes)
	return clusters, endpoints, listeners, routes
}

func short(url string) string { return url[strings.LastIndexByte(url, '.')+1:] }

// until waits until the status of a proxy satisfies the condition, and returns it.
func (r *fixture) until(pod, what string, is func(*configv1.ProxyStatus) bool) *configv1.ProxyStatus {
	r.t.Helper()
	var p *configv1.ProxyStatus
	testkit.Eventually(r.t, patience, func() error {
		if p = r.status(pod); p == nil || !is(p) {
			return fmt.Errorf("not %s: %v", what, p)
		}
		return nil
	})
	return p
}

// rejected waits until the status of a proxy has a rejection of the type, and returns it.
func (r *fixture) rejected(pod, url string) *configv1.Rejection {
	r.t.Helper()
	p := r.until(pod, "rejected", func(p *configv1.ProxyStatus) bool { return typeStatus(p, url).GetRejection() != nil })
	return typeStatus(p, url).GetRejection()
}

// answered waits until every response to a proxy was acknowledged or rejected.
func (r *fixture) answered(pod string) *configv1.ProxyStatus {
	r.t.Helper()
	return r.until(pod, "answered", func(p *configv1.ProxyStatus) bool {
		return !slices.ContainsFunc(p.GetTypes(), (*configv1.ProxyTypeStatus).GetAwaiting)
	})
}
