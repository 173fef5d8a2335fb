package alerts

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

	ip := netip.MustParseAddrPort(testkit.FreeAddress(t).String()).Addr().String()
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
	l.add("node-agent", "client.default", status)
	provoke := func(f fault) {
		f.service = "node-agent"
		l.provoke(f)
	}

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
