package mcp

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/object"
)

// edsStream is one stream of EDS of the client.
type edsStream struct {
	t        testing.TB
	ads      discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	requests chan *discovery.DeltaDiscoveryRequest
	end      chan error
}

// DeltaAggregatedResources hands the stream to the test.
func (p *peer) DeltaAggregatedResources(ads discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	s := &edsStream{t: p.t, ads: ads, requests: make(chan *discovery.DeltaDiscoveryRequest, 4096), end: make(chan error, 1)}
	go func() {
		for {
			m, err := ads.Recv()
			if err != nil {
				close(s.requests)
				return
			}
			s.requests <- m
		}
	}()
	p.eds <- s
	select {
	case err := <-s.end:
		return err
	case <-ads.Context().Done():
		return nil
	}
}

// asks waits for a request, and compares the clusters that it names: "+name" and "-name".
func (s *edsStream) asks(want string) {
	s.t.Helper()
	m, ok := <-s.requests
	if !ok {
		s.t.Fatal("the client has ended the stream")
	}
	var got []string
	for _, n := range m.ResourceNamesSubscribe {
		got = append(got, "+"+n)
	}
	for _, n := range m.ResourceNamesUnsubscribe {
		got = append(got, "-"+n)
	}
	if text := strings.Join(got, " "); text != want || m.TypeUrl != endpointType {
		s.t.Fatalf("asks for %s %q, want %q", m.TypeUrl, text, want)
	}
}

// assignment has endpoints "address:port".
func assignment(name string, endpoints ...string) *discovery.Resource {
	cla := &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		Locality: &core.Locality{Region: "r", Zone: "z"}}}}
	for _, text := range endpoints {
		var number uint32
		address, port, _ := strings.Cut(text, ":")
		if _, err := fmt.Sscan(port, &number); err != nil {
			panic(err)
		}
		cla.Endpoints[0].LbEndpoints = append(cla.Endpoints[0].LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: &core.Address{
				Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{Address: address,
					PortSpecifier: &core.SocketAddress_PortValue{PortValue: number}}}}}}})
	}
	raw, err := anypb.New(cla)
	if err != nil {
		panic(err)
	}
	return &discovery.Resource{Name: name, Resource: raw}
}

// tell sends endpoints, and returns why the client refuses them.
func (s *edsStream) tell(resources ...*discovery.Resource) string {
	s.t.Helper()
	testkit.NoError(s.t, s.ads.Send(&discovery.DeltaDiscoveryResponse{TypeUrl: endpointType, Nonce: "n", Resources: resources}))
	m, ok := <-s.requests
	if !ok || m.ResponseNonce != "n" {
		s.t.Fatalf("answered with %v", m)
	}
	return m.GetErrorDetail().GetMessage()
}

// kubernetesService is a Service as an istiod tells it.
func kubernetesService(name string, ports ...uint32) *anypb.Any {
	return serviceEntry("a/synthetic-"+name, func(_ *mcpv1alpha1.Resource, s *networking.ServiceEntry) {
		s.Hosts, s.Resolution, s.Ports = []string{name + ".a"}, networking.ServiceEntry_STATIC, nil
		s.SubjectAltNames = []string{"spiffe://cluster.local/ns/a/sa/thief"}
		s.WorkloadSelector = &networking.WorkloadSelector{Labels: map[string]string{"app": name}}
		for _, p := range ports {
			s.Ports = append(s.Ports, &networking.ServicePort{Number: p, Name: fmt.Sprintf("p%d", p), Protocol: "UnsupportedProtocol"})
		}
	})
}

// endpoints waits for the endpoints of a ServiceEntry; "none" if it is not there.
func (c *client) endpoints(name, want string) {
	c.t.Helper()
	testkit.Eventually(c.t, testkit.Patience, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		got := "none"
		if o := c.objects[object.Key{Group: "networking.istio.io", Kind: "ServiceEntry", Namespace: "a", Name: "synthetic-" + name}]; o != nil {
			got = ""
			se := o.Body.(*networking.ServiceEntry)
			for _, e := range se.Endpoints {
				got += fmt.Sprintf("%s %v %s;", e.Address, e.Ports, e.Locality)
			}
			if len(se.SubjectAltNames) > 0 || o.Source != c.Name() {
				return fmt.Errorf("names %v, source %s", se.SubjectAltNames, o.Source)
			}
		}
		return errorIf(got != want, fmt.Sprintf("got %q, want %q", got, want))
	})
}

func withRegistry(cfg *Config) { cfg.Registry = true }

