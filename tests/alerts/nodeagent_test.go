package alerts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// TestFaultsOfNodeAgents runs one agent with its Envoy.
func TestFaultsOfNodeAgents(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	const m = "fairlead_node_agent_"
	p := plane(t, "--log-level", "warn")
	f := files{t, filepath.Join(p.Dir, "config")}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ip := netip.MustParseAddrPort(testkit.FreeAddress(t).String()).Addr().String()
	// The application of the proxy, and the provider that is asked about its requests.
	answers := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	application, provider := httptest.NewServer(answers), httptest.NewServer(answers)
	defer application.Close()
	defer provider.Close()
	f.write("asked.yaml", asked(ip, application.Listener.Addr(), provider.Listener.Addr()))
	meshConfig := filepath.Join(p.Dir, "mesh.yaml")
	testkit.WriteFile(t, meshConfig, []byte(
		"extensionProviders:\n- {name: asked, envoyExtAuthzHttp: {service: asked.example.com, port: 9000}}\n"+
			"- {name: asked-of-tcp, envoyExtAuthzGrpc: {service: asked.example.com, port: 9000}}\n"))
	watcher, err := p.ConfigWatcher(ports(t), "--config-dir", f.dir, "--mesh-config-file", meshConfig)
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

	token, state, log := filepath.Join(p.Dir, "token-client"), filepath.Join(p.Dir, "agent"), filepath.Join(p.Dir, "logs", "node-agent.log")
	if err := errors.Join(os.Mkdir(state, 0o700), p.WriteToken(token, 0, "default", "client", contract.TokenAudience)); err != nil {
		t.Fatal(err)
	}
	agent, err := process.Start(process.Program{
		Name: "node-agent", Path: p.Binaries.Path("node-agent"), Stdout: log, Stderr: log,
		Env: []string{"POD_NAME=client", "POD_NAMESPACE=default", "INSTANCE_IP=" + ip, "SERVICE_ACCOUNT=client",
			"ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_INTERCEPTION_MODE=NONE"},
		Args: []string{"proxy", "sidecar", "--state-dir", state, "--token-file", token, "--root-cert-file", p.RootFile, "--bind", ip,
			"--envoy-binary", p.Binaries.Envoy, "--discovery-address", server.GRPC, "--ca-address", p.CA.GRPC},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := agent.Stop(testkit.Patience); err != nil {
			t.Error(err)
		}
	})
	status := net.JoinHostPort(ip, "15020")
	if err := agent.Until(t.Context(), testkit.Patience, func() error {
		return probe.Ready(t.Context(), probe.Client(nil), "http://"+status+"/healthz/ready")
	}); err != nil {
		t.Fatal(err)
	}
	// As its PodMonitor has it scraped, with Envoy's metrics.
	l.targets = append(l.targets, target{"node-agent", "client.default", "http://" + status + "/stats/prometheus"})
	provoke := func(f fault) {
		f.service = "node-agent"
		l.provoke(f)
	}

	request := func(ctx context.Context, port string) error {
		_, err := probe.Get(ctx, probe.Client(nil), "http://"+net.JoinHostPort(ip, port)+"/")
		return err
	}
	testkit.Eventually(t, testkit.Patience, func() error { return request(t.Context(), "8080") })
	provoke(fault{alerts: []string{"AuthorizationProviderFails"}, minutes: 5, gap: 300 * time.Millisecond,
		make_: func(t *testing.T) func() {
			provider.CloseClientConnections()
			provider.Close()
			ctx, end := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() {
				for ctx.Err() == nil {
					if request(ctx, "8080") == nil || request(ctx, "8081") == nil {
						t.Error("a request passes that nobody has allowed")
						return
					}
				}
			})
			return func() { end(); all.Wait() }
		}, until: func(s scrape) bool {
			return s.sum("envoy_cluster_ext_authz_error") > 0 && s.sum("envoy_ext_authz_tcp__error") > 0
		}})
	provoke(fault{alerts: []string{"EnvoyLost"}, until: positive(m + "envoy_exits_total"), make_: func(t *testing.T) func() {
		if err := syscall.Kill(child(t, agent.PID()), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return nil
	}})
	if err := agent.Until(t.Context(), testkit.Patience, func() error {
		if l.look(t.Context()).sum(m+"relay_streams") == 0 {
			return errors.New("Envoy has no stream again")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	burns := []string{"NodeAgentBudgetBurnsFast", "NodeAgentBudgetBurnsSlow", "NodeAgentBudgetBurnsSteady", "NodeAgentBudgetBurnsCreeping"}
	provoke(fault{
		alerts: append(burns, "ProxyWithoutServer"), minutes: 70, gap: 5 * time.Millisecond,
		make_: func(*testing.T) func() { server.Kill(); return nil },
		until: func(s scrape) bool { return s.sum("up") == 1 && s.sum(m+"relay_streams") == 0 },
	})
	begin := 0.0
	provoke(fault{alerts: []string{"NoServerReachable"}, gap: 200 * time.Millisecond,
		make_: func(t *testing.T) func() {
			begin = l.look(t.Context()).sum(m + "relay_dial_failures_total")
			return nil
		},
		until: func(s scrape) bool { return s.sum(m+"relay_dial_failures_total") > begin+14 }})
}

// asked are the objects of a sidecar at an address that asks a provider about every request to its application, and
// about every connection to another port of it.
func asked(ip string, application, provider net.Addr) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: client, namespace: default, labels: {app: client}}
spec: {address: %[1]s, serviceAccount: client, labels: {app: client}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: client, namespace: default}
spec:
  workloadSelector: {labels: {app: client}}
  ingress:
  - {port: {number: 8080, name: http, protocol: HTTP}, bind: %[1]s, defaultEndpoint: %[2]q}
  - {port: {number: 8081, name: tcp, protocol: TCP}, bind: %[1]s, defaultEndpoint: %[2]q}
  egress: [{hosts: ["./*"]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: asked, namespace: default}
spec:
  hosts: [asked.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 9000, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %[3]d}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: asked, namespace: default}
spec: {action: CUSTOM, provider: {name: asked}, rules: [{}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: asked-of-tcp, namespace: default}
spec: {action: CUSTOM, provider: {name: asked-of-tcp}, rules: [{to: [{operation: {ports: ["8081"]}}]}]}
`, ip, application, provider.(*net.TCPAddr).Port)
}

// child is the process id of Envoy, the child of an agent.
func child(t *testing.T, parent int) int {
	t.Helper()
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(content)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("the agent has no child")
	return 0
}
