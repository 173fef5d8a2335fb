package rundir

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/installer/internal/proxyname"
)

// State is the content of state.json. Fields are only ever added: other versions of fairlead read it.
type State struct {
	// PID of `fairlead up`.
	PID int `json:"pid"`
	// Birth is of PID, see func Birth.
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
	// Kind is a plan.Kind: "sidecar", "gateway", "proxyless" or "plain".
	Kind string `json:"kind"`
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

// Alive reports whether the `fairlead up` that wrote the state still runs.
func (s *State) Alive() bool { return s.Birth != "" && Birth(s.PID) == s.Birth }

// Write replaces state.json atomically.
func (s *State) Write(l Layout) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if err := fileio.Write(l.State(), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// Read reads the state of a run directory, whether its mesh runs or not.
func Read(dir string) (*State, error) {
	name := Layout{Dir: dir}.State()
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	s := &State{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("state %s: %w", name, err)
	}
	return s, nil
}

// ErrNoMesh says that no mesh runs on the run directory.
var ErrNoMesh = errors.New("no mesh runs there")

// Open reads the state of a running mesh.
func Open(dir string) (*State, error) {
	s, err := Read(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("run directory %s: %w; start one with `fairlead up --run-dir %s`, or name the right --run-dir", dir, ErrNoMesh, dir)
	case err != nil:
		return nil, err
	case !s.Alive():
		return nil, fmt.Errorf("run directory %s: %w: `fairlead up` with pid %d has ended; start it again with `fairlead up --run-dir %s`", dir, ErrNoMesh, s.PID, dir)
	}
	return s, nil
}

// Proxy returns the Pod with an agent that a name means (package proxyname). namespace may be empty.
func (s *State) Proxy(name, namespace string) (*Pod, error) {
	wanted, err := proxyname.Parse(name, namespace)
	if err != nil {
		return nil, err
	}
	var pods []*Pod
	var names []proxyname.Proxy
	for i := range s.Pods {
		if p := &s.Pods[i]; p.Agent != nil {
			pods = append(pods, p)
			names = append(names, proxyname.Proxy{Name: p.Name, Namespace: p.Namespace, Workload: p.Workload})
		}
	}
	i, err := wanted.One(names)
	if err != nil {
		return nil, err
	}
	return pods[i], nil
}

// Abs returns the absolute path of a run directory.
func Abs(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("run directory: %w", err)
	}
	return abs, nil
}
