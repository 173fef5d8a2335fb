package translate_test

import (
	"crypto/sha256"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"

	"fairlead.dev/services/xds-server/internal/envoytest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// meshSource is the mesh that a test's server serves, with the translators by type.
type meshSource struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	kinds map[string]plan.Translator

	mu      sync.Mutex
	fixture fixture
	changed chan struct{}
}

func newMeshSource(w fixture) *meshSource {
	s := &meshSource{fixture: w, changed: make(chan struct{}), kinds: map[string]plan.Translator{}}
	for _, kind := range translate.All() {
		s.kinds[kind.TypeURL()] = kind
	}
	return s
}

func (s *meshSource) set(w fixture) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fixture = w
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *meshSource) current() (fixture, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fixture, s.changed
}

// requestsOf returns a channel that is closed when the stream ends.
func requestsOf(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) <-chan *discoveryv3.DeltaDiscoveryRequest {
	requests := make(chan *discoveryv3.DeltaDiscoveryRequest)
	go func() {
		defer close(requests)
		for {
			request, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- request:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	return requests
}

// meshServer serves the resources of a mesh by delta ADS; tests replace the mesh.
type meshServer struct{ *meshSource }

func newMeshServer(w fixture) *meshServer { return &meshServer{newMeshSource(w)} }

// subscription of a stream to one type; sent are the versions that the proxy has, "" if it was told that a resource
// does not exist.
type subscription struct {
	wildcard bool
	names    map[string]bool
	sent     map[string]string
}

func (s *meshServer) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	requests := requestsOf(stream)
	subs := map[string]*subscription{}
	for {
		w, changed := s.current()
		for _, url := range []string{
			resourcev3.ClusterType, resourcev3.EndpointType, resourcev3.ListenerType, resourcev3.RouteType, resourcev3.VirtualHostType,
		} {
			if err := s.push(stream, w, url, subs); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case request, ok := <-requests:
			if !ok {
				return nil
			}
			sub := subs[request.GetTypeUrl()]
			if sub == nil {
				sub = &subscription{
					wildcard: len(request.GetResourceNamesSubscribe()) == 0 && request.GetTypeUrl() != resourcev3.VirtualHostType,
					names:    map[string]bool{}, sent: map[string]string{},
				}
				subs[request.GetTypeUrl()] = sub
			}
			for _, name := range request.GetResourceNamesSubscribe() {
				sub.wildcard = sub.wildcard || name == "*"
				if name != "*" {
					sub.names[name] = true
				}
			}
			for _, name := range request.GetResourceNamesUnsubscribe() {
				delete(sub.names, name)
				delete(sub.sent, name)
			}
			if request.GetErrorDetail() != nil {
				return fmt.Errorf("the proxy refuses %s: %s", request.GetTypeUrl(), request.GetErrorDetail().GetMessage())
			}
		}
	}
}

// push sends the resources of one type that the proxy does not have.
func (s *meshServer) push(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer, w fixture, url string,
	subs map[string]*subscription) error {
	sub, kind := subs[url], s.kinds[url]
	if sub == nil || kind == nil {
		return nil
	}
	wanted := map[string]bool{}
	for name := range sub.names {
		wanted[name] = true
	}
	if sub.wildcard {
		listed, err := plan.List(kind, w.key, w.state)
		if err != nil {
			return err
		}
		for _, name := range listed {
			wanted[name] = true
		}
	}
	out := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: url, Nonce: "n"}
	reader := w.reader()
	var waiting []string
	for _, name := range sorted(wanted) {
		m, err := kind.Build(reader, name)
		if err != nil {
			return err
		}
		held, known := sub.sent[name]
		if m == nil {
			if !known || held != "" {
				out.RemovedResources = append(out.RemovedResources, name)
			}
			sub.sent[name] = ""
			continue
		}
		packed := typedconfig.Any(m)
		if version := fmt.Sprintf("%x", sha256.Sum256(packed.GetValue())); held != version {
			sub.sent[name] = version
			out.Resources = append(out.Resources, &discoveryv3.Resource{Name: name, Version: version, Resource: packed})
			if c, ok := m.(*clusterv3.Cluster); ok && subs[resourcev3.EndpointType] != nil {
				// A cluster waits for its endpoints without requesting them again.
				delete(subs[resourcev3.EndpointType].sent, c.GetEdsClusterConfig().GetServiceName())
			}
			if rc, ok := m.(*routev3.RouteConfiguration); ok && rc.GetVhds() != nil {
				waiting = append(waiting, rc.GetName()+"/none")
			}
		}
	}
	for name := range sub.sent {
		if !wanted[name] {
			delete(sub.sent, name)
			out.RemovedResources = append(out.RemovedResources, name)
		}
	}
	if len(out.GetResources())+len(out.GetRemovedResources()) == 0 {
		return nil
	}
	if err := stream.Send(out); err != nil || len(waiting) == 0 {
		return err
	}
	// The answer ends the wait of route configurations for their first virtual hosts.
	return stream.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: resourcev3.VirtualHostType, Nonce: "n", RemovedResources: waiting})
}

// listen serves the mesh at a socket until stop is called or the test ends.
func (s *meshServer) listen(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return server.Stop
}

// startOnDemand runs Envoy in the network namespace, with a control plane at the socket, and waits until it is ready.
func startOnDemand(t *testing.T, n *netns, xds string) *envoytest.Process {
	t.Helper()
	config := envoytest.Bootstrap(t, &corev3.Node{Id: "ondemand"}, corev3.ApiConfigSource_DELTA_GRPC, "", xds)
	p := envoytest.Start(t, config, func(cmd *exec.Cmd) (err error) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 0, Gid: proxyGID}}
		n.do(func() { err = cmd.Start() })
		return err
	})
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, path := range []string{"/clusters", "/config_dump?resource=dynamic_listeners", "/stats?filter=ondemand|odcds|tcp"} {
			_, body, _ := p.Get(path)
			t.Logf("%s:\n%s", path, body)
		}
	})
	p.Ready()
	return p
}

// clusterNames lists the proxy's clusters.
func clusterNames(t *testing.T, p *envoytest.Process) []string {
	t.Helper()
	_, body, err := p.Get("/clusters")
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for _, row := range strings.Split(string(body), "\n") {
		if name, _, ok := strings.Cut(row, "::"); ok {
			set[name] = true
		}
	}
	return sorted(set)
}
