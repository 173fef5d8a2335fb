package supervise_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/local/supervise"
)

// TestMain runs, under another name, a supervising process for TestChildrenDieWithTheirParent.
func TestMain(m *testing.M) {
	if os.Getenv("SUPERVISE_TEST_PARENT") != "" {
		parent()
	}
	os.Exit(m.Run())
}

// within bounds every wait, with time for a busy machine.
const within = testkit.Patience

// recorder keeps the statuses that the supervisor reports.
type recorder struct {
	mu   sync.Mutex
	list []supervise.Status
}

func (r *recorder) add(s supervise.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, s)
}

func (r *recorder) all() []supervise.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]supervise.Status(nil), r.list...)
}

func newSupervisor(t *testing.T, cfg supervise.Config) *supervise.Supervisor {
	t.Helper()
	cfg.Log = testkit.Logger(t)
	if cfg.MinBackoff == 0 {
		cfg.MinBackoff = time.Millisecond
	}
	s := supervise.New(cfg)
	t.Cleanup(s.Close)
	return s
}

// shell is a Spec that runs a script.
func shell(t *testing.T, script string) supervise.Spec {
	t.Helper()
	path, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no shell")
	}
	return supervise.Spec{
		Name: "test", Path: path, Args: []string{"-c", script}, Env: []string{"PATH=" + os.Getenv("PATH"), "COLOR=red"},
		Log: filepath.Join(t.TempDir(), "log"), Grace: within,
	}
}

// pidOf waits until the process's status has a pid; its log may be written earlier.
func pidOf(t *testing.T, p *supervise.Process) int {
	t.Helper()
	testkit.Eventually(t, within, func() error {
		if p.Status().PID == 0 {
			return supervise.ErrNotRunning
		}
		return nil
	})
	return p.Status().PID
}

func exists(pid int) bool { return rundir.Birth(pid) != "" }

func logContains(path, want string) func() error {
	return func() error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !strings.Contains(string(b), want) {
			return fmt.Errorf("log is %q", b)
		}
		return nil
	}
}

func TestRunsAndStops(t *testing.T) {
	var seen recorder
	s := newSupervisor(t, supervise.Config{Changed: seen.add})
	spec := shell(t, `trap 'echo bye; exit 0' TERM; echo hello $COLOR; while :; do sleep 0.05; done`)
	p := s.Start(spec)
	testkit.Eventually(t, within, logContains(spec.Log, "hello red"))
	pid := pidOf(t, p)
	if !exists(pid) {
		t.Fatalf("pid %d does not run", pid)
	}
	if pgid, err := syscall.Getpgid(pid); err != nil || pgid != pid {
		t.Errorf("it is in process group %d, %v: Ctrl-C would reach it", pgid, err)
	}
	p.Stop(context.Background())
	p.Stop(context.Background()) // twice does no harm
	if exists(pid) {
		t.Error("it still runs")
	}
	if err := logContains(spec.Log, "bye")(); err != nil {
		t.Errorf("it was not asked to end: %v", err)
	}
	if st := p.Status(); !st.Stopped || st.PID != 0 || st.Restarts != 0 {
		t.Errorf("status %+v", st)
	}
	list := seen.all()
	if len(list) != 3 || list[0].PID != pid || list[1].PID != 0 || !list[2].Stopped {
		t.Errorf("told %+v", list)
	}
	if info, err := os.Stat(spec.Log); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("log file %v, %v", info, err)
	}
	if err := p.Signal(syscall.SIGUSR1); !errors.Is(err, supervise.ErrNotRunning) {
		t.Errorf("signal to a stopped process: %v", err)
	}
}

func TestRestartsAfterCrash(t *testing.T) {
	s := newSupervisor(t, supervise.Config{})
	spec := shell(t, `echo run; exit 3`)
	p := s.Start(spec)
	testkit.Eventually(t, within, func() error {
		if st := p.Status(); st.Restarts < 3 || st.ExitCode != 3 || st.Exit != "exit status 3" {
			return fmt.Errorf("status %+v", st)
		}
		return nil
	})
	p.Stop(context.Background())
}

func TestBackoffDoublesAndStartsAnew(t *testing.T) {
	clock := testkit.NewClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	s := newSupervisor(t, supervise.Config{Clock: clock, MinBackoff: time.Second, MaxBackoff: 4 * time.Second, StableAfter: time.Minute})
	dir := t.TempDir()
	// It runs as long as the file "stay" exists.
	spec := shell(t, `while [ -e `+dir+`/stay ]; do sleep 0.02; done; exit 1`)
	p := s.Start(spec)
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second} {
		clock.WaitFor(t, 1)
		if got, _ := clock.NextIn(); got != want {
			t.Errorf("backoff %s, want %s", got, want)
		}
		clock.Advance(want)
	}
	clock.WaitFor(t, 1)
	testkit.WriteFile(t, filepath.Join(dir, "stay"), nil)
	clock.Advance(4 * time.Second)
	testkit.Eventually(t, within, func() error {
		if p.Status().PID == 0 {
			return errors.New("does not run")
		}
		return nil
	})
	clock.Advance(time.Minute)
	if err := os.Remove(filepath.Join(dir, "stay")); err != nil {
		t.Fatal(err)
	}
	clock.WaitFor(t, 1)
	if got, _ := clock.NextIn(); got != time.Second {
		t.Errorf("backoff after a stable run: %s", got)
	}
	p.Stop(context.Background())
}

