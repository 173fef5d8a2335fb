package lan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/tests/internal/netns"
)

// ending is how long a process may take from SIGTERM to its end.
const ending = time.Minute

// user is what a program runs as.
type user struct {
	uid      int
	netAdmin bool
}

// process is a program that runs on a host.
type process struct {
	*netns.Process

	t *testing.T
}

// start runs a program on the host until the test ends, as root or as a user with no capability or with that to
// administer the network. Its log is printed if the test fails.
func (h *Host) start(as user, env []string, path string, args ...string) *process {
	h.t.Helper()
	log := filepath.Join(h.t.TempDir(), filepath.Base(path)+".log")
	program := netns.Program{Name: filepath.Base(path) + " on " + h.machine.Name, Path: path, Args: args, Env: env, UID: as.uid, Stdout: log, Stderr: log}
	if as.netAdmin {
		program.Capabilities = []uintptr{unix.CAP_NET_ADMIN}
	}
	started, err := h.machine.Start(program)
	if err != nil {
		h.t.Fatal(err)
	}
	p := &process{Process: started, t: h.t}
	h.t.Cleanup(func() {
		p.stop()
		if h.t.Failed() {
			h.t.Logf("last lines of %s:\n%s", p.Name, tail(log, 50))
		}
	})
	return p
}

// stop ends the process, and reports if it does not end well. It may be called again.
func (p *process) stop() {
	p.t.Helper()
	if err := p.Stop(ending); err != nil {
		p.t.Error(err)
	}
}

func tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
