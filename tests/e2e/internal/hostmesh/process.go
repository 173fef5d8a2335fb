package hostmesh

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/tests/internal/netns"
)

// ending is how long a process may take from SIGTERM to its end.
const ending = time.Minute

// agent is the node-agent of a host.
type agent struct {
	*netns.Process

	t *testing.T
}

// start runs node-agent on the host until the test ends, as the proxies' user, with no capability or with that to
// administer the network. Its log is printed if the test fails.
func (h *Host) start(netAdmin bool, env []string, args ...string) *agent {
	h.t.Helper()
	log := filepath.Join(h.t.TempDir(), "node-agent.log")
	program := netns.Program{Name: "node-agent on " + h.machine.Name, Path: h.agent, Args: args, Env: env, UID: ProxyUID, Stdout: log,
		Stderr: log}
	if netAdmin {
		program.Capabilities = []uintptr{unix.CAP_NET_ADMIN}
	}
	started, err := h.machine.Start(program)
	if err != nil {
		h.t.Fatal(err)
	}
	a := &agent{Process: started, t: h.t}
	h.t.Cleanup(func() {
		a.stop()
		if h.t.Failed() {
			h.t.Logf("end of the log of %s:\n%s", a.Name, a.LogTail())
		}
	})
	return a
}

// stop ends the process, and reports if it does not end well. It may be called again.
func (a *agent) stop() {
	a.t.Helper()
	if err := a.Stop(ending); err != nil {
		a.t.Error(err)
	}
}
