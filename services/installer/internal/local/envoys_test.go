package local

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"

	"fairlead.dev/services/installer/internal/local/console"
	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/supervise"
)

// screen is a console that several goroutines use.
type screen struct {
	mu    sync.Mutex
	lines []string
}

func (s *screen) Show([]console.Row) {}

func (s *screen) Line(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

// TestAnEnvoyThatRunsAgainIsTold has a shell for the agent, which starts a second child after the first one.
func TestAnEnvoyThatRunsAgainIsTold(t *testing.T) {
	agent := exec.Command("sh", "-c", "sleep 60; sleep 60")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		second, err := strconv.Atoi(childOf(agent.Process.Pid))
		_ = agent.Process.Kill()
		if err == nil {
			_ = unix.Kill(second, unix.SIGKILL)
		}
		_ = agent.Wait()
	}()
	shown := &screen{}
	p := &plan.Pod{Name: "web-0", Namespace: "shop", Agent: &plan.Agent{Process: plan.Process{Name: "web-0.shop/istio-proxy"}}}
	n := &Node{cfg: Config{Clock: clock.Real(), Console: shown, Plan: &plan.Plan{Pods: []*plan.Pod{p}}}, statuses: newStatuses()}
	n.statuses.setProcess(supervise.Status{Name: p.Agent.Name, PID: agent.Process.Pid})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go n.watchEnvoys(ctx)
	time.Sleep(2 * envoysPeriod)
	if told := shown.text(); told != "" {
		t.Errorf("told %q before", told)
	}
	child, err := strconv.Atoi(childOf(agent.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(child, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 5*envoysPeriod, func() error {
		if told := shown.text(); told != "Envoy of Pod web-0.shop has ended by itself and runs again; `fairlead logs web-0.shop` shows why" {
			return fmt.Errorf("told %q", told)
		}
		return nil
	})
}
