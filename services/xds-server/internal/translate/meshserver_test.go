package translate_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate"
	"fairlead.dev/services/xds-server/internal/translate/pack"
)

// meshServer serves what the translators make of a mesh that tests replace, by delta ADS.
type meshServer struct {
	mu      sync.Mutex
	world   world
	changed chan struct{}
	kinds   map[string]plan.Translator
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
}

func newMeshServer(w world) *meshServer {
	s := &meshServer{world: w, changed: make(chan struct{}), kinds: map[string]plan.Translator{}}
	for _, kind := range translate.All() {
		s.kinds[kind.TypeURL()] = kind
	}
	return s
}

func (s *meshServer) set(w world) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.world = w
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *meshServer) current() (world, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.world, s.changed
}

// subscription of a stream to one type; sent are the versions the proxy has, "" if it was told that there is none.
type subscription struct {
	wildcard bool
	names    map[string]bool
	sent     map[string]string
}

func (s *meshServer) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
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

// push sends what the proxy does not have of one type.
func (s *meshServer) push(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer, w world, url string, subs map[string]*subscription) error {
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
		packed := pack.Any(m)
		if version := fmt.Sprintf("%x", sha256.Sum256(packed.GetValue())); held != version {
			sub.sent[name] = version
			out.Resources = append(out.Resources, &discoveryv3.Resource{Name: name, Version: version, Resource: packed})
			if c, ok := m.(*clusterv3.Cluster); ok && subs[resourcev3.EndpointType] != nil {
				// A cluster waits for its endpoints without asking for what the proxy has asked for before.
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
	// This ends the wait of route configurations for their first virtual hosts.
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

// startOnDemand runs Envoy in the namespace, with a control plane at the socket, and waits until it serves.
func startOnDemand(t *testing.T, n *netns, xds string) *proxy {
	t.Helper()
	envoy := envoyBinary(t)
	dir := t.TempDir()
	admin := filepath.Join(dir, "admin.sock")
	raw, err := protojson.Marshal(&bootstrapv3.Bootstrap{
		Node:  &corev3.Node{Id: "ondemand", Cluster: "test"},
		Admin: &bootstrapv3.Admin{Address: pipe(admin)},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			AdsConfig: &corev3.ApiConfigSource{
				ApiType: corev3.ApiConfigSource_DELTA_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
				GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "xds-grpc"},
				}}},
			},
			CdsConfig: ads(), LdsConfig: ads(),
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{agentCluster("xds-grpc", xds)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "bootstrap.json")
	testkit.WriteFile(t, path, raw)
	log, err := os.Create(filepath.Join(dir, "envoy.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(envoy, "-c", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "info")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 0, Gid: proxyGID}}
	n.do(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{admin: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", admin)
		},
	}}}
	t.Cleanup(func() {
		if t.Failed() {
			for _, path := range []string{"/clusters", "/config_dump?resource=dynamic_listeners", "/stats?filter=ondemand|odcds|tcp"} {
				body, _ := p.get(path)
				t.Logf("%s:\n%s", path, body)
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			content, _ := os.ReadFile(log.Name())
			t.Logf("log of Envoy:\n%s", content)
		}
	})
	testkit.Eventually(t, 20*time.Second, func() error {
		body, err := p.get("/ready")
		if err == nil && !strings.HasPrefix(body, "LIVE") {
			err = fmt.Errorf("ready says %q", body)
		}
		return err
	})
	return p
}

// clusterNames lists what the proxy holds.
func clusterNames(t *testing.T, p *proxy) []string {
	t.Helper()
	body, err := p.get("/clusters")
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for _, row := range strings.Split(body, "\n") {
		if name, _, ok := strings.Cut(row, "::"); ok {
			set[name] = true
		}
	}
	return sorted(set)
}
