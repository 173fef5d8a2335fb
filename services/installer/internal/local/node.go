// Package local runs the mesh of `fairlead up` on one machine. A Node stands for what a cluster would do: it starts and
// restarts the processes of a plan (the kubelet), writes their Pods and these Pods' status into config-watcher (the API
// server's clients), issues service account tokens, probes readiness, and shows all of it on a console. New takes the
// plan; Run blocks until the mesh has ended. cli/up.go is the only caller.
//
// The packages below are its parts: meshfile reads the mesh files, plan decides what to run, ports reserves addresses,
// programs finds binaries, rundir holds the run directory and state.json, supervise keeps processes running, probe asks
// whether they are ready, tokens issues their tokens, console prints. logview and demo serve `fairlead logs` and
// `fairlead demo`.
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
	// EnvoyBinary and ConfigPaths are written into state.json for other commands.
	EnvoyBinary string
	ConfigPaths []string
	// ReadyFile is written when everything is ready, and removed when Run ends; empty means none.
	ReadyFile string
	// ReadyTimeout ends Run with an error if not everything is ready by then; 0 means no limit.
	ReadyTimeout time.Duration
	// StopTimeout bounds the stop; processes that still run then are killed.
	StopTimeout time.Duration
}

// RefusedError is an error in the mesh files: config-watcher refuses an object, or the files cannot be listed.
type RefusedError struct{ Err error }

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// Node runs a plan.
type Node struct {
	cfg       Config
	statuses  *statuses
	sup       *supervise.Supervisor
	configAPI *configapi.Client
	// published is closed when the Pods' objects are part of the mesh.
	published chan struct{}

	stateMu  sync.Mutex // held while state.json is written
	statusMu sync.Mutex // held while a Pod or its status is written and pods records that

	mu    sync.Mutex
	procs map[string]*supervise.Process
	pods  map[string]bool // by Pod ID, the readiness that its written status has
	// resting are the Pods, by ID, that their Deployments are scaled below.
	resting map[string]bool
	ready   bool
	seen    observations
	start   time.Time
}

// New returns a node; Run starts the processes.
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
		cfg: cfg, configAPI: client, statuses: newStatuses(),
		procs: map[string]*supervise.Process{}, published: make(chan struct{}),
		pods: map[string]bool{}, resting: map[string]bool{},
		seen: newObservations(),
	}, nil
}

// Run starts the services and then the Pods, keeps them running until ctx ends or a task fails, and stops them in
// order: gateways, sidecars, applications, services. No process is left when it returns.
func (n *Node) Run(ctx context.Context) error {
	defer n.configAPI.Close()
	n.start = n.cfg.Clock.Now()
	issuer, err := n.prepare()
	if err != nil {
		return err
	}
	n.sup = supervise.New(supervise.Config{Clock: n.cfg.Clock, Log: n.cfg.Log, Changed: n.statuses.setProcess})
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

// tasks lists what runs concurrently while the mesh is up.
func (n *Node) tasks(issuer *tokens.Files) []process.Task {
	tasks := []process.Task{
		{Name: "tokens", Run: func(ctx context.Context) error {
			return issuer.Run(ctx, func(err error) { n.cfg.Log.Error("tokens were not renewed", "error", err) })
		}},
		{Name: "mesh", Run: n.publish},
		{Name: "objects", Run: n.watchObjects},
		{Name: "usage errors", Run: n.watchUsageErrors},
		{Name: "state", Run: n.keepState},
		{Name: "revisions", Run: n.watchRevisions},
		{Name: "files", Run: n.watchSources},
		{Name: "deployments", Run: n.watchDeployments},
		{Name: "warnings", Run: n.watchWarnings},
		{Name: "Envoys", Run: n.watchEnvoys},
		{Name: "console", Run: n.showConsole},
		{Name: "ready", Run: n.reportReady},
	}
	watch := func(name string, run func(context.Context)) {
		tasks = append(tasks, process.Task{Name: "probe " + name, Run: func(ctx context.Context) error {
			run(ctx)
			return nil
		}})
	}
	probe := func(name string, p *plan.Probe) {
		watch(name, func(ctx context.Context) { n.probeOwnProcess(ctx, name, p) })
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

// startPods starts the Pods' processes. publish calls it after it has written the Pods' objects, because xds-server
// configures a proxy that connects earlier as one without a workload.
func (n *Node) startPods() {
	for _, p := range n.podProcesses() {
		n.startProcess(p)
	}
}

func (n *Node) startProcess(p plan.Process) {
	started := n.sup.Start(supervise.Spec{
		Name: p.Name, Path: p.Path, Args: p.Args, Env: p.Env, Dir: p.Dir, Log: p.Log, Stamped: p.Stamped, Grace: p.Grace,
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.procs[p.Name] = started
}

func (n *Node) podProcesses() []plan.Process {
	var list []plan.Process
	for _, p := range n.cfg.Plan.Pods {
		list = append(list, p.Processes()...)
	}
	return list
}

// watchUsageErrors fails when one of Fairlead's own programs exits with process.ExitUsage: it would refuse the same
// flags again.
func (n *Node) watchUsageErrors(ctx context.Context) error {
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
		changed := n.statuses.Changed()
		for name, e := range n.statuses.Snapshot() {
			log, ok := own[name]
			if ok && e.PID == 0 && e.ExitCode == process.ExitUsage {
				return fmt.Errorf("%s does not accept its flags:\n%s\nsee %s; are all binaries of one build?", name, lastLines(log, 3), log)
			}
		}
		waitFor(ctx, changed)
	}
	return nil
}
