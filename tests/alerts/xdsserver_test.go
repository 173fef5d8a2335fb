package alerts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	xdsv1 "fairlead.dev/proto/fairlead/xds/v1"
)

const (
	clusters  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	listeners = "type.googleapis.com/envoy.config.listener.v3.Listener"
)

// join opens a state-of-the-world stream in the place of proxy number n, and asks for clusters.
func join(t *testing.T, conn *grpc.ClientConn, n int) *adstest.Sotw {
	t.Helper()
	id := adstest.Sidecar(fmt.Sprintf("10.0.0.%d", n%250), fmt.Sprintf("client-%d", n), "default")
	p := testkit.Must(adstest.OpenSotw(t.Context(), conn, adstest.Node(id, nil)))(t)
	testkit.NoError(t, p.Send(&discovery.DiscoveryRequest{TypeUrl: clusters}))
	return p
}

func TestFaultsOfXDSServers(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	const m = "fairlead_xds_server_"
	p := plane(t, "--log-level", "warn")
	f := files{t, filepath.Join(p.Dir, "config")}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var many strings.Builder
	for i := range 600 {
		many.WriteString(entry(fmt.Sprintf("host-%d", i)) + "---\n")
	}
	// The proxies of this test have one identity, and a mesh of many workloads allows it as many streams.
	for i := range 24 {
		fmt.Fprintf(&many, "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: client-%d, namespace: default}\n"+
			"spec: {address: 10.9.0.%d, serviceAccount: client}\n---\n", i, i+1)
	}
	f.write("many.yaml", many.String())
	watcher, err := p.ConfigWatcher(ports(t), "--config-dir", f.dir, "--file-grace-period", "1s")
	if err != nil {
		t.Fatal(err)
	}
	// Two that do not know each other: nothing balances them.
	one, err := p.XDSServer(0, ports(t), watcher.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	two, err := p.XDSServer(1, ports(t), watcher.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.StartCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	start(t, watcher, one, two)
	l.add("xds-server", "xds-server-0", one.Ops)
	l.add("xds-server", "xds-server-1", two.Ops)
	provoke := func(f fault) {
		f.service = "xds-server"
		l.provoke(f)
	}
	dial := func(t *testing.T) *grpc.ClientConn { return byCertificate(t, p, one.GRPC, "default", "client") }

	good := join(t, dial(t), 0)
	first := testkit.Must(good.Recv())(t)
	testkit.NoError(t, good.Answer(first, first.GetVersionInfo(), nil))
	l.strangers("xds-server", one.GRPC, dial, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := xdsv1.NewReplicaServiceClient(conn).GetLoad(ctx, &xdsv1.GetLoadRequest{})
		return err
	})
	provoke(fault{alerts: []string{"ProxyRejects"}, until: positive(m + "nacks_total"), make_: func(t *testing.T) func() {
		bad := join(t, dial(t), 1)
		testkit.NoError(t, bad.Answer(testkit.Must(bad.Recv())(t), "", errors.New("test: refused")))
		return nil
	}})
	slow := []string{"SlowAcks", "XdsServerBudgetBurnsFast", "XdsServerBudgetBurnsSlow", "XdsServerBudgetBurnsSteady",
		"XdsServerBudgetBurnsCreeping"}
	provoke(fault{alerts: slow, minutes: 70, gap: time.Millisecond, make_: func(t *testing.T) func() {
		var waiting []*adstest.Sotw
		var held []*discovery.DiscoveryResponse
		conn := dial(t)
		for i := range 8 {
			waiting = append(waiting, join(t, conn, 10+i))
			held = append(held, testkit.Must(waiting[i].Recv())(t))
		}
		time.Sleep(2500 * time.Millisecond) // how long the proxies take, which is the fault
		acked := l.look(t.Context()).sum(m + "ack_duration_seconds_count")
		for i, w := range waiting {
			testkit.NoError(t, w.Answer(held[i], held[i].GetVersionInfo(), nil))
		}
		for l.look(t.Context()).sum(m+"ack_duration_seconds_count") < acked+8 {
			if t.Context().Err() != nil {
				t.Fatal(t.Context().Err())
			}
		}
		return nil
	}})
	provoke(fault{alerts: []string{"CannotBuild"}, until: positive(m + "failing_resources"), make_: func(*testing.T) func() {
		f.write("filter.yaml", "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: broken, namespace: "+
			"default}\nspec:\n  configPatches:\n"+
			"  - applyTo: CLUSTER\n    match: {context: SIDECAR_OUTBOUND, cluster: {service: host-1.example.com}}\n    patch: {operation: MERGE, "+
			"value: {name: another}}\n")
		return func() { f.remove("filter.yaml") }
	}})
	provoke(fault{alerts: []string{"PolicyNotEnforced"}, minutes: 7, until: positive(m + "unenforced_resources"),
		make_: func(t *testing.T) func() {
			f.write("policy.yaml", "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: tokens, namespace: default}\n"+
				"spec: {jwtRules: [{issuer: a.example.com, jwks: '{\"keys\":[]}'}]}\n")
			node := adstest.Node(adstest.Sidecar("10.0.0.9", "client-9", "default"), nil)
			node.Extensions = []*core.Extension{{Name: "envoy.filters.http.rbac"}} // and none that verifies tokens
			p := testkit.Must(adstest.OpenSotw(t.Context(), dial(t), node))(t)
			testkit.NoError(t, p.Send(&discovery.DiscoveryRequest{TypeUrl: listeners}))
			testkit.Must(p.Recv())(t)
			return func() { f.remove("policy.yaml") }
		}})
	provoke(fault{alerts: []string{"Unbalanced"}, minutes: 12, make_: func(t *testing.T) func() {
		conn := dial(t)
		for i := range 44 {
			testkit.Must(join(t, conn, 100+i).Recv())(t)
		}
		return nil
	}, until: func(s scrape) bool { return s.sum(m+"streams") >= 44 }})
	provoke(fault{alerts: []string{"RefusedStreams"}, until: positive(m + "refused_streams_total"), make_: func(t *testing.T) func() {
		conn := byCertificate(t, p, one.GRPC, "default", "greedy")
		for i := range 90 {
			join(t, conn, 200+i)
		}
		return nil
	}})
	provoke(fault{alerts: []string{"NoConfigWatcher"}, minutes: 12, make_: func(*testing.T) func() { watcher.Kill(); return nil },
		until: func(s scrape) bool { return s.sum(m+"config_watcher_connected") == 0 }})
	provoke(fault{alerts: []string{"XdsServerDown"}, minutes: 7, make_: func(*testing.T) func() { two.Kill(); return nil }})
}

// The ca is away when certificates must be renewed. They live for some seconds, which stand for a day.
func TestFaultsOfRenewal(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	const life = 40 * time.Second
	p := plane(t, "--log-level", "warn")
	p.CA.Add("--min-workload-ttl", "1s", "--max-workload-ttl", life.String(), "--workload-ttl", life.String())
	watcher, err := p.ConfigWatcher(ports(t))
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
	faster := (24 * time.Hour).Seconds() / life.Seconds()
	for _, s := range []struct{ job, address string }{{"config-watcher", watcher.Ops}, {"xds-server", server.Ops}} {
		l.add(s.job, s.job+"-0", s.address)
	}
	for i, job := range []string{"config-watcher", "xds-server"} {
		l.provoke(fault{
			service: job, alerts: []string{"CertificateNotRenewed"}, faster: faster, afresh: i > 0, minutes: 1,
			make_: func(*testing.T) func() { p.CA.Kill(); return nil },
			until: func(s scrape) bool {
				left := s.sum("fairlead_svid_expiry_timestamp_seconds", fmt.Sprintf("job=%q", job)) - float64(s.at.UnixMilli())/1000
				return left*faster < 3600
			},
		})
	}
	start(t, p.CA)
	for _, job := range []string{"config-watcher", "xds-server"} {
		failures := func(s scrape) float64 {
			return s.sum("fairlead_svid_renewal_failures_total", fmt.Sprintf("job=%q", job))
		}
		begin := 0.0
		l.provoke(fault{
			service: job, alerts: []string{"RenewalFails"}, gap: 500 * time.Millisecond, minutes: 2,
			make_: func(t *testing.T) func() {
				if p.CA.Running() {
					p.CA.Kill()
				}
				begin = failures(l.look(t.Context()))
				return nil
			},
			until: func(s scrape) bool { return failures(s) > begin+5 },
		})
	}
}
