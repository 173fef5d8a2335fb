package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/process"
)

// Ready is how long a mesh may take from its start until everything is ready.
const Ready = 2 * time.Minute

// errEnded is reported by whoever waits for a mesh that is gone.
var errEnded = errors.New("the mesh is gone")

// Mesh is a running mesh.
type Mesh struct {
	// ConfigDir holds the files that config-watcher follows.
	ConfigDir string

	bin    Binaries
	gates  *gates
	runDir string
	output string
	up     *process.Process
}

// Options of a mesh.
type Options struct {
	// Files are copied into the configuration directory.
	Files []string
	// Closed are the gates that are closed at first; see Mesh.CloseGate.
	Closed []string
	// Args are further arguments of `fairlead up`.
	Args []string
	// Env are variables, NAME=value, for programs such as "xds-server".
	Env map[string][]string
	// Flags are further arguments of such programs.
	Flags map[string][]string
}

// Start starts a mesh, without waiting for anything. The test's end stops it, and asserts that no proxy rejected an
// update, that nothing was left running, and that `fairlead up` ended well.
func Start(t *testing.T, b Binaries, o Options) *Mesh {
	t.Helper()
	// Not t.TempDir: its paths are long for unix sockets, and logs shall outlive a failed test.
	dir, err := os.MkdirTemp("", "fl")
	if err != nil {
		t.Fatal(err)
	}
	m := &Mesh{
		ConfigDir: filepath.Join(dir, "config"),
		bin:       b,
		runDir:    filepath.Join(dir, "run"),
		output:    filepath.Join(dir, "up.log"),
	}
	if m.gates, err = newGates(filepath.Join(dir, "bin"), filepath.Join(dir, "gates"), b, o.Env, o.Flags); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(m.ConfigDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range o.Files {
		m.copyFile(t, f)
	}
	for _, name := range o.Closed {
		m.CloseGate(t, name)
	}
	// Cleanups run in reverse order: stop first, then keep or remove the files.
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("files of the mesh are kept in %s", dir)
			t.Log(process.Tails(m.output) + process.Tails(m.Path("logs", "*")))
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	m.start(t, o.Args)
	return m
}

// start starts `fairlead up`.
func (m *Mesh) start(t *testing.T, args []string) {
	t.Helper()
	var err error
	if m.up, err = process.Start(process.Program{
		Name: "`fairlead up`", Path: filepath.Join(m.gates.bin, "fairlead"), Stdout: m.output, Stderr: m.output,
		Args: append([]string{
			"up", "--run-dir", m.runDir, "--bin-dir", m.gates.bin, "--envoy", m.bin.Envoy, "--loopback-range", "auto", "--drain", "3s", "-f",
			m.ConfigDir,
		}, args...),
	}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.stop(t) })
}

// stop asserts what must hold at the end of every test, and ends the mesh.
func (m *Mesh) stop(t *testing.T) {
	t.Helper()
	if m.up.Running() {
		m.AssertNothingRejected(t)
	}
	m.gates.release()
	m.Stop(t)
}

// endWithin is how long `fairlead up` may take from SIGINT to its end.
const endWithin = 2 * time.Minute

// Stop interrupts `fairlead up`, as Ctrl-C does, and asserts that it ends well with no process left. It may be called
// more than once.
func (m *Mesh) Stop(t *testing.T) {
	t.Helper()
	if m.up.Running() {
		if err := m.up.StopBy(syscall.SIGINT, endWithin); err != nil {
			t.Error(err)
			m.up.KillGroup()
		}
	} else if m.up.Died() != nil && m.up.Err() != nil { // without an error something else has stopped it, as `fairlead down`
		t.Errorf("`fairlead up`: %v", m.up.Err())
	}
	for _, p := range m.Running() {
		t.Errorf("a process was left running: %s", p)
	}
}

// Running lists the processes of this mesh that exist, Envoys included, by pid and command line. They are known by its
// directory, which is in the arguments of all of them.
func (m *Mesh) Running() []string {
	var list []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		b, err := os.ReadFile(file)
		line := strings.ReplaceAll(string(b), "\x00", " ")
		if err == nil && strings.Contains(line, filepath.Dir(m.runDir)+"/") {
			list = append(list, filepath.Base(filepath.Dir(file))+" "+line)
		}
	}
	return list
}

// KillUp sends SIGKILL to `fairlead up` itself.
func (m *Mesh) KillUp(t *testing.T) {
	t.Helper()
	if !m.up.Running() {
		t.Fatalf("`fairlead up` has ended: %v", m.up.Err())
	}
	m.up.Kill()
}

// WaitReady waits until everything is ready.
func (m *Mesh) WaitReady(t *testing.T) {
	t.Helper()
	m.Eventually(t, Ready, func() error {
		s, err := readState(m.runDir)
		if err != nil {
			return err
		}
		var waiting []string
		for _, svc := range s.Services {
			if !svc.Ready {
				waiting = append(waiting, svc.Name)
			}
		}
		if s.Ready && len(waiting) == 0 {
			return nil
		}
		for _, p := range s.Pods {
			if !p.Ready {
				waiting = append(waiting, p.ID())
			}
		}
		return fmt.Errorf("not ready: %s", strings.Join(waiting, ", "))
	})
}

// Eventually waits for a condition, and fails at once if the mesh has ended meanwhile.
func (m *Mesh) Eventually(t *testing.T, within time.Duration, condition func() error) {
	t.Helper()
	var gone error
	testkit.Eventually(t, within, func() error {
		if m.up.Running() {
			return condition()
		}
		gone = fmt.Errorf("`fairlead up`: %w", errors.Join(errEnded, m.up.Err()))
		return nil
	})
	if gone != nil {
		t.Fatal(gone)
	}
}