func TestCannotStart(t *testing.T) {
	s := newSupervisor(t, supervise.Config{MinBackoff: time.Hour})
	p := s.Start(supervise.Spec{Name: "none", Path: "/does/not/exist", Log: filepath.Join(t.TempDir(), "log"), Grace: within})
	testkit.Eventually(t, within, func() error {
		if st := p.Status(); st.ExitCode != -1 || !strings.Contains(st.Exit, "no such file") {
			return fmt.Errorf("status %+v", st)
		}
		return nil
	})
	p.Stop(context.Background()) // does not wait for the backoff
}

func TestStubbornIsKilledWithItsGroup(t *testing.T) {
	s := newSupervisor(t, supervise.Config{})
	spec := shell(t, `trap '' TERM; sleep 1000 & echo child $!; while :; do sleep 0.05; done`)
	spec.Grace = 50 * time.Millisecond
	p := s.Start(spec)
	testkit.Eventually(t, within, logContains(spec.Log, "child "))
	pid, child := pidOf(t, p), childOf(t, spec.Log)
	p.Stop(context.Background())
	// A killed process without a parent takes a moment to end.
	testkit.Eventually(t, within, func() error {
		if exists(pid) || exists(child) {
			return fmt.Errorf("leader runs: %t, its child runs: %t", exists(pid), exists(child))
		}
		return nil
	})
}

func TestGroupOfCrashedLeaderIsKilled(t *testing.T) {
	s := newSupervisor(t, supervise.Config{MinBackoff: time.Hour})
	spec := shell(t, `sleep 1000 & echo child $!; exit 1`)
	p := s.Start(spec)
	testkit.Eventually(t, within, func() error {
		if p.Status().ExitCode != 1 {
			return errors.New("has not ended")
		}
		return nil
	})
	child := childOf(t, spec.Log)
	testkit.Eventually(t, within, func() error {
		if exists(child) {
			return errors.New("what it left behind still runs")
		}
		return nil
	})
	p.Stop(context.Background())
}

func childOf(t *testing.T, log string) int {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "child ")
	pid, err := strconv.Atoi(strings.Fields(text)[0])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// parent supervises two processes, prints their pids and waits to be killed.
func parent() {
	dir, err := os.MkdirTemp("", "supervise")
	if err != nil {
		os.Exit(1)
	}
	s := supervise.New(supervise.Config{Log: nil, Changed: func(st supervise.Status) {
		if st.PID > 0 {
			fmt.Println(st.PID)
		}
	}})
	for _, name := range []string{"a", "b"} {
		s.Start(supervise.Spec{Name: name, Path: "/bin/sleep", Args: []string{"1000"}, Log: filepath.Join(dir, name)})
	}
	select {}
}

// TestChildrenDieWithTheirParent kills a supervising process with SIGKILL.
func TestChildrenDieWithTheirParent(t *testing.T) {
	if _, err := os.Stat("/bin/sleep"); err != nil {
		t.Skip("no /bin/sleep")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SUPERVISE_TEST_PARENT=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for lines := bufio.NewScanner(out); len(pids) < 2 && lines.Scan(); {
		pid, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if len(pids) != 2 {
		t.Fatalf("only %d children", len(pids))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, pid := range pids {
		testkit.Eventually(t, within, func() error {
			if exists(pid) {
				return fmt.Errorf("child %d outlives its parent", pid)
			}
			return nil
		})
	}
}

// TestStampedOutput has lines of a Stamped process begin with their time, and a process that writes to a full disk go
// on.
func TestStampedOutput(t *testing.T) {
	s := newSupervisor(t, supervise.Config{})
	spec := shell(t, `printf 'one\ntw'; sleep 0.05; printf 'o\n' >&2; while :; do sleep 0.05; done`)
	spec.Stamped = true
	p := s.Start(spec)
	defer p.Stop(context.Background())
	testkit.Eventually(t, within, logContains(spec.Log, "two\n"))
	text, err := os.ReadFile(spec.Log)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		stamp, rest, _ := strings.Cut(line, " ")
		if _, err := time.Parse(supervise.StampFormat, stamp); err != nil || rest != []string{"one", "two"}[i] {
			t.Errorf("line %q: %v", line, err)
		}
	}

	full := shell(t, `echo lost && echo lost >&2 && touch "$0"; while :; do sleep 0.05; done`)
	reached := filepath.Join(t.TempDir(), "reached")
	full.Args, full.Log, full.Stamped = append(full.Args, reached), "/dev/full", true
	q := s.Start(full)
	defer q.Stop(context.Background())
	testkit.Eventually(t, within, func() error { _, err := os.Stat(reached); return err })
}
