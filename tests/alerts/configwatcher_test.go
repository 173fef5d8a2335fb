package alerts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/controlplane"
)

// entry is a ServiceEntry.
func entry(name string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: default}\n"+
		"spec: {hosts: [%s.example.com], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}\n", name,
		name)
}

// files is a directory of objects that a config-watcher follows.
type files struct {
	t   *testing.T
	dir string
}

func (f files) write(name, content string) {
	f.t.Helper()
	if err := fileio.Write(filepath.Join(f.dir, name), []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f files) remove(name string) {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// positive tells that a metric is above 0.
func positive(name string) func(scrape) bool {
	return func(s scrape) bool { return s.sum(name) > 0 }
}

func TestFaultsOfConfigWatcher(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	const m = "fairlead_config_watcher_"
	p := plane(t, "--log-level", "warn")
	f := files{t, filepath.Join(p.Dir, "config")}
	roles, store := filepath.Join(p.Dir, "roles.yaml"), filepath.Join(p.Dir, "store")
	audit := filepath.Join(p.Dir, "audit")
	for _, dir := range []string{f.dir, store, audit} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// Small file systems of their own, which can be filled.
	var limited error
	for _, dir := range []string{store, audit} {
		if limited = errors.Join(limited, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m,mode=0700")); limited != nil {
			break
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	f.write("one.yaml", entry("one"))
	f.write("two.yaml", entry("two"))
	testkit.WriteFile(t, roles, []byte("roles: []\n"))
	watcher, err := p.ConfigWatcher(ports(t), "--config-dir", f.dir, "--store-dir", store, "--roles-file", roles, "--audit-log",
		filepath.Join(audit, "audit.log"), "--resync-period", "1s")
	if err != nil {
		t.Fatal(err)
	}
	server, err := p.XDSServer(0, ports(t), watcher.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.StartCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	start(t, watcher, server)
	l.add("config-watcher", "config-watcher-0", watcher.Ops)
	provoke := func(f fault) {
		f.service = "config-watcher"
		l.provoke(f)
	}

	// First, since others remove files, too.
	provoke(fault{alerts: []string{"FileVanished"}, until: positive(m + "source_staying"), make_: func(*testing.T) func() {
		f.remove("two.yaml")
		return func() { f.write("two.yaml", entry("two")) }
	}})
	l.strangers("config-watcher", watcher.GRPC, func(t *testing.T) *grpc.ClientConn {
		return byToken(t, p, watcher.GRPC, "default", "client")
	}, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := configv1.NewConfigStoreServiceClient(conn).List(ctx, &configv1.ListRequest{})
		return err
	})
	burns := []string{"ConfigWatcherBudgetBurnsFast", "ConfigWatcherBudgetBurnsSlow", "ConfigWatcherBudgetBurnsSteady",
		"ConfigWatcherBudgetBurnsCreeping"}
	provoke(fault{alerts: burns, minutes: 70, gap: time.Millisecond, make_: func(t *testing.T) func() {
		var file atomic.Int32
		halting(t, watcher.Process(), 150*time.Millisecond, func(ctx context.Context) error {
			name := fmt.Sprintf("burn-%d", file.Add(1))
			for i := 0; ctx.Err() == nil; i++ {
				var many strings.Builder
				for n := range 150 {
					many.WriteString(strings.Replace(entry(fmt.Sprintf("%s-%d", name, n)), "number: 80", fmt.Sprint("number: ", 80+i%2), 1) + "---\n")
				}
				if err := fileio.Write(filepath.Join(f.dir, name+".yaml"), []byte(many.String()), 0o644); err != nil {
					return err
				}
				time.Sleep(20 * time.Millisecond) // how often files change, which is the load
			}
			return nil
		}, func() bool {
			s := l.look(t.Context())
			n := s.sum(m + "revision_delay_seconds_count")
			return n-s.sum(m+"revision_delay_seconds_bucket", `le="1"`) > 0.03*n
		})
		return nil
	}})
	provoke(fault{alerts: []string{"ObjectsRefused"}, minutes: 17, until: positive(m + "source_problems"), make_: func(*testing.T) func() {
		f.write("bad.yaml", strings.Replace(entry("bad"), "number: 80", "number: 80000", 1))
		return func() { f.remove("bad.yaml") }
	}})
	broken := map[string]string{
		"PeerAuthentication": "mtls: {mode: STRCT}", "AuthorizationPolicy": "action: DENI",
		"RequestAuthentication": "jwtRules: [{issuer: a.example.com, jwksUri: 'ftp://a.example.com'}]",
	}
	provoke(fault{alerts: []string{"HeldClosed"}, minutes: 7,
		until: func(s scrape) bool { return s.sum(m+"source_held_closed") == float64(len(broken)) },
		make_: func(*testing.T) func() {
			for kind, spec := range broken {
				f.write(kind+".yaml", fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: %s\nmetadata: {name: default, namespace: apps}\n"+
					"spec: {%s}\n", kind, spec))
			}
			return func() {
				for kind := range broken {
					f.remove(kind + ".yaml")
				}
			}
		}})
	provoke(fault{alerts: []string{"RolesFileBroken"}, minutes: 7, until: positive(m + "roles_file_broken"), make_: func(t *testing.T) func() {
		testkit.WriteFile(t, roles, []byte("roles: everybody\n"))
		return func() { testkit.WriteFile(t, roles, []byte("roles: []\n")) }
	}})
	provoke(fault{alerts: []string{"SourcesDisagree"}, minutes: 62, gap: 5 * time.Millisecond, until: positive(m + "source_conflicts"),
		make_: func(*testing.T) func() {
			f.write("again.yaml", entry("one"))
			return func() { f.remove("again.yaml") }
		}})
	provoke(fault{alerts: []string{"SourceDegraded"}, minutes: 7, until: positive(m + "source_degraded"), make_: func(t *testing.T) func() {
		rename(t, f.dir, f.dir+".away")
		return func() { rename(t, f.dir+".away", f.dir) }
	}})
	provoke(fault{alerts: []string{"NoSubscribers"}, minutes: 7, make_: func(*testing.T) func() { server.Kill(); return nil },
		until: func(s scrape) bool { return s.sum(m+"subscribers") == 0 }})
	state := filepath.Join(p.Dir, "state-"+contract.ConfigWatcherAccount)
	provoke(fault{alerts: []string{"LastGoodUnsaved"}, minutes: 17, until: positive(m + "last_good_unsaved"),
		make_: func(t *testing.T) func() {
			rename(t, state, state+".away")
			testkit.WriteFile(t, state, nil)
			f.write("two.yaml", entry("three"))
			return func() {
				if err := os.Remove(state); err != nil {
					t.Fatal(err)
				}
				rename(t, state+".away", state)
			}
		}})
	if limited == nil {
		for alert, full := range map[string]string{"StoreAlarm": store, "AuditUnwritable": audit} {
			metric := map[string]string{store: "store_alarm", audit: "audit_failures_total"}[full]
			provoke(fault{alerts: []string{alert}, until: positive(m + metric), make_: func(t *testing.T) func() {
				fill(t, full)
				conn, refused := administrator(t, p, watcher), 0
				for i := range 32 { // the last page of a file may have room for some
					if err := apply(t.Context(), conn, entry(fmt.Sprintf("full-%d", i))); err != nil {
						refused++
					}
				}
				if refused == 0 {
					t.Error("writes to a full disk are taken")
				}
				return func() {
					if err := os.Remove(filepath.Join(full, "filler")); err != nil {
						t.Error(err)
					}
				}
			}})
		}
	} else {
		t.Logf("StoreAlarm and AuditUnwritable: a full disk needs root: %v", limited)
	}
	provoke(fault{alerts: []string{"ConfigWatcherDown"}, minutes: 12, make_: func(*testing.T) func() { watcher.Kill(); return nil }})
	provoke(fault{alerts: []string{"ServedFromLastGood"}, minutes: 7, until: positive(m + "source_last_good"),
		make_: func(t *testing.T) func() {
			rename(t, f.dir, f.dir+".away")
			if err := watcher.Start(); err != nil {
				t.Fatal(err)
			}
			return nil
		}})
}

// TestFaultsOfKeys takes the server away that has the keys of tokens.
func TestFaultsOfKeys(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	const m = "fairlead_config_watcher_jwks_sources"
	p := plane(t, "--log-level", "warn")
	f := files{t, filepath.Join(p.Dir, "config")}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, publicKey) }))
	defer keys.Close()
	tokens := func(name, uri string) string {
		return fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: %s, namespace: default}\n"+
			"spec: {jwtRules: [{issuer: %[1]s.example.com, jwksUri: %q}]}\n", name, uri)
	}
	f.write("tokens.yaml", tokens("known", keys.URL))
	watcher, err := p.ConfigWatcher(ports(t), "--config-dir", f.dir, "--jwks-allow-addresses", "127.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.StartCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	start(t, watcher)
	l.add("config-watcher", "config-watcher-0", watcher.Ops)
	testkit.Eventually(t, testkit.Patience, func() error {
		if s := l.look(t.Context()); s.sum(m, `state="fresh"`) != 1 {
			return errors.New("the keys are not there")
		}
		return nil
	})
	provoke := func(f fault) {
		f.service = "config-watcher"
		l.provoke(f)
	}
	// Keys are fetched again every few minutes, and when a config-watcher starts.
	provoke(fault{alerts: []string{"KeysNotRefreshed"}, minutes: 17, make_: func(t *testing.T) func() {
		keys.Close()
		watcher.Kill()
		start(t, watcher)
		return nil
	}, until: func(s scrape) bool { return s.sum(m, `state="stale"`) > 0 }})
	provoke(fault{alerts: []string{"KeysMissing"}, minutes: 7, make_: func(*testing.T) func() {
		f.write("more.yaml", tokens("unknown", keys.URL+"/others"))
		return nil
	}, until: func(s scrape) bool { return s.sum(m, `state="missing"`) > 0 }})
}