// RunDir is the run directory of the mesh.
func (m *Mesh) RunDir() string { return m.runDir }

// State reads what runs now.
func (m *Mesh) State(t *testing.T) State {
	t.Helper()
	s, err := readState(m.runDir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Pod finds a Pod by name.
func (m *Mesh) Pod(t *testing.T, name string) *Pod {
	t.Helper()
	p, err := m.State(t).Pod(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// From is a client that acts as the application of the Pod: it calls through the Pod's sidecar.
func (m *Mesh) From(t *testing.T, pod string) *Client {
	t.Helper()
	return newClient(&url.URL{Scheme: "http", Host: net.JoinHostPort(m.Pod(t, pod).IP, "15080")}, true)
}

// URL is the way in through the gateway.
func (m *Mesh) URL(t *testing.T) string {
	t.Helper()
	s := m.State(t)
	if len(s.URLs) == 0 {
		t.Fatal("the mesh has no gateway")
	}
	return strings.TrimSuffix(s.URLs[0].URL, "/")
}

// Kill sends SIGKILL to a service process, such as "xds-server-0". Close its gate first, or it comes back.
func (m *Mesh) Kill(t *testing.T, service string) {
	t.Helper()
	s, err := m.State(t).Service(service)
	if err != nil {
		t.Fatal(err)
	}
	// The state is written a moment after a process has ended: its number may be that of the one before.
	m.Eventually(t, testkit.Patience, func() error {
		if s, err = m.State(t).Service(service); err == nil && s.PID == 0 {
			err = fmt.Errorf("%s does not run", service)
		}
		if err != nil {
			return err
		}
		return syscall.Kill(s.PID, syscall.SIGKILL)
	})
	m.Eventually(t, testkit.Patience, func() error {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", s.GRPCAddress)
		if err == nil {
			conn.Close()
			return fmt.Errorf("%s still answers", service)
		}
		return nil
	})
}

// SignalAgent sends a signal to the agent of a Pod.
func (m *Mesh) SignalAgent(t *testing.T, pod string, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(m.Pod(t, pod).Agent.PID, sig); err != nil {
		t.Fatalf("signal %s: %v", pod, err)
	}
}

// CloseGate keeps a program from starting: "ca", "config-watcher", "xds-server", or "node-agent.<pod>". What runs
// already is not affected.
func (m *Mesh) CloseGate(t *testing.T, program string) {
	t.Helper()
	if err := m.gates.Close(program); err != nil {
		t.Fatal(err)
	}
}

// OpenGate lets a program start.
func (m *Mesh) OpenGate(t *testing.T, program string) {
	t.Helper()
	if err := m.gates.Open(program); err != nil {
		t.Fatal(err)
	}
}

// WriteConfig writes a file of the configuration directory, atomically.
func (m *Mesh) WriteConfig(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(m.ConfigDir, name)
	if err := fileio.Write(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (m *Mesh) copyFile(t *testing.T, from string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	m.WriteConfig(t, filepath.Base(from), string(b))
}

// Log is what a service has logged up to now.
func (m *Mesh) Log(t *testing.T, service string) string {
	t.Helper()
	s, err := m.State(t).Service(service)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(s.Log)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Output is what `fairlead up` has printed.
func (m *Mesh) Output(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(m.output)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Path is that of a file in the run directory.
func (m *Mesh) Path(elements ...string) string {
	return filepath.Join(append([]string{m.runDir}, elements...)...)
}

// CLI runs `fairlead` against the mesh and returns its exit code and output.
func (m *Mesh) CLI(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	answer := process.MustAsk(t, m.Command(ctx, args...))
	return answer.Code, answer.Out, answer.Said
}

// Command is a command of fairlead about this mesh, which the caller starts and ends.
func (m *Mesh) Command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(m.gates.bin, "fairlead"), append(args, "--run-dir", m.runDir)...)
}

// WaitPods waits until these Pods are ready.
func (m *Mesh) WaitPods(t *testing.T, names ...string) {
	t.Helper()
	m.Eventually(t, Ready, func() error {
		s, err := readState(m.runDir)
		if err != nil {
			return err
		}
		for _, name := range names {
			p, err := s.Pod(name)
			if err != nil {
				return err
			}
			if !p.Ready {
				return fmt.Errorf("%s is not ready", name)
			}
		}
		return nil
	})
}

// WaitProxy waits until the proxy of a Pod says itself that it takes traffic, whatever the rest of the mesh knows.
func (m *Mesh) WaitProxy(t *testing.T, pod string) {
	t.Helper()
	m.Eventually(t, Ready, func() error { return m.Pod(t, pod).ProxyReady(t.Context()) })
}

// WaitRunning waits until a process is past its gate: it has become the program that it is named for.
func (m *Mesh) WaitRunning(t *testing.T, name, program string) {
	t.Helper()
	m.Eventually(t, testkit.Patience, func() error {
		s, err := readState(m.runDir)
		if err != nil {
			return err
		}
		for _, p := range s.Processes() {
			if p.Name != name {
				continue
			}
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
			if err != nil {
				return err
			}
			if filepath.Base(exe) != program {
				return fmt.Errorf("%s is still %s", name, exe)
			}
			return nil
		}
		return fmt.Errorf("there is no process %s", name)
	})
}
