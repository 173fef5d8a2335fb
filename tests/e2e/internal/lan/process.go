package lan

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ending is how long a process may take from SIGTERM to its end.
const ending = 15 * time.Second

// user is what a program runs as.
type user struct {
	uid      int
	netAdmin bool
}

// process is a program that runs on a host.
type process struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	ended chan struct{}
	err   error
}

// start runs a program on the host until the test ends, as root or as a user with no capability or with that to administer the network. Its
// log is printed if the test fails.
func (h *Host) start(as user, env []string, path string, args ...string) *process {
	h.t.Helper()
	all := []string{"netns", "exec", h.namespace}
	if as.uid != 0 {
		all = append(all, "setpriv", "--reuid", fmt.Sprint(as.uid), "--regid", fmt.Sprint(as.uid), "--clear-groups")
	}
	if as.netAdmin {
		all = append(all, "--inh-caps", "+net_admin", "--ambient-caps", "+net_admin")
	}
	p := &process{t: h.t, name: filepath.Base(path) + " on " + h.namespace, ended: make(chan struct{})}
	p.cmd = exec.Command("ip", append(append(all, path), args...)...)
	p.cmd.Env = append(os.Environ(), env...)
	log, err := os.Create(filepath.Join(h.t.TempDir(), filepath.Base(path)+".log"))
	if err != nil {
		h.t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	h.t.Cleanup(func() {
		p.stop()
		log.Close()
		if h.t.Failed() {
			h.t.Logf("last lines of %s:\n%s", p.name, tail(log.Name(), 50))
		}
	})
	return p
}

// stop ends the process, and reports if it does not end well. It may be called again.
func (p *process) stop() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(ending):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	if p.err != nil {
		p.t.Errorf("%s: %v", p.name, p.err)
		p.err = nil
	}
}

// kill ends the process without giving it a chance.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("kill %s: %v", p.name, err)
	}
	<-p.ended
	p.err = nil // as it was meant
}

func tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
