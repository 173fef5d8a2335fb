package app_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/envoy"
)

// child is an agent in a process of its own.
type child struct {
	*proxy
	cmd      *exec.Cmd
	stateDir string
	output   *testkit.Buffer
}

// spawn runs binary, or this test binary as the agent if it is empty.
func (m *mesh) spawn(binary, ca, xds string, env ...string) *child {
	m.t.Helper()
	return m.spawnWith(binary, ca, xds, nil, env...)
}

// spawnWith is spawn with further flags.
func (m *mesh) spawnWith(binary, ca, xds string, flags []string, env ...string) *child {
	t := m.t
	t.Helper()
	ip, dir := loopbackIP(), t.TempDir()
	cmd := nodeAgent(t, append([]string{
		"POD_NAME=web-0", "POD_NAMESPACE=shop", "SERVICE_ACCOUNT=web", "INSTANCE_IP=" + ip.String(),
		"ISTIO_META_INTERCEPTION_MODE=NONE", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=0s",
	}, env...), append([]string{
		"proxy", "sidecar",
		"--state-dir", filepath.Join(dir, "state"),
		"--token-file", m.Issuer.TokenFile("shop", "web", contract.TokenAudience),
		"--root-cert-file", m.PKI.WriteRoot(dir),
		"--envoy-binary", envoyBinary(t),
		"--discovery-address", xds, "--ca-address", ca,
		"--bind", ip.String(),
	}, flags...)...)
	if binary != "" {
		cmd.Path = binary
	}
	c := &child{proxy: &proxy{t: t, ip: ip}, cmd: cmd, stateDir: filepath.Join(dir, "state"), output: &testkit.Buffer{}}
	cmd.Stdout, cmd.Stderr = c.output, c.output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(c.output.String())
		}
	})
	return c
}

var envoyPID = regexp.MustCompile(`"Envoy started"[^\n]*"pid":(\d+)`)

// envoyPID waits until the agent has started Envoy.
func (c *child) envoyPID() int {
	c.t.Helper()
	return c.envoyPIDOf(1)
}

// envoyPIDOf waits until the agent has started Envoy for the nth time.
func (c *child) envoyPIDOf(n int) int {
	c.t.Helper()
	var pid int
	testkit.Eventually(c.t, testkit.Patience, func() error {
		found := envoyPID.FindAllStringSubmatch(c.output.String(), -1)
		if len(found) < n {
			return fmt.Errorf("Envoy has been started %d times, want %d: %s", len(found), n, c.output)
		}
		var err error
		pid, err = strconv.Atoi(found[n-1][1])
		return err
	})
	return pid
}

func gone(pid int) error {
	// A process that nobody has waited for yet is as good as gone: it has no memory.
	if status, err := testkit.ProcessStatus(pid); err == nil && status.VmRSS > 0 {
		return fmt.Errorf("process %d is still there", pid)
	}
	return nil
}

// The commands that go with a running agent.
func TestRequestAndWait(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	c := m.spawn("", ca, xds)
	m.set("1", nil, nil)
	if out, err := nodeAgent(t, nil, "wait", "--url", c.url(15021, "/healthz/ready"), "--periodMillis", "50", "--timeoutSeconds",
		"20").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := nodeAgent(t, nil, "request", "GET", "server_info", "--state-dir", c.stateDir).CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"state": "LIVE"`) {
		t.Errorf("%v: %s", err, out)
	}
	// Who asks Envoy to quit ends the agent, without an error.
	if out, err := nodeAgent(t, nil, "request", "POST", "quitquitquit", "--state-dir", c.stateDir).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// However the agent ends, Envoy ends with it, and how it ended shows in the
// exit code. Envoy is not started again here.
func TestAgentAndEnvoyEndTogether(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(agent, envoy int) error
		code int
		says string
	}{
		{"SIGTERM drains", func(agent, _ int) error { return syscall.Kill(agent, syscall.SIGTERM) }, process.ExitOK, "no connection is in use"},
		{"SIGINT drains", func(agent, _ int) error { return syscall.Kill(agent, syscall.SIGINT) }, process.ExitOK, "no connection is in use"},
		{"SIGKILL of the agent", func(agent, _ int) error { return syscall.Kill(agent, syscall.SIGKILL) }, -1, ""},
		{"crash of Envoy", func(_, envoy int) error { return syscall.Kill(envoy, syscall.SIGSEGV) }, envoy.ExitEnvoy, "it crashed"},
		{"Envoy killed", func(_, envoy int) error { return syscall.Kill(envoy, syscall.SIGKILL) }, envoy.ExitEnvoy, "it was killed (SIGKILL)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMesh(t)
			ca, _ := m.ca("", time.Hour)
			xds, _, _ := m.xds("")
			c := m.spawnWith("", ca, xds, []string{"--proxy-restarts", "0"})
			m.set("1", nil, nil)
			c.wantReady()
			pid := c.envoyPID()
			if err := tc.do(c.cmd.Process.Pid, pid); err != nil {
				t.Fatal(err)
			}
			_ = c.cmd.Wait()
			if got := c.cmd.ProcessState.ExitCode(); got != tc.code {
				t.Errorf("exit code %d, want %d", got, tc.code)
			}
			if !strings.Contains(c.output.String(), tc.says) {
				t.Errorf("does not say %q", tc.says)
			}
			testkit.Eventually(t, testkit.Patience, func() error { return gone(pid) })
		})
	}
}

// maxMemory is what an idle agent may take, shared pages of its binary included.
const maxMemory = 20 << 10 // KiB

// An agent whose stream is connected, and whose metrics are scraped, gives the memory of the start back and then needs
// little.
func TestMemory(t *testing.T) {
	binary := filepath.Join(os.Getenv("BIN_DIR"), "node-agent")
	if os.Getenv("BIN_DIR") == "" {
		binary = filepath.Join(t.TempDir(), "node-agent")
		if out, err := exec.Command("go", "build", "-o", binary, "fairlead.dev/services/node-agent/cmd/node-agent").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	c := m.spawn(binary, ca, xds)
	m.set("1", nil, nil)
	c.wantReady()
	for _, when := range []string{"after the start", "after scrapes"} {
		for range 10 {
			if status, _, err := get(c.url(15020, "/stats/prometheus")); err != nil || status != http.StatusOK {
				t.Fatalf("scrape: %d %v", status, err)
			}
		}
		testkit.Eventually(t, testkit.Patience, func() error {
			memory, err := testkit.ProcessStatus(c.cmd.Process.Pid)
			if got := memory.VmRSS >> 10; err == nil && (got > maxMemory || got == 0) {
				err = fmt.Errorf("RSS %d KiB %s, want at most %d", got, when, maxMemory)
			}
			if err == nil {
				t.Logf("%s: RSS %d KiB: %d private, %d of the binary", when, memory.VmRSS>>10, memory.RssAnon>>10, memory.RssFile>>10)
			}
			return err
		})
	}
}
