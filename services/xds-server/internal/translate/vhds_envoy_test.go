package translate_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/envoytest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// hostServer is a minimal control plane for VHDS. By delta ADS it sends one proxy what it subscribes to, virtual hosts
// after the route configurations that they belong to, and "not found" in the form that Envoy expects.
type hostServer struct {
	*meshSource
	t *testing.T
	// sent counts the virtual hosts that were sent with content.
	sent int
}

func newHostServer(t *testing.T, w fixture) *hostServer {
	return &hostServer{meshSource: newMeshSource(w), t: t}
}

func (s *hostServer) sentHosts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// holding is what a stream has requested and received of a type, by name; the version is "" for a resource that does
// not exist.
type holding struct {
	asked    map[string]bool
	versions map[string]string
}

func (s *hostServer) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	requests := requestsOf(stream)
	held := map[string]*holding{}
	for {
		w, changed := s.current()
		for _, url := range []string{resourcev3.ClusterType, resourcev3.EndpointType, resourcev3.RouteType, resourcev3.VirtualHostType} {
			if err := s.push(stream, w, url, held); err != nil {
				s.t.Error(err)
				return err
			}
		}
		select {
		case <-changed:
		case request, ok := <-requests:
			if !ok {
				return nil
			}
			if request.GetErrorDetail() != nil {
				s.t.Errorf("the proxy refuses %s: %s", request.GetTypeUrl(), request.GetErrorDetail().GetMessage())
			}
			h := held[request.GetTypeUrl()]
			if h == nil {
				h = &holding{asked: map[string]bool{}, versions: map[string]string{}}
				held[request.GetTypeUrl()] = h
			}
			for _, name := range request.GetResourceNamesSubscribe() {
				h.asked[name] = true
			}
			for _, name := range request.GetResourceNamesUnsubscribe() {
				delete(h.asked, name)
				delete(h.versions, name)
			}
		}
	}
}

func (s *hostServer) push(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer, w fixture, url string,
	held map[string]*holding) error {
	h := held[url]
	if h == nil {
		return nil
	}
	wanted := map[string]bool{}
	for name := range h.asked {
		wanted[name] = name != "*"
	}
	out := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: url, Nonce: "n"}
	if url == resourcev3.VirtualHostType {
		listed, err := plan.List(s.kinds[url], w.key, w.state)
		if err != nil {
			return err
		}
		for table := range held[resourcev3.RouteType].asked {
			for _, name := range listed {
				wanted[name] = wanted[name] || strings.HasPrefix(name, table+"/")
			}
			// The answer ends the wait of a route configuration without virtual hosts.
			if _, ok := h.versions[table+"/none"]; !ok {
				h.versions[table+"/none"] = ""
				out.RemovedResources = append(out.RemovedResources, table+"/none")
			}
		}
	}
	for _, name := range sorted(wanted) {
		if !wanted[name] {
			continue
		}
		m, err := s.kinds[url].Build(w.reader(), name)
		if err != nil {
			return err
		}
		version, before := "", h.versions[name]
		resource := &discoveryv3.Resource{Name: name, Aliases: []string{name}}
		if m != nil {
			resource = &discoveryv3.Resource{Name: name, Resource: typedconfig.Any(m)}
			version = fmt.Sprintf("%x", sha256.Sum256(resource.GetResource().GetValue()))
			resource.Version = version
		}
		if _, ok := h.versions[name]; ok && version == before {
			continue
		}
		h.versions[name] = version
		if m == nil && url != resourcev3.VirtualHostType {
			out.RemovedResources = append(out.RemovedResources, name)
			continue
		}
		out.Resources = append(out.Resources, resource)
		if c, ok := m.(*clusterv3.Cluster); ok && held[resourcev3.EndpointType] != nil {
			delete(held[resourcev3.EndpointType].versions, c.GetEdsClusterConfig().GetServiceName())
		}
		if m != nil && url == resourcev3.VirtualHostType {
			s.mu.Lock()
			s.sent++
			s.mu.Unlock()
		}
	}
	for name := range h.versions {
		if !wanted[name] && !strings.HasSuffix(name, "/none") {
			delete(h.versions, name)
			out.RemovedResources = append(out.RemovedResources, name)
		}
	}
	if len(out.GetResources())+len(out.GetRemovedResources()) == 0 {
		return nil
	}
	return stream.Send(out)
}

// outboundProxy is a running Envoy with one outbound listener, for route configuration 80.
type outboundProxy struct{ client *http.Client }

func (s *hostServer) start(t *testing.T, statics ...proto.Message) *outboundProxy {
	t.Helper()
	xds := envoytest.Socket(t)
	listener, err := net.Listen("unix", xds)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	manager, err := hcm.Build(hcm.Options{
		Role: hcm.SidecarOutbound, StatPrefix: "test", RouteName: "80", OnDemand: s.fixture.key.OnDemand, Mesh: &meshv1alpha1.MeshConfig{},
	})
	if err != nil {
		t.Fatal(err)
	}
	downstream := envoytest.Socket(t)
	config := envoytest.Bootstrap(t, &corev3.Node{Id: "hosts"}, corev3.ApiConfigSource_DELTA_GRPC, "", xds)
	config.DynamicResources.CdsConfig, config.DynamicResources.LdsConfig = nil, nil
	config.StaticResources.Listeners = []*listenerv3.Listener{{
		Name: "outbound", Address: envoytest.Pipe(downstream), FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{manager}}},
	}}
	for _, m := range statics {
		config.StaticResources.Clusters = append(config.StaticResources.Clusters, m.(*clusterv3.Cluster))
	}
	envoytest.Start(t, config, nil)
	p := &outboundProxy{client: &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", downstream)
		},
	}}}
	testkit.Eventually(t, testkit.Patience, func() error {
		conn, err := net.Dial("unix", downstream)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return p
}

// ask sends a request to a host and returns the status, and the body if the status is 200.
func (p *outboundProxy) ask(host string, body []byte) (string, error) {
	request, err := http.NewRequest(http.MethodPost, "http://proxy/", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Host = host
	response, err := p.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		return fmt.Sprint(response.StatusCode), err
	}
	return string(answer), err
}

func (p *outboundProxy) want(t *testing.T, host, want string) {
	t.Helper()
	if got, err := p.ask(host, []byte("hello")); got != want || err != nil {
		t.Errorf("%s answers %q (%v), want %q", host, got, err, want)
	}
}

func (p *outboundProxy) wantSoon(t *testing.T, host, want string) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		got, err := p.ask(host, []byte("hello"))
		if err == nil && got != want {
			err = fmt.Errorf("%s answers %q, want %q", host, got, want)
		}
		return err
	})
}

