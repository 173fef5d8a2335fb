package floor

import (
	"bufio"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/proxy"
	"fairlead.dev/tests/bench/internal/wire"
)

const patience = testkit.Patience

// content is a response of one resource, as if it had been recorded.
func content(t *testing.T, reader *wire.Reader, url, name string, m proto.Message) *wire.Content {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.Marshal(&discovery.DeltaDiscoveryResponse{
		TypeUrl: url, Nonce: "recorded", Resources: []*discovery.Resource{{Name: name, Version: "1", Resource: packed}},
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := reader.Read(raw)
	if err != nil {
		t.Fatal(err)
	}
	return r.Content
}

// running is a floor in this process.
type running struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Reader
}

func serve(t *testing.T) (f *running, address string) {
	t.Helper()
	inRead, in := io.Pipe()
	out, outWrite := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(inRead, outWrite, Files{}) }()
	t.Cleanup(func() {
		in.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	f = &running{t, in, bufio.NewReader(out)}
	return f, f.line()
}

func (f *running) line() string {
	f.t.Helper()
	s, err := f.out.ReadString('\n')
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSpace(s)
}

func (f *running) command(text string) {
	f.t.Helper()
	if _, err := fmt.Fprintln(f.in, text); err != nil {
		f.t.Fatal(err)
	}
	if got := f.line(); got != "ok" {
		f.t.Fatal(got)
	}
}

func (f *running) load(s *Script) {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), "script")
	if err := s.write(path); err != nil {
		f.t.Fatal(err)
	}
	f.command("load " + path)
}

// A cold start is one step after the other: each proxy asks for what the answers name, and is configured when it has
// all of it, the virtual hosts that come by VHDS included.
func TestProxiesStartAndArePushedTo(t *testing.T) {
	reader := wire.NewReader()
	reader.Record(true)
	manager, err := anypb.New(&hcm.HttpConnectionManager{RouteSpecifier: &hcm.HttpConnectionManager_Rds{Rds: &hcm.Rds{RouteConfigName: "80"}}})
	if err != nil {
		t.Fatal(err)
	}
	chain := &listener.FilterChain{Filters: []*listener.Filter{{ConfigType: &listener.Filter_TypedConfig{TypedConfig: manager}}}}
	cds := content(t, reader, wire.Cluster, "c",
		&cluster.Cluster{Name: "c", ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS}})
	eds := content(t, reader, wire.Endpoint, "c", &endpoint.ClusterLoadAssignment{ClusterName: "c"})
	whole := []*wire.Content{
		cds, eds,
		content(t, reader, wire.Listener, "l", &listener.Listener{Name: "l", FilterChains: []*listener.FilterChain{chain}}),
		content(t, reader, wire.Route, "80", &route.RouteConfiguration{Name: "80", Vhds: &route.Vhds{}}),
		content(t, reader, wire.VirtualHost, "80/c", &route.VirtualHost{Name: "80/c"}),
	}
	proxies := mesh.Spec{Services: 10, Sidecars: 10, Classes: 5}.Proxies()
	cold, update := map[string][]*wire.Content{}, map[string][]*wire.Content{}
	want := int64(0)
	for _, p := range proxies {
		cold[p.ID], update[p.ID] = whole, []*wire.Content{cds, eds}
		want += int64(len(cds.Body) + len(eds.Body) + 2*len(wire.Nonce("1")))
	}
	t.Run("cold", func(t *testing.T) {
		f, address := serve(t)
		f.load(newScript(cold, true))
		fleet := connect(t, proxies, address, proxy.Cold)
		if _, err := fleet.Configured(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("virtual hosts missing", func(t *testing.T) {
		partly := map[string][]*wire.Content{}
		for id, contents := range cold {
			partly[id] = contents[:len(contents)-1]
		}
		f, address := serve(t)
		f.load(newScript(partly, true))
		fleet := connect(t, proxies, address, proxy.Cold)
		responses(t, fleet, 4*len(proxies))
		if n := fleet.AreConfigured(); n != 0 {
			t.Errorf("%d are configured without their virtual hosts", n)
		}
	})
	t.Run("update", func(t *testing.T) {
		f, address := serve(t)
		f.load(newScript(update, false))
		fleet := connect(t, proxies, address, proxy.Echo)
		f.command(fmt.Sprint("wait ", len(proxies)))
		f.command("push")
		responses(t, fleet, 2*len(proxies))
		if c := fleet.Count(); c.Bytes != want || len(c.Newest) != len(proxies) {
			t.Errorf("%d bytes to %d proxies, want %d to %d", c.Bytes, len(c.Newest), want, len(proxies))
		}
	})
}

func connect(t *testing.T, proxies []mesh.Proxy, address string, mode proxy.Mode) *proxy.Fleet {
	t.Helper()
	fleet := proxy.NewFleet(proxies)
	t.Cleanup(fleet.Close)
	if err := fleet.Connect(t.Context(), proxy.Target{Address: address}, mode, func() {}); err != nil {
		t.Fatal(err)
	}
	return fleet
}

func responses(t *testing.T, fleet *proxy.Fleet, want int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if n := fleet.Count().Responses; n != want {
			return fmt.Errorf("%d responses, want %d", n, want)
		}
		return nil
	})
}