// emptyMCP is a server of MCP over xDS that has no object.
type emptyMCP struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
}

// StreamAggregatedResources answers each first request of a type.
func (emptyMCP) StreamAggregatedResources(ads discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	for {
		m, err := ads.Recv()
		if err != nil {
			return err
		}
		if m.ResponseNonce == "" {
			if err := ads.Send(&discovery.DiscoveryResponse{TypeUrl: m.TypeUrl, Nonce: "1"}); err != nil {
				return err
			}
		}
	}
}

// TestFaultsOfConfigSources takes a server away that the mesh configuration names.
func TestFaultsOfConfigSources(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := plane(t, "--log-level", "warn")
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(server, emptyMCP{})
	go func() { _ = server.Serve(lis) }() // until the test stops it
	defer server.Stop()
	mesh := filepath.Join(p.Dir, "mesh.yaml")
	testkit.WriteFile(t, mesh, fmt.Appendf(nil, "configSources: [{address: \"xds://%s\"}]\n", lis.Addr()))
	watcher, err := p.ConfigWatcher(ports(t), "--mesh-config-file", mesh)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.StartCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	start(t, watcher)
	l.add("config-watcher", "config-watcher-0", watcher.Ops)
	const m = "fairlead_config_watcher_config_sources"
	testkit.Eventually(t, testkit.Patience, func() error {
		if s := l.look(t.Context()); s.sum(m, `state="synced"`) != 1 {
			return errors.New("the server has not been read")
		}
		return nil
	})
	l.provoke(fault{service: "config-watcher", alerts: []string{"ConfigSourceAway"}, minutes: 7, make_: func(*testing.T) func() {
		server.Stop()
		return nil
	}, until: func(s scrape) bool { return s.sum(m, `state="away"`) > 0 }})
}

