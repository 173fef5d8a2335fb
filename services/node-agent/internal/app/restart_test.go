package app_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/envoy"
)

// wantServed waits until the application behind the proxy answers.
func (p *proxy) wantServed() {
	p.t.Helper()
	testkit.Eventually(p.t, testkit.Patience, func() error {
		status, _, err := get("http://" + netip.AddrPortFrom(p.ip, appPort).String())
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
}

// metric reads one line of the agent's metrics.
func (p *proxy) metric(line string) string {
	p.t.Helper()
	status, body, err := get(p.url(15020, "/metrics"))
	if err != nil || status != http.StatusOK {
		p.t.Fatalf("metrics: %d %v", status, err)
	}
	for l := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(l, line+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// An Envoy that was lost is started again, while the agent's connection to the control plane, its certificate and its
// ports stay. One that is lost again and again ends the agent, so that kubelet starts both anew.
func TestEnvoyIsStartedAgain(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	c := m.spawnWith("", ca, xds, []string{"--proxy-restarts", "2"})
	m.inbound("1", c.ip, application(t, http.HandlerFunc(hello)), false)
	c.wantReady()
	c.wantServed()
	for i, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSEGV} {
		pid := c.envoyPIDOf(i + 1)
		lost := time.Now()
		if err := syscall.Kill(pid, signal); err != nil {
			t.Fatal(err)
		}
		if next := c.envoyPIDOf(i + 2); next == pid {
			t.Fatalf("still process %d", pid)
		}
		c.wantReady()
		c.wantServed()
		t.Logf("%s: serves again after %s", signal, time.Since(lost).Round(time.Millisecond))
	}
	for line, want := range map[string]string{
		`fairlead_node_agent_envoy_exits_total{reason="killed"}`:  "1",
		`fairlead_node_agent_envoy_exits_total{reason="crashed"}`: "1",
		`fairlead_node_agent_envoy_restarts_total`:                "2",
	} {
		if got := c.metric(line); got != want {
			t.Errorf("%s is %q, want %s", line, got, want)
		}
	}
	if err := syscall.Kill(c.envoyPIDOf(3), syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait()
	if got := c.cmd.ProcessState.ExitCode(); got != envoy.ExitEnvoy {
		t.Errorf("exit code %d, want %d", got, envoy.ExitEnvoy)
	}
}

// However often Envoy was started again, it ends with its agent.
func TestRestartedEnvoyEndsWithItsAgent(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	c := m.spawn("", ca, xds)
	m.set("1", nil, nil)
	c.wantReady()
	if err := syscall.Kill(c.envoyPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	pid := c.envoyPIDOf(2)
	c.wantReady()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait()
	testkit.Eventually(t, testkit.Patience, func() error { return gone(pid) })
}

// An agent that is told to end while Envoy is away does not start another one.
func TestAgentEndsWhileEnvoyIsAway(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	binary := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	c := m.spawnWith("", ca, xds, []string{"--envoy-binary", binary, "--proxy-restarts", "100"})
	// The pause after five is two seconds at least: the signal arrives in it.
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := strings.Count(c.output.String(), "Envoy is started again"); n < 5 {
			return fmt.Errorf("%d restarts", n)
		}
		return nil
	})
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(c.output.String(), `"reason":"exited"`) {
		t.Error("the log does not say why Envoy ended")
	}
}

// controller is a directory of control groups, of version 1 or 2, with files that it must have.
type controller struct {
	top   string
	files []string
}

// absent says why no control group with a controller can be made below a directory, "" if one can: by root, in a file
// system of control groups that is mounted for writing; in version 2 if the groups there have the controller.
func (c controller) absent() string {
	var fs unix.Statfs_t
	if err := unix.Statfs(c.top, &fs); err != nil {
		return err.Error()
	}
	switch {
	case os.Geteuid() != 0:
		return "not root"
	case fs.Type != unix.CGROUP_SUPER_MAGIC && fs.Type != unix.CGROUP2_SUPER_MAGIC:
		return "no file system of control groups"
	case fs.Flags&unix.ST_RDONLY != 0:
		return "mounted for reading only"
	case fs.Type == unix.CGROUP2_SUPER_MAGIC:
		name, _, _ := strings.Cut(c.files[0], ".")
		enabled, err := os.ReadFile(filepath.Join(c.top, "cgroup.subtree_control"))
		if err != nil {
			return err.Error()
		}
		if !slices.Contains(strings.Fields(string(enabled)), name) {
			return "cgroup.subtree_control has no " + name
		}
	}
	return ""
}

// controlGroup makes a control group in the first of the controllers that is there. It returns the group's file of
// processes and those of the controller.
func controlGroup(t *testing.T, controllers ...controller) (procs string, files []string) {
	t.Helper()
	var absent []string
	for _, c := range controllers {
		if why := c.absent(); why != "" {
			absent = append(absent, c.top+": "+why)
			continue
		}
		dir := filepath.Join(c.top, "fairlead-test-"+strconv.Itoa(os.Getpid()))
		if err := os.Mkdir(dir, 0o755); os.IsPermission(err) { //nolint:gosec // as the kernel wants it
			absent = append(absent, err.Error()) // root of a user namespace
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			testkit.Eventually(t, testkit.Patience, func() error {
				if err := os.Remove(dir); !os.IsNotExist(err) {
					return err
				}
				return nil
			})
		})
		for _, name := range c.files {
			files = append(files, filepath.Join(dir, name))
			if !exists(files[len(files)-1]) {
				t.Fatalf("a new control group has no %s", files[len(files)-1])
			}
		}
		return filepath.Join(dir, "cgroup.procs"), files
	}
	t.Skipf("no control group can be made: %s", strings.Join(absent, "; "))
	return "", nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// inGroup is a program that runs this test binary in a control group, which it joins before it starts, as the processes
// of a container do.
func inGroup(t *testing.T, procs string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in-group")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho $$ > "+procs+"\nexec '"+os.Args[0]+"' \"$@\"\n"),
		0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	return path
}

// Envoy's threads follow the limit of CPU time, whoever says it.
func TestConcurrencyIsTheCPULimit(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	threads := func(binary, want string, env ...string) {
		t.Helper()
		c := m.spawn(binary, ca, xds, env...)
		m.set("1", nil, nil)
		c.wantReady()
		out, err := nodeAgent(t, nil, "request", "GET", "server_info", "--state-dir", c.stateDir).CombinedOutput()
		if err != nil || !strings.Contains(string(out), `"concurrency": `+want+",") {
			t.Errorf("%v: want %s threads: %s", err, want, out)
		}
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		testkit.Eventually(t, testkit.Patience, func() error { return gone(c.envoyPID()) })
	}
	threads("", "3", "ISTIO_CPU_LIMIT=3")
	procs, files := controlGroup(t, controller{"/sys/fs/cgroup/cpu", []string{"cpu.cfs_quota_us"}},
		controller{"/sys/fs/cgroup", []string{"cpu.max"}})
	if strings.HasSuffix(files[0], "cpu.max") {
		write(t, files[0], "310000 100000")
	} else {
		write(t, files[0], "310000")
	}
	threads(inGroup(t, procs), "4")
	threads(inGroup(t, procs), "2", "PROXY_CONFIG=concurrency: 2")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The kernel kills Envoy when the memory of the container runs out, which its log, a metric and the exit reason say.
// The agent, whose groups are those in which it has started, leaves the group first: else the kernel may choose it.
func TestOutOfMemoryIsRecognised(t *testing.T) {
	procs, files := controlGroup(t, controller{"/sys/fs/cgroup/memory", []string{"memory.limit_in_bytes", "memory.usage_in_bytes"}},
		controller{"/sys/fs/cgroup", []string{"memory.max", "memory.current"}})
	limit, usage := files[0], files[1]
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	c := m.spawn(inGroup(t, procs), ca, xds)
	m.set("1", nil, nil)
	pid := c.envoyPID()
	c.wantReady()
	write(t, filepath.Join(filepath.Dir(filepath.Dir(procs)), "cgroup.procs"), strconv.Itoa(c.cmd.Process.Pid))
	write(t, fmt.Sprintf("/proc/%d/oom_score_adj", pid), "1000")
	used, err := os.ReadFile(usage)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(used)))
	if err != nil {
		t.Fatal(err)
	}
	write(t, limit, strconv.Itoa(n+4<<20))
	hog := exec.CommandContext(t.Context(), "sh", "-c", "echo $$ > "+procs+"; exec dd if=/dev/zero of=/dev/null bs=64M count=1")
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error { return gone(pid) })
	_ = hog.Wait()
	testkit.Eventually(t, testkit.Patience, func() error {
		if log := c.output.String(); !strings.Contains(log, "the kernel killed it because memory ran out") ||
			!strings.Contains(log, `"reason":"out_of_memory"`) {
			return errors.New("the log does not say that memory ran out")
		}
		return nil
	})
	testkit.Eventually(t, testkit.Patience, func() error {
		if got := c.metric(`fairlead_node_agent_envoy_exits_total{reason="out_of_memory"}`); got == "" || got == "0" {
			return fmt.Errorf("the metric counts %q", got)
		}
		return nil
	})
	c.envoyPIDOf(2)
	c.wantReady()
}

