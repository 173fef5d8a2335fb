// Package runstate is the file state.json of a run directory, by which `fairlead up` tells other programs what runs.
// The command line reads it, and so do tests and scripts.
package runstate

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// File is the path of state.json in a run directory.
func File(runDir string) string { return filepath.Join(runDir, "state.json") }

// Read reads the state of a run directory, whether its mesh runs or not.
func Read(runDir string) (*State, error) {
	b, err := os.ReadFile(File(runDir))
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	s := &State{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("state %s: %w", File(runDir), err)
	}
	return s, nil
}

// State is the content of state.json. Fields are only ever added: other versions of fairlead read it.
type State struct {
	// PID of `fairlead up`.
	PID int `json:"pid"`
	// Birth is when PID started, in clock ticks since the machine did: another process with that PID has another one.
	Birth     string    `json:"birth"`
	Version   string    `json:"version"`
	StartedAt time.Time `json:"startedAt"`
	RunDir    string    `json:"runDir"`
	// Ready is true from the time when everything was ready at once.
	Ready        bool   `json:"ready"`
	TrustDomain  string `json:"trustDomain"`
	RootCertFile string `json:"rootCertFile"`
	// AdminTokenFile holds the CLI's token.
	AdminTokenFile string `json:"adminTokenFile"`
	// ConfigWatcherAddress serves ConfigStoreService and FleetService.
	ConfigWatcherAddress string    `json:"configWatcherAddress"`
	EnvoyBinary          string    `json:"envoyBinary"`
	ConfigPaths          []string  `json:"configPaths"`
	Services             []Service `json:"services"`
	Pods                 []Pod     `json:"pods"`
	// URLs are those of the gateways.
	URLs []URL `json:"urls"`
}

// Process is a process of the mesh.
type Process struct {
	Name string `json:"name"`
	// PID is 0 while it does not run.
	PID      int    `json:"pid"`
	Birth    string `json:"birth,omitempty"`
	Path     string `json:"path"`
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
	// Identity is its SPIFFE id.
	Identity string `json:"identity"`
}

// Pod is one workload.
type Pod struct {
	Name           string            `json:"name"`
	Namespace      string            `json:"namespace"`
	Workload       string            `json:"workload"`
	ServiceAccount string            `json:"serviceAccount"`
	Labels         map[string]string `json:"labels"`
	IP             string            `json:"ip"`
	// Kind is "sidecar", "gateway", "proxyless" or "plain".
	Kind string `json:"kind"`
	// Resting is true for a Pod that its Deployment is scaled below: nothing of it runs.
	Resting bool `json:"resting,omitempty"`
	// Ready is the condition in the Pod's written status.
	Ready      bool        `json:"ready"`
	NodeID     string      `json:"nodeID,omitempty"`
	Identity   string      `json:"identity"`
	Containers []Container `json:"containers"`
	Agent      *Agent      `json:"agent,omitempty"`
}

// Container is one application process.
type Container struct {
	Process
	Container string `json:"container"`
	// Ports maps container port numbers to the addresses on which the application listens.
	Ports map[string]string `json:"ports"`
}

// Agent is a Pod's node-agent.
type Agent struct {
	Process
	StateDir      string `json:"stateDir"`
	AdminSocket   string `json:"adminSocket"`
	StatusAddress string `json:"statusAddress"`
	ReadyAddress  string `json:"readyAddress"`
	TokenFile     string `json:"tokenFile"`
}

// URL is an address of a gateway, for requests from outside of the mesh.
type URL struct {
	Pod   string   `json:"pod"`
	URL   string   `json:"url"`
	Hosts []string `json:"hosts"`
}

// ID is "<pod>.<namespace>".
func (p *Pod) ID() string { return p.Name + "." + p.Namespace }

// Processes lists all processes.
func (s *State) Processes() []Process {
	var list []Process
	for _, svc := range s.Services {
		list = append(list, svc.Process)
	}
	for _, pod := range s.Pods {
		for _, c := range pod.Containers {
			list = append(list, c.Process)
		}
		if pod.Agent != nil {
			list = append(list, pod.Agent.Process)
		}
	}
	return list
}