// publicKey is that of RFC 7515, appendix A.3.
const publicKey = `{"keys":[{"kty":"EC","crv":"P-256","kid":"a","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",` +
	`"y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}`

// apply writes objects into config-watcher's store.
func apply(ctx context.Context, conn *grpc.ClientConn, objects string) error {
	_, err := configv1.NewConfigStoreServiceClient(conn).Apply(ctx,
		&configv1.ApplyRequest{Documents: []*configv1.Document{{Name: "test", Content: []byte(objects)}}})
	return err
}

// fill takes all of the room of a small file system.
func fill(t *testing.T, dir string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "dd", "if=/dev/zero", "of="+filepath.Join(dir, "filler"), "bs=1k").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "No space left") {
		t.Fatalf("%s is not full: %v\n%s", dir, err, out)
	}
}

// administrator is a connection with an administrator's token.
func administrator(t *testing.T, p *controlplane.Plane, watcher *controlplane.Service) *grpc.ClientConn {
	file, err := os.CreateTemp(p.Dir, "admin-*")
	if err = errors.Join(err, file.Close(),
		p.WriteToken(file.Name(), 0, contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience)); err != nil {
		t.Error(err)
	}
	conn, err := rpc.Dial(rpc.ClientConfig{Target: watcher.GRPC, TLS: anyServer(nil), TokenFile: file.Name()})
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	return conn
}