// hostMesh has an application that echoes requests; the second %s are further objects.
const hostMesh = `
class: {namespace: default}
mesh: {enableAutoMtls: false, outboundTrafficPolicy: {mode: REGISTRY_ONLY}}
services:
- {hostname: echo.default.svc.cluster.local, addresses: [10.96.0.1], ports: [{name: http, number: 80, protocol: PROTOCOL_HTTP}]}
- {hostname: "*.wild.example.com", namespace: default, resolution: RESOLUTION_STATIC, ports: [{name: http, number: 80, protocol: PROTOCOL_HTTP}]}
%[2]s
endpoints:
- {host: echo.default.svc.cluster.local, port: 80, endpoints: [{address: 127.0.0.1, port: %[1]d, plain: true}]}
- {host: "*.wild.example.com", namespace: default, port: 80, endpoints: [{address: 127.0.0.1, port: %[1]d, plain: true}]}
- {host: late.default.svc.cluster.local, port: 80, endpoints: [{address: 127.0.0.1, port: %[1]d, plain: true}]}
objects:
- {kind: VirtualService, metadata: {name: alias, namespace: default}, spec: {hosts: [alias.example.org], http: [{route: [
    {destination: {host: echo.default.svc.cluster.local}, weight: 50}, {destination: {host: late.default.svc.cluster.local}, weight: 0}]}]}}
%[3]s
`

const (
	lateService = `- {hostname: late.default.svc.cluster.local, ports: [{name: http, number: 80, protocol: PROTOCOL_HTTP}]}`
	teapot      = `- {kind: VirtualService, metadata: {name: echo, namespace: default}, spec: {hosts: [echo.default.svc.cluster.local], http: [{directResponse: {status: 418}}]}}`
)

// A real Envoy receives the virtual hosts of a route configuration one by one.
func TestVHDSOnEnvoy(t *testing.T) {
	port := echoHTTP(t)
	mesh := func(services, objects string, onDemand bool) fixture {
		w := parse(t, "hosts", fmt.Appendf(nil, hostMesh, port, services, objects))
		w.key.VirtualHosts, w.key.OnDemand = true, onDemand
		return w
	}
	t.Run("listed", func(t *testing.T) {
		w := mesh("", "", false)
		s := newHostServer(t, w)
		p := s.start(t, buildAll(t, mesh(lateService, "", false)).clusters...)
		for _, host := range []string{"echo", "ECHO.default:1", "echo.default.svc.cluster.local.", "10.96.0.1:80", "a.b.wild.example.com",
			"alias.example.org"} {
			p.want(t, host, "hello")
		}
		p.want(t, "late.default", "502")
		before := s.sentHosts()
		s.set(mesh(lateService, "", false))
		p.wantSoon(t, "late.default", "hello")
		s.set(mesh(lateService, teapot, false))
		p.wantSoon(t, "echo", "418")
		p.want(t, "late.default", "hello")
		if n := s.sentHosts() - before; n != 2 {
			t.Errorf("%d virtual hosts were sent for two changes", n)
		}
		s.set(mesh("", "", false))
		p.wantSoon(t, "late.default", "502")
		p.want(t, "echo", "hello")
	})
	t.Run("on demand", func(t *testing.T) {
		s := newHostServer(t, mesh("", "", true))
		p := s.start(t)
		p.want(t, "echo", "hello")
		for _, host := range []string{"ECHO.default:1", "echo.default.svc.cluster.local.", "10.96.0.1:80", "a.b.wild.example.com",
			"alias.example.org"} {
			p.want(t, host, "hello")
		}
		p.want(t, "*.example.com", "404")
		p.want(t, "www.example.com", "502")

		body := make([]byte, 2<<20)
		_, _ = rand.Read(body)
		if got, err := p.ask("echo.default.svc", body); err != nil || got != string(body) {
			t.Errorf("a body of %d bytes came back with %d (%v)", len(body), len(got), err)
		}

		var group sync.WaitGroup
		for i := range 30 {
			group.Go(func() { p.want(t, fmt.Sprintf("echo:%d", 1000+i%3), "hello") })
		}
		group.Wait()

		for _, step := range []struct{ services, want string }{{"", "502"}, {lateService, "hello"}, {"", "502"}, {lateService, "hello"}} {
			s.set(mesh(step.services, "", true))
			p.wantSoon(t, "late", step.want)
		}
		s.set(mesh(lateService, teapot, true))
		p.wantSoon(t, "echo", "418")
		p.want(t, "late", "hello")
	})
}

// echoHTTP answers requests with their own body, and returns its port.
func echoHTTP(t *testing.T) int {
	t.Helper()
	l := testkit.LoopbackListener(t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return l.Addr().(*net.TCPAddr).Port
}