// TestServicesWithEndpoints: a service counts once the endpoints of all its ports are known, and goes with its list; an
// address that lacks a port others have does not count. A stream that ends removes nothing.
func TestServicesWithEndpoints(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "", withRegistry)
	s := p.next()
	s.tell(entriesBeta, kubernetesService("web", 80, 90))
	e := <-p.eds
	e.asks("+outbound|80||web.a +outbound|90||web.a")
	s.tell(entriesV1, kubernetesService("web", 80, 90)) // another version of the same
	s.rest(entriesV1, entriesBeta)
	if problem := e.tell(assignment("outbound|80||web.a", "10.0.0.1:8080", "10.0.0.2:8080")); problem != "" {
		t.Error(problem)
	}
	if c.HasSynced() {
		t.Error("synced before the endpoints of each port are known")
	}
	c.endpoints("web", "none")
	e.tell(assignment("outbound|90||web.a", "10.0.0.1:9090"), assignment("outbound|1||unknown.a", "10.0.0.1:1"))
	c.endpoints("web", "10.0.0.1 map[p80:8080 p90:9090] r/z;")
	testkit.Eventually(t, testkit.Patience, func() error { return synced(c) })
	e.tell(assignment("outbound|90||web.a"))
	c.endpoints("web", "10.0.0.1 map[p80:8080] r/z;10.0.0.2 map[p80:8080] r/z;")
	// What cannot be used is refused, and everything stays.
	bad := assignment("outbound|80||web.a")
	bad.Resource.Value = []byte("\xff")
	if problem := e.tell(bad); !strings.Contains(problem, "cannot be decoded") {
		t.Errorf("refused because of %q", problem)
	}
	if found := c.Status().Problems; len(found) != 1 || found[0].Remedy == "" {
		t.Errorf("problems %v", found)
	}
	c.endpoints("web", "10.0.0.1 map[p80:8080] r/z;10.0.0.2 map[p80:8080] r/z;")
	// The stream ends and comes again.
	events := c.count()
	e.end <- errors.New("the test ends the stream")
	testkit.Eventually(t, testkit.Patience, func() error { return errorIf(c.Status().Degraded == nil, "not degraded") })
	testkit.Eventually(t, testkit.Patience, func() error {
		c.clock.Advance(testkit.Patience / 100)
		return errorIf(len(p.eds) == 0, "no stream")
	})
	e = <-p.eds
	e.asks("+outbound|80||web.a +outbound|90||web.a")
	e.tell(assignment("outbound|80||web.a", "10.0.0.1:8080", "10.0.0.2:8080"))
	if n := c.count() - events; n != 0 || c.Status().Degraded != nil {
		t.Errorf("%d events, state %v", n, c.Status().Degraded)
	}
	// Other ports, and the end of the service.
	for _, url := range []string{entriesBeta, entriesV1} {
		s.tell(url, kubernetesService("web", 80, 91))
	}
	e.asks("+outbound|91||web.a -outbound|90||web.a")
	e.tell(assignment("outbound|91||web.a", "10.0.0.2:9191"))
	c.endpoints("web", "10.0.0.2 map[p80:8080 p91:9191] r/z;")
	s.tell(entriesBeta)
	s.tell(entriesV1)
	c.endpoints("web", "none")
	e.asks("-outbound|80||web.a -outbound|91||web.a")
}

// TestAServerWithoutEndpoints: it has no EDS, so its services stay out, the other objects count, and the state says so.
func TestAServerWithoutEndpoints(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "", withRegistry)
	s := p.next()
	s.tell(entriesV1, kubernetesService("web", 80), serviceEntry("a/one"))
	s.rest(entriesV1)
	c.has("a/one:80")
	go func() {
		for e := range p.eds {
			e.end <- status.Error(codes.Unimplemented, "no such method")
		}
	}()
	testkit.Eventually(t, testkit.Patience, func() error {
		c.clock.Advance(silentAfter / 10)
		return synced(c)
	})
	if err := c.Status().Degraded; err == nil || !strings.Contains(err.Error(), "subscribedResources") {
		t.Errorf("state %v", err)
	}
	c.has("a/one:80")
}

// TestEndpointsAreBounded: more than the bound are refused as a whole.
func TestEndpointsAreBounded(t *testing.T) {
	r := newRegistry("mcp/a")
	key := object.Key{Namespace: "a", Name: "synthetic-web"}
	r.replace(key, nil, templateOf(kubernetesService("web", 80)))
	many := make([]endpoint, maxEndpoints+1)
	if err := r.update(map[string][]endpoint{"outbound|80||web.a": many}); err == nil || r.endpoints != 0 {
		t.Errorf("%v, %d endpoints", err, r.endpoints)
	}
	testkit.NoError(t, r.update(map[string][]endpoint{"outbound|80||web.a": many[1:]}))
	if r.prune(); r.endpoints != maxEndpoints {
		t.Errorf("%d endpoints", r.endpoints)
	}
	r.round++
	r.prune()
	if r.endpoints != 0 || len(r.clusters)+len(r.services) != 0 {
		t.Errorf("%d endpoints, %d clusters, %d services are left", r.endpoints, len(r.clusters), len(r.services))
	}
	for i := range maxServices {
		r.services[object.Key{Name: fmt.Sprint(i)}] = &service{}
	}
	if e := r.compose(nil, key, &entry{template: templateOf(kubernetesService("web", 80))}); e == nil ||
		len(e.problems) != 1 || e.problems[0].Remedy == "" {
		t.Errorf("one service too many: %+v", e)
	}
}