// post is one POST request without a body.
func post(url string) (int, error) {
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Post(url, "", nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, nil
}

// The container of a Job ends the proxy once it is done: at once, without an error, whatever the drain time.
func TestQuitQuitQuit(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	c := m.spawn("", ca, xds, "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=false", "TERMINATION_DRAIN_DURATION_SECONDS=3600")
	m.set("1", nil, nil)
	c.wantReady()
	pid := c.envoyPID()
	if status, err := post(c.url(15020, "/renew")); err != nil || status != http.StatusOK {
		t.Fatalf("renew: %d %v", status, err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := c.metric("fairlead_svid_renewals_total"); n != "2" {
			return fmt.Errorf("%q certificates since the start", n)
		}
		return nil
	})
	if status, _, err := get(c.url(15020, "/quitquitquit")); err != nil || status != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d %v", status, err)
	}
	if status, err := post(c.url(15020, "/quitquitquit")); err != nil || status != http.StatusOK {
		t.Fatalf("POST: %d %v", status, err)
	}
	if err := c.cmd.Wait(); err != nil || c.cmd.ProcessState.ExitCode() != process.ExitOK {
		t.Errorf("%v, exit code %d", err, c.cmd.ProcessState.ExitCode())
	}
	testkit.Eventually(t, testkit.Patience, func() error { return gone(pid) })
}

