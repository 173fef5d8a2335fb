package local

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/proto/fairlead/runstate"
)

func TestPodsToRestart(t *testing.T) {
	state := &runstate.State{Pods: []runstate.Pod{
		{Name: "web-0", Namespace: "shop", Workload: "web"}, {Name: "web-1", Namespace: "shop", Workload: "web"},
		{Name: "db-0", Namespace: "data", Workload: "db"},
	}}
	for names, want := range map[string]string{
		"deploy/web": "web-0.shop web-1.shop", "web-1": "web-1.shop", "db-0.data web-0 web-0": "web-0.shop db-0.data",
	} {
		pods, err := podsNamed(state, strings.Fields(names), "")
		if got := strings.Join(lists.Map(pods, (*runstate.Pod).ID), " "); err != nil || got != want {
			t.Errorf("%s: %s, %v", names, got, err)
		}
	}
	if _, err := podsNamed(state, []string{"web-o"}, ""); err == nil || !strings.Contains(err.Error(), "web-0.shop") {
		t.Errorf("a wrong name: %v", err)
	}
}

// TestARestartIsOver: every process of the Pod must be another.
func TestARestartIsOver(t *testing.T) {
	pod := func(app, agent int) *runstate.Pod {
		return &runstate.Pod{Containers: []runstate.Container{{Process: runstate.Process{PID: app}}},
			Agent: &runstate.Agent{Process: runstate.Process{PID: agent}}}
	}
	for _, tc := range []struct {
		now  *runstate.Pod
		want bool
	}{{pod(1, 2), false}, {pod(3, 2), false}, {pod(3, 0), false}, {pod(3, 4), true}} {
		if got := allRestarted(pod(1, 2), tc.now); got != tc.want {
			t.Errorf("%+v: %v", tc.now, got)
		}
	}
}
