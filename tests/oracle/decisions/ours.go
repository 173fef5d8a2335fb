package decisions

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/controlplane"
	"fairlead.dev/tests/internal/policygen"
	"fairlead.dev/tests/internal/process"
)

// extensionType is that of ECDS.
const extensionType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// fairlead is the control plane of this project: its processes, which read files.
type fairlead struct{ conn *grpc.ClientConn }

// startFairlead runs ca, config-watcher and xds-server with a mesh, and waits until they are ready. The log of
// config-watcher says which objects it refuses.
func startFairlead(t *testing.T, bin binaries.Set, m Mesh) *fairlead {
	t.Helper()
	dir := t.TempDir()
	objects, mesh := filepath.Join(dir, "objects"), filepath.Join(dir, "mesh.yaml")
	testkit.NoError(t, os.Mkdir(objects, 0o700))
	files := m.Services()
	for _, s := range m.Sets {
		text, err := s.YAML()
		testkit.NoError(t, err)
		files[s.Namespace+"-policies"] = text
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		testkit.WriteFile(t, filepath.Join(objects, name+".yaml"), []byte(files[name]))
	}
	testkit.WriteFile(t, mesh, []byte(m.Config()))
	ports := func() controlplane.Ports {
		return controlplane.Ports{GRPC: testkit.FreeAddress(t).String(), Ops: testkit.FreeAddress(t).String()}
	}
	p, err := controlplane.New(controlplane.Config{
		Dir: dir, Binaries: bin, CAPorts: ports(), Domain: m.TrustDomain, Args: []string{"--log-level", "warn"},
		Start: func(p process.Program) (*process.Process, error) { return process.Start(p, nil) },
	})
	testkit.NoError(t, err)
	t.Cleanup(func() {
		testkit.NoError(t, p.Stop(testkit.Patience))
		if t.Failed() {
			t.Log(process.Tails(dir + "/logs/*.log"))
		}
	})
	testkit.NoError(t, p.StartCA(t.Context()))
	watcher, err := p.ConfigWatcher(ports(), "--config-dir", objects, "--mesh-config-file", mesh)
	testkit.NoError(t, err)
	at := testkit.FreeAddress(t).String()
	server, err := p.XDSServer(0, ports(), watcher.GRPC, "--plaintext-address", at, "--max-address-streams", "20000")
	testkit.NoError(t, err)
	for _, s := range []*controlplane.Service{watcher, server} {
		testkit.NoError(t, s.Start())
	}
	for _, s := range []*controlplane.Service{watcher, server} {
		testkit.NoError(t, s.WaitReady(t.Context()))
	}
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testkit.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &fairlead{conn}
}

// extensions are what an Envoy with filter chains as filters, which take policies beside listeners, lists.
var extensions = []string{
	"envoy.filters.http.ext_authz", "envoy.filters.http.filter_chain", "envoy.filters.http.jwt_authn", "envoy.filters.http.rbac",
}

// beside asks for the filters of a set's workload as an Envoy gets them that takes them beside its listeners.
func (f *fairlead) beside(ctx context.Context, s policygen.Set) (Filters, error) {
	n := node(s)
	for _, name := range extensions {
		n.Extensions = append(n.Extensions, &core.Extension{Name: name})
	}
	return f.filters(ctx, s, n, true)
}

// within asks for them as an older Envoy gets them, within its listeners.
func (f *fairlead) within(ctx context.Context, s policygen.Set) (Filters, error) {
	return f.filters(ctx, s, node(s), false)
}

func (f *fairlead) filters(ctx context.Context, s policygen.Set, n *core.Node, beside bool) (Filters, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	stream, err := adstest.OpenSotw(ctx, f.conn, n)
	if err != nil {
		return Filters{}, err
	}
	resources, err := fetch(stream, listenerType)
	if err != nil {
		return Filters{}, fmt.Errorf("xds-server: %w", err)
	}
	http, tcp, err := chains(s, resources)
	if err != nil {
		return Filters{}, err
	}
	manager, err := managerOf(http)
	if err != nil {
		return Filters{}, err
	}
	out := Filters{Network: enforcing(tcp), Manager: manager}
	var names []string
	for _, h := range manager.GetHttpFilters() {
		if h.GetConfigDiscovery() != nil {
			names = append(names, h.GetName())
		}
	}
	if beside != (len(names) > 0) {
		return Filters{}, fmt.Errorf("%s: the listeners name the extension configs %q", s.Name, names)
	}
	configs := map[string]*anypb.Any{}
	if len(names) > 0 {
		resources, err := fetch(stream, extensionType, names...)
		if err != nil {
			return Filters{}, fmt.Errorf("xds-server: %w", err)
		}
		for _, r := range resources {
			var e core.TypedExtensionConfig
			if err := r.UnmarshalTo(&e); err != nil {
				return Filters{}, err
			}
			configs[e.GetName()] = e.GetTypedConfig()
		}
	}
	for _, h := range manager.GetHttpFilters() {
		switch {
		case h.GetConfigDiscovery() != nil:
			config := configs[h.GetName()]
			if config == nil {
				return Filters{}, fmt.Errorf("%s: xds-server has no extension config %q", s.Name, h.GetName())
			}
			h = proto.Clone(h).(*hcm.HttpFilter)
			h.ConfigType = &hcm.HttpFilter_TypedConfig{TypedConfig: config}
			out.HTTP = append(out.HTTP, h)
		case security[h.GetTypedConfig().GetTypeUrl()]:
			out.HTTP = append(out.HTTP, h)
		}
	}
	return out, nil
}

// fetch asks for resources, acknowledges them and returns them.
func fetch(stream *adstest.Sotw, url string, names ...string) ([]*anypb.Any, error) {
	if err := stream.Send(&discovery.DiscoveryRequest{TypeUrl: url, ResourceNames: names}); err != nil {
		return nil, stream.Drain()
	}
	response, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if response.GetTypeUrl() != url {
		return nil, fmt.Errorf("received %s, want %s", response.GetTypeUrl(), url)
	}
	if err := stream.Send(&discovery.DiscoveryRequest{
		TypeUrl: url, ResourceNames: names, VersionInfo: response.GetVersionInfo(), ResponseNonce: response.GetNonce(),
	}); err != nil {
		return nil, stream.Drain()
	}
	return response.GetResources(), nil
}
