package rundir_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/runstate"

	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/proxyname"
)

func TestLiveRunIsRefused(t *testing.T) {
	l := rundir.NewLayout(filepath.Join(t.TempDir(), "run"), "web-0.default")
	lock, err := rundir.Acquire(l)
	if err != nil {
		t.Fatal(err)
	}
	var inUse *rundir.InUseError
	if _, err := rundir.Acquire(l); !errors.As(err, &inUse) || inUse.PID != os.Getpid() ||
		!strings.Contains(err.Error(), "fairlead down --run-dir "+l.Dir) {
		t.Errorf("second use: %v", err)
	}
	if pid, err := rundir.Holder(l); err != nil || pid != os.Getpid() {
		t.Errorf("holder %d, %v", pid, err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if pid, err := rundir.Holder(l); err != nil || pid != 0 {
		t.Errorf("holder after release %d, %v", pid, err)
	}
	again, err := rundir.Acquire(l)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Release()
}

func TestStaleRunIsCleaned(t *testing.T) {
	l := rundir.NewLayout(filepath.Join(t.TempDir(), "run"), "")
	lock, err := rundir.Acquire(l)
	if err != nil {
		t.Fatal(err)
	}
	// A killed `fairlead up` leaves files, a state, and perhaps a process.
	left := exec.Command("sleep", "1000")
	left.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- left.Wait() }()
	innocent := exec.Command("sleep", "1000")
	innocent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := innocent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = innocent.Process.Kill(); _ = innocent.Wait() }()
	state := runstate.State{PID: 1, Services: []runstate.Service{
		{Process: runstate.Process{Name: "left", PID: left.Process.Pid, Birth: rundir.Birth(left.Process.Pid)}},
		// This process's pid belongs to another process by now.
		{Process: runstate.Process{Name: "reused", PID: innocent.Process.Pid, Birth: "1"}},
	}}
	if err := rundir.Write(l, &state); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(l.Dir, "admin-token")
	testkit.WriteFile(t, secret, []byte("old"))
	_ = lock.Release()

	lock, err = rundir.Acquire(l)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	if _, err := os.Stat(secret); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old run's files are still there: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(testkit.Patience):
		t.Error("the old run's process still runs")
	}
	if err := innocent.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process that only has the same pid was killed: %v", err)
	}
	if info, err := os.Stat(l.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("run directory %v, %v", info, err)
	}
}

func TestForeignDirectoryIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "thesis.txt")
	testkit.WriteFile(t, file, []byte("years of work"))
	if _, err := rundir.Acquire(rundir.NewLayout(dir, "")); !errors.Is(err, rundir.ErrForeign) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	if _, err := rundir.Open(dir); !errors.Is(err, rundir.ErrNoMesh) || !strings.Contains(err.Error(), "fairlead up --run-dir "+dir) {
		t.Errorf("empty directory: %v", err)
	}
	l := rundir.NewLayout(dir, "")
	dead := runstate.State{PID: os.Getpid(), Birth: "1", ConfigPaths: []string{"/a.yaml", "/b"}}
	if err := rundir.Write(l, &dead); err != nil {
		t.Fatal(err)
	}
	if _, err := rundir.Open(dir); !errors.Is(err, rundir.ErrNoMesh) ||
		!strings.Contains(err.Error(), "`fairlead up --run-dir "+dir+" -f /a.yaml -f /b`, which clears") {
		t.Errorf("dead run: %v", err)
	}
	if err := rundir.WriteFlags(l, []string{"--loopback-range", "127.9.0.0/16", "--envoy", "/opt/envoy"}); err != nil {
		t.Fatal(err)
	}
	if _, err := rundir.Open(dir); !strings.Contains(err.Error(), " -f /b --loopback-range 127.9.0.0/16 --envoy /opt/envoy`, which clears") {
		t.Errorf("dead run with flags: %v", err)
	}
	live := runstate.State{PID: os.Getpid(), Birth: rundir.Birth(os.Getpid()), TrustDomain: "x"}
	if err := rundir.Write(l, &live); err != nil {
		t.Fatal(err)
	}
	if s, err := rundir.Open(dir); err != nil || s.TrustDomain != "x" {
		t.Errorf("live run: %v, %v", s, err)
	}
	if info, err := os.Stat(l.State()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("state file %v, %v", info, err)
	}
}

func TestProxyNames(t *testing.T) {
	pod := func(name, ns string, agent bool) runstate.Pod {
		p := runstate.Pod{Name: name, Namespace: ns}
		if agent {
			p.Agent = &runstate.Agent{}
		}
		return p
	}
	s := runstate.State{Pods: []runstate.Pod{pod("web-1", "a", true), pod("web-10", "a", true), pod("web-1", "b", true),
		pod("db-0", "a", true), pod("plain-0", "a", false)}}
	for name, want := range map[string]string{"web-1.a": "web-1.a", "db": "db-0.a", "web-10": "web-10.a"} {
		if p, err := rundir.Proxy(&s, name, ""); err != nil || p.ID() != want {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	if p, err := rundir.Proxy(&s, "web-1", "b"); err != nil || p.ID() != "web-1.b" {
		t.Errorf("web-1 of b: %v, %v", p, err)
	}
	var ambiguous *proxyname.AmbiguousError
	if _, err := rundir.Proxy(&s, "web-1", ""); !errors.As(err, &ambiguous) || len(ambiguous.Matches) != 2 {
		t.Errorf("web-1: %v", err)
	}
	s.Pods[3].Resting, s.Pods[3].Workload = true, "db"
	if _, err := rundir.Proxy(&s, "db", ""); err == nil || !strings.Contains(err.Error(), "fairlead scale deploy/db --replicas=N` starts it") {
		t.Errorf("db-0, which is scaled down: %v", err)
	}
	for _, name := range []string{"plain", "nobody", ""} {
		if _, err := rundir.Proxy(&s, name, ""); err == nil {
			t.Errorf("%q was found", name)
		}
	}
}

func TestSocketsFitIntoTheirAddress(t *testing.T) {
	short := rundir.NewLayout("/run/mesh", "web-0.default")
	if short.Sockets != "/run/mesh/pods" {
		t.Errorf("sockets in %s", short.Sockets)
	}
	long := rundir.NewLayout("/"+strings.Repeat("deep/", 20)+"mesh", "web-0.default")
	if n := len(filepath.Join(long.Agent("web-0.default"), "envoy-admin.sock")); n > 107 {
		t.Errorf("socket path of %d bytes in %s", n, long.Sockets)
	}
	other := rundir.NewLayout("/"+strings.Repeat("deep/", 20)+"other", "web-0.default")
	if other.Sockets == long.Sockets {
		t.Error("two run directories share sockets")
	}
}
