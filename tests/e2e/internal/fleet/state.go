package fleet

import (
	"fmt"

	"fairlead.dev/proto/fairlead/runstate"
)

// State is what `fairlead up` says of its mesh.
type State struct{ *runstate.State }

// Service is one of Fairlead's services.
type Service = runstate.Service

// Pod is one workload.
type Pod struct{ *runstate.Pod }

func readState(runDir string) (State, error) {
	s, err := runstate.Read(runDir)
	return State{s}, err
}

// Service finds a service process by name.
func (s State) Service(name string) (*Service, error) {
	for i := range s.Services {
		if s.Services[i].Name == name {
			return &s.Services[i], nil
		}
	}
	return nil, fmt.Errorf("no service %q runs", name)
}

// Pod finds a Pod by name.
func (s State) Pod(name string) (*Pod, error) {
	for i := range s.Pods {
		if s.Pods[i].Name == name {
			return &Pod{&s.Pods[i]}, nil
		}
	}
	return nil, fmt.Errorf("no Pod %q runs", name)
}

// Proxies lists the Pods that have an Envoy.
func (s State) Proxies() []*Pod {
	var list []*Pod
	for i := range s.Pods {
		if s.Pods[i].Agent != nil && s.Pods[i].Agent.AdminSocket != "" {
			list = append(list, &Pod{&s.Pods[i]})
		}
	}
	return list
}
