package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fairlead.dev/services/installer/internal/local/plan"
)

// envoysPeriod is how often watchEnvoys looks at the agents' Envoys.
const envoysPeriod = time.Second

// envoyRun is an agent's process with that of its Envoy.
type envoyRun struct {
	agent int
	envoy string
}

// watchEnvoys prints that an agent has started its Envoy again, which has ended by itself.
func (n *Node) watchEnvoys(ctx context.Context) error {
	seen := map[*plan.Pod]envoyRun{}
	for n.wait(ctx, envoysPeriod) {
		n.lookAtEnvoys(seen)
	}
	return nil
}

// lookAtEnvoys is one look of watchEnvoys. It keeps in seen what runs.
func (n *Node) lookAtEnvoys(seen map[*plan.Pod]envoyRun) {
	for _, p := range n.cfg.Plan.Pods {
		if p.Agent == nil || p.Agent.NoEnvoy {
			continue
		}
		agent := n.statuses.get(p.Agent.Name).PID
		before, now := seen[p], envoyRun{agent, childOf(agent)}
		if now.envoy == "" {
			continue
		}
		seen[p] = now
		if before.agent == now.agent && before.envoy != now.envoy {
			n.cfg.Console.Line(fmt.Sprintf("Envoy of Pod %s has ended by itself and runs again; `fairlead logs %s` shows why", p.ID(), p.ID()))
		}
	}
}

// childOf returns the process that a process has started, "" if there is none or the system does not tell.
func childOf(pid int) string {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is a good one
	for _, list := range lists {
		raw, _ := os.ReadFile(list) // a thread that is gone has none
		if fields := strings.Fields(string(raw)); len(fields) > 0 {
			return fields[0]
		}
	}
	return ""
}