// In a Pod with a native sidecar, the preStop hook takes the proxy out of service while its application still runs and
// calls others. Once the application has ended there is nothing to wait for.
func TestDrainWhileTheApplicationRuns(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	c := m.spawn("", ca, xds, "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=false", "TERMINATION_DRAIN_DURATION_SECONDS=3600",
		"PROXY_CONFIG=drainDuration: 1s")
	to := application(t, http.HandlerFunc(hello))
	in, out := netip.AddrPortFrom(c.ip, appPort), netip.AddrPortFrom(c.ip, appPort+1)
	inbound := httpListener(t, "in", in, "app", false).(*listenerv3.Listener)
	inbound.TrafficDirection = corev3.TrafficDirection_INBOUND
	m.set("1", []types.Resource{clusterTo("app", to)}, []types.Resource{inbound, httpListener(t, "out", out, "app", false)})
	c.wantReady()
	c.wantServed()
	if status, err := post(c.url(15020, "/drain")); err != nil || status != http.StatusOK {
		t.Fatalf("drain: %d %v", status, err)
	}
	if status, body, err := get(c.url(15020, "/healthz/ready")); err != nil || status != http.StatusServiceUnavailable ||
		!strings.Contains(body, "draining") {
		t.Errorf("ready while it drains: %d %q %v", status, body, err)
	}
	closes := func(at netip.AddrPort) func() error {
		return func() error {
			resp, err := (&http.Client{Timeout: 10 * time.Second}).Get("http://" + at.String())
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK || !resp.Close {
				return fmt.Errorf("%s, close %v", resp.Status, resp.Close)
			}
			return nil
		}
	}
	testkit.Eventually(t, testkit.Patience, closes(in))
	if err := closes(out)(); err == nil || !strings.Contains(err.Error(), "200 OK, close false") {
		t.Errorf("outbound: %v, want an answer on a connection that stays", err)
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Wait(); err != nil { // not after an hour
		t.Error(err)
	}
}
