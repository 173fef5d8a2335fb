package local

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/supervise"
)

// TestAnEnvoyThatRunsAgainIsTold has a shell for the agent, which starts a second child after the first one.
func TestAnEnvoyThatRunsAgainIsTold(t *testing.T) {
	agent := exec.Command("sh", "-c", "sleep 60; sleep 60")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	child := func(not int) (pid int) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() (err error) {
			if pid, err = strconv.Atoi(childOf(agent.Process.Pid)); err == nil && pid == not {
				err = fmt.Errorf("process %d still runs", not)
			}
			return err
		})
		return pid
	}
	shown := &lines{}
	p := &plan.Pod{Name: "web-0", Namespace: "shop", Agent: &plan.Agent{Process: plan.Process{Name: "web-0.shop/istio-proxy"}}}
	n := &Node{cfg: Config{Console: shown, Plan: &plan.Plan{Pods: []*plan.Pod{p}}}, statuses: newStatuses()}
	n.statuses.setProcess(supervise.Status{Name: p.Agent.Name, PID: agent.Process.Pid})

	first, seen := child(0), map[*plan.Pod]envoyRun{}
	n.lookAtEnvoys(seen)
	n.lookAtEnvoys(seen)
	if len(*shown) > 0 {
		t.Errorf("told %q before", *shown)
	}
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := child(first)
	n.lookAtEnvoys(seen)
	n.lookAtEnvoys(seen)
	if want := "Envoy of Pod web-0.shop has ended by itself and runs again; `fairlead logs web-0.shop` shows why"; !slices.Equal(*shown,
		[]string{want}) {
		t.Errorf("told %q, want %q", *shown, want)
	}
	_ = agent.Process.Kill()
	_ = unix.Kill(second, unix.SIGKILL)
	_ = agent.Wait()
}
