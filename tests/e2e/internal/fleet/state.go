package fleet

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// State is the part of `fairlead up`'s state.json that the tests rely on.
type State struct {
	PID          int       `json:"pid"`
	Ready        bool      `json:"ready"`
	RootCertFile string    `json:"rootCertFile"`
	Services     []Service `json:"services"`
	Pods         []Pod     `json:"pods"`
	URLs         []struct {
		Pod string `json:"pod"`
		URL string `json:"url"`
	} `json:"urls"`
}

// Process is a process of the mesh.
type Process struct {
	Name     string `json:"name"`
	PID      int    `json:"pid"`
	Log      string `json:"log"`
	Ready    bool   `json:"ready"`
	Restarts int    `json:"restarts"`
}

// Service is one of Fairlead's services.
type Service struct {
	Process
	Program     string `json:"program"`
	GRPCAddress string `json:"grpcAddress"`
	OpsAddress  string `json:"opsAddress"`
	Identity    string `json:"identity"`
}

// Pod is one workload.
type Pod struct {
	Name       string `json:"name"`
	Namespace  string `json:"namespace"`
	Workload   string `json:"workload"`
	IP         string `json:"ip"`
	Kind       string `json:"kind"`
	Ready      bool   `json:"ready"`
	NodeID     string `json:"nodeID"`
	Identity   string `json:"identity"`
	Containers []struct {
		Process
		Ports map[string]string `json:"ports"`
	} `json:"containers"`
	Agent *struct {
		Process
		AdminSocket   string `json:"adminSocket"`
		StatusAddress string `json:"statusAddress"`
		ReadyAddress  string `json:"readyAddress"`
		TokenFile     string `json:"tokenFile"`
	} `json:"agent"`
}

// ID is "<pod>.<namespace>".
func (p *Pod) ID() string { return p.Name + "." + p.Namespace }

func readState(runDir string) (*State, error) {
	b, err := os.ReadFile(filepath.Join(runDir, "state.json"))
	if err != nil {
		return nil, err
	}
	s := &State{}
	return s, json.Unmarshal(b, s)
}

// Service finds a service process by name.
func (s *State) Service(name string) (*Service, error) {
	for i := range s.Services {
		if s.Services[i].Name == name {
			return &s.Services[i], nil
		}
	}
	return nil, fmt.Errorf("no service %q runs", name)
}

// Pod finds a Pod by name.
func (s *State) Pod(name string) (*Pod, error) {
	for i := range s.Pods {
		if s.Pods[i].Name == name {
			return &s.Pods[i], nil
		}
	}
	return nil, fmt.Errorf("no Pod %q runs", name)
}

// Proxies lists the Pods that have an Envoy.
func (s *State) Proxies() []*Pod {
	var list []*Pod
	for i := range s.Pods {
		if s.Pods[i].Agent != nil && s.Pods[i].Agent.AdminSocket != "" {
			list = append(list, &s.Pods[i])
		}
	}
	return list
}
