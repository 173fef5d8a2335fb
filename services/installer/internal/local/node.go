// Package local runs a mesh on one machine: it is the node, the kubelet and the API server's projection of tokens that
// a cluster would be.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/process"

	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/local/console"
	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/local/supervise"
	"fairlead.dev/services/installer/internal/local/tokens"
)

// Config of a Node. All fields are required unless said otherwise.
type Config struct {
	Plan   *plan.Plan
	Layout rundir.Layout
	Clock  clock.Clock
	Log    *slog.Logger
	// Console shows what goes on.
	Console console.Console
	// EnvoyBinary and ConfigPaths are told to other commands.
	EnvoyBinary string
	ConfigPaths []string
	// ReadyFile is written when everything is ready, and removed at the end; empty means none.
	ReadyFile string
	// ReadyTimeout ends the run if not everything is ready by then; 0 means to wait for ever.
	ReadyTimeout time.Duration
	// StopTimeout bounds the end; what still runs then is killed.
	StopTimeout time.Duration
}

// RefusedError is an error about what the user wrote.
type RefusedError struct{ Err error }

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// Node runs the plan.
type Node struct {
	cfg       Config
	board     *board
	sup       *supervise.Supervisor
	configAPI *configapi.Client
	// procs is written before the first task starts and by the task that publishes the Pods; it is read when no task
	// runs any more.
	procs map[string]*supervise.Process
	// published is closed when the Pods' objects are part of the mesh.
	published chan struct{}

	writing sync.Mutex // of state.json

	mu    sync.Mutex
	pods  map[string]bool // readiness as written
	ready bool
	fleet fleet
	start time.Time
}

// New makes a node. Nothing runs before Run.
func New(cfg Config) (*Node, error) {
	client, err := configapi.Dial(configapi.Config{
		Address:     cfg.Plan.ConfigWatcher().GRPC.String(),
		RootFile:    cfg.Layout.RootCert(),
		TokenFile:   cfg.Layout.AdminToken(),
		TrustDomain: cfg.Plan.TrustDomain,
	})
	if err != nil {
		return nil, err
	}
	return &Node{
		cfg: cfg, configAPI: client, board: newBoard(),
		procs: map[string]*supervise.Process{}, published: make(chan struct{}),
		pods:  map[string]bool{},
		fleet: newFleet(),
	}, nil
}

// Run starts everything, keeps it running until ctx ends or something fails for good, and then ends it in order:
// gateways, sidecars, applications, services. When it returns no process is left.
func (n *Node) Run(ctx context.Context) error {
	defer n.configAPI.Close()
	n.start = n.cfg.Clock.Now()
	issuer, err := n.prepare()
	if err != nil {
		return err
	}
	n.sup = supervise.New(supervise.Config{Clock: n.cfg.Clock, Log: n.cfg.Log, Changed: n.board.process})
	defer n.sup.Close()
	for _, s := range n.cfg.Plan.Services {
		n.startProcess(s.Process)
	}

	err = process.Run(ctx, n.cfg.Log, n.tasks(issuer)...)
	n.cfg.Console.Line("stopping: proxies drain, then the services end")
	err = errors.Join(err, n.stop(), n.removeReadyFile())
	if err == nil {
		n.cfg.Console.Line("stopped; no process is left")
	}
	return err
}

// tasks is everything that goes on while the mesh runs.
func (n *Node) tasks(issuer *tokens.Files) []process.Task {
	tasks := []process.Task{
		{Name: "tokens", Run: func(ctx context.Context) error {
			return issuer.Run(ctx, func(err error) { n.cfg.Log.Error("tokens were not renewed", "error", err) })
		}},
		{Name: "mesh", Run: n.publish},
		{Name: "fatal exits", Run: n.watchFatal},
		{Name: "state", Run: n.keepState},
		{Name: "fleet", Run: n.observe},
		{Name: "files", Run: n.watchSources},
		{Name: "findings", Run: n.watchFindings},
		{Name: "console", Run: n.show},
		{Name: "ready", Run: n.announce},
	}
	watch := func(name string, run func(context.Context)) {
		tasks = append(tasks, process.Task{Name: "probe " + name, Run: func(ctx context.Context) error {
			run(ctx)
			return nil
		}})
	}
	probe := func(name string, p *plan.Probe) {
		watch(name, func(ctx context.Context) { n.watchReady(ctx, name, p) })
	}
	for _, s := range n.cfg.Plan.Services {
		probe(s.Name, serviceProbe(s))
	}
	for _, p := range n.cfg.Plan.Pods {
		for _, c := range p.Containers {
			watch(c.Name, func(ctx context.Context) { n.watchContainer(ctx, c) })
		}
		if p.Agent != nil {
			probe(p.Agent.Name, agentProbe(p.Agent))
		}
	}
	return tasks
}

// startPods starts the Pods' processes. As on a cluster, where a kubelet runs what the API server tells it to, that
// comes after the mesh knows the Pods: a proxy that came first would be configured as a workload that nobody has
// described.
func (n *Node) startPods() {
	for _, p := range n.podProcesses() {
		n.startProcess(p)
	}
}

func (n *Node) startProcess(p plan.Process) {
	n.procs[p.Name] = n.sup.Start(supervise.Spec{
		Name: p.Name, Path: p.Path, Args: p.Args, Env: p.Env, Dir: p.Dir, Log: p.Log, Grace: p.Grace,
	})
}

// processes lists all processes of the plan.
func (n *Node) processes() []plan.Process {
	var list []plan.Process
	for _, s := range n.cfg.Plan.Services {
		list = append(list, s.Process)
	}
	return append(list, n.podProcesses()...)
}

func (n *Node) podProcesses() []plan.Process {
	var list []plan.Process
	for _, p := range n.cfg.Plan.Pods {
		for _, c := range p.Containers {
			list = append(list, c.Process)
		}
		if p.Agent != nil {
			list = append(list, p.Agent.Process)
		}
	}
	return list
}

// watchFatal ends the run when one of Fairlead's own programs refuses its flags: starting it again would change
// nothing.
func (n *Node) watchFatal(ctx context.Context) error {
	own := map[string]string{}
	for _, s := range n.cfg.Plan.Services {
		own[s.Name] = s.Log
	}
	for _, p := range n.cfg.Plan.Pods {
		if p.Agent != nil {
			own[p.Agent.Name] = p.Agent.Log
		}
	}
	for ctx.Err() == nil {
		changed := n.board.Changed()
		for name, e := range n.board.Snapshot() {
			log, ok := own[name]
			if ok && e.PID == 0 && e.ExitCode == process.ExitUsage {
				return fmt.Errorf("%s does not accept its flags:\n%s\nsee %s; are all binaries of one build?", name, lastLines(log, 3), log)
			}
		}
		waitFor(ctx, changed)
	}
	return nil
}

// setPodReady notes what was written of a Pod.
func (n *Node) setPodReady(id string, ready bool) {
	n.mu.Lock()
	n.pods[id] = ready
	n.mu.Unlock()
	n.board.touch()
}
