package app_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/command"
)

// asAgent makes the test binary behave as node-agent, for what only a process
// of its own can show.
const asAgent = "NODE_AGENT_TEST_AS_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) == "1" {
		process.Main("node-agent", func(ctx context.Context) error {
			return command.Root(os.Stdout, os.Stderr).ExecuteContext(ctx)
		})
	}
	os.Exit(m.Run())
}

// nodeAgent is a command that runs the agent with the given arguments and
// nothing in its environment but env.
func nodeAgent(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append([]string{asAgent + "=1"}, env...)
	return cmd
}

func TestExitCodes(t *testing.T) {
	pod := []string{"POD_NAME=web-0", "POD_NAMESPACE=shop", "INSTANCE_IP=127.0.0.1"}
	for _, tc := range []struct {
		name string
		env  []string
		args []string
		code int
		says []string
	}{
		{"version", nil, []string{"version"}, process.ExitOK, []string{`"version":`}},
		{"no such command", nil, []string{"proxi"}, process.ExitUsage, []string{"proxi"}},
		{"no such flag", nil, []string{"proxy", "sidecar", "--no-such"}, process.ExitUsage, []string{"--no-such"}},
		{"no role", pod, []string{"proxy"}, process.ExitUsage, []string{"proxy sidecar|router"}},
		{"wrong role", pod, []string{"proxy", "waypoint"}, process.ExitUsage, []string{`"waypoint"`, `"sidecar" or "router"`}},
		{"no environment", nil, []string{"proxy", "sidecar"}, process.ExitUsage, []string{"POD_NAME", "POD_NAMESPACE"}},
		{"Istio's wait", nil, []string{"wait", "--log_output_level=default:debug", "--url", "http://127.0.0.1:1/", "--timeoutSeconds", "1"},
			process.ExitFailure, []string{"not ready"}},
		{"no Envoy", pod, []string{"proxy", "sidecar", "--envoy-binary", "/nowhere/envoy"}, process.ExitUsage,
			[]string{"/nowhere/envoy", "--envoy-binary"}},
		{"wrong interception", append([]string{"ISTIO_META_INTERCEPTION_MODE=SOME"}, pod...), []string{"proxy", "sidecar"}, process.ExitUsage,
			[]string{"SOME", "TPROXY"}},
		{"no resolv.conf", append([]string{"ISTIO_META_DNS_CAPTURE=true"}, pod...), []string{"proxy", "sidecar", "--resolv-conf", "/nowhere"},
			process.ExitUsage, []string{"--resolv-conf"}},
		{"wrong redirection", nil, []string{"init", "-b", "http"}, process.ExitUsage, []string{"--istio-inbound-ports"}},
		{"rules to read", nil, []string{"istio-iptables", "--dry-run"}, process.ExitOK, []string{"redirect to :15001", "redirect to :15006"}},
		{"no admin socket", nil, []string{"request", "GET", "stats", "--state-dir", t.TempDir()}, process.ExitFailure,
			[]string{"admin interface"}},
		{"no agent to ask", nil, []string{"request", "--debug-port=1", "POST", "drain"}, process.ExitFailure, []string{"localhost:1"}},
		{"no port", nil, []string{"request", "--debug-port=0", "POST", "drain"}, process.ExitUsage, []string{"--debug-port"}},
		{"Istio's flags of logging", nil,
			[]string{"version", "--log_as_json", "--log_caller=all", "--log_target=stdout", "--log_stacktrace_level=default:none", "--vklog=9"},
			process.ExitOK, nil},
		{"wrong method", nil, []string{"request", "DELETE", "stats"}, process.ExitUsage, []string{"GET or POST"}},
		{"never ready", nil, []string{"wait", "--url", "http://127.0.0.1:1/", "--timeoutSeconds", "1", "--periodMillis", "100"},
			process.ExitFailure, []string{"not ready"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cmd := nodeAgent(t, tc.env, tc.args...)
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != tc.code {
				t.Errorf("exit code %d, want %d: %s", got, tc.code, out)
			}
			for _, s := range tc.says {
				if !strings.Contains(string(out), s) {
					t.Errorf("does not say %q: %s", s, out)
				}
			}
		})
	}
}

// Hooks of injected Pods call the binary by the name of Istio's agent.
func TestAnswersToTheNameOfIstiosAgent(t *testing.T) {
	cmd := nodeAgent(t, nil, "wait", "--help")
	cmd.Args[0] = "/usr/local/bin/pilot-agent"
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "pilot-agent wait [flags]") {
		t.Errorf("%v: %s", err, out)
	}
	got := make(chan string, 1)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.Method + " " + r.URL.Path + " " + string(body)
	})}
	lis := testkit.LoopbackListener(t)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(func() { _ = server.Close() })
	cmd = nodeAgent(t, nil, "request", fmt.Sprintf("--debug-port=%d", lis.Addr().(*net.TCPAddr).Port), "POST", "drain", "now")
	cmd.Args[0] = "pilot-agent"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if asked := <-got; asked != "POST /drain now" {
		t.Errorf("asked for %q", asked)
	}
}
