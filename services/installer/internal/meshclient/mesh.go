// Package meshclient reaches a running mesh, of this machine or of a cluster. New makes a Mesh of what flags say; what
// commands ask of it are its methods: Dial, Call and Watchers reach config-watchers (package configapi), Fleet lists
// the connected proxies of all of them, Servers, CAs and Proxy reach debug pages of services (package opsclient), and
// Pod and Admin the Envoys of Pods (package envoyadmin). In a cluster all of them go through package controlplane.
package meshclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// CallTimeout bounds the calls to config-watcher of one command.
const CallTimeout = 15 * time.Second

// Config names a mesh: that of the run directory, unless addresses or the cluster name another.
type Config struct {
	RunDir string
	// RunDirNamed is true if the user has named the run directory: then no cluster is looked for in its place.
	RunDirNamed bool
	// Address of config-watcher, host:port or a list. The files and the trust domain are taken from the run directory
	// if they are empty.
	Address, TokenFile, RootFile, TrustDomain string
	// XDSAddresses are the operations ports of xds-servers.
	XDSAddresses []string
	// CAAddresses are the operations ports of the replicas of the ca.
	CAAddresses []string
	// Cluster is nil for a mesh of this machine.
	Cluster *Cluster
}

// Cluster names a control plane in a cluster.
type Cluster struct {
	kube.Config
	// Namespace of the control plane, and its Revision; an empty one means all.
	Namespace, Revision string
	// Named is true if a flag names the cluster. Otherwise the cluster of the kubeconfig counts if no mesh runs on the
	// run directory.
	Named bool
	// OneRevision is set if an answer is that of one control plane: where several run, Revision must choose.
	OneRevision bool
}

// Mesh is the mesh that a Config names. It connects at the first call that needs it, and is safe for concurrent use.
type Mesh struct {
	Config

	mu sync.Mutex
	// controlPlane is the cluster's, once it was found.
	controlPlane *controlplane.Mesh
}

// New returns the mesh of a Config. Nothing is asked.
func New(cfg Config) *Mesh { return &Mesh{Config: cfg} }

// Renew returns the same mesh without what was found of it, for callers that wait for replicas that come and go. It
// closes the connections of m.
func (m *Mesh) Renew() *Mesh {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.controlPlane != nil {
		_ = m.controlPlane.Close()
	}
	return New(m.Config)
}

// ControlPlane finds the control plane of the cluster; nil if the mesh is that of addresses or of the run directory.
func (m *Mesh) ControlPlane(ctx context.Context) (*controlplane.Mesh, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.controlPlane != nil || m.Cluster == nil || m.Address != "" || len(m.XDSAddresses)+len(m.CAAddresses) > 0 {
		return m.controlPlane, nil
	}
	var here error
	if !m.Cluster.Named {
		if _, here = m.State(); here == nil || m.RunDirNamed {
			return nil, nil
		}
		if _, none := m.Cluster.Rest(); none != nil {
			return nil, nil //nolint:nilerr // there is no kubeconfig: the run directory's error is told
		}
	}
	found, err := m.Cluster.find(ctx)
	if err != nil && here != nil {
		return nil, fmt.Errorf("%w; nor is there a mesh in the cluster of the kubeconfig: %w", here, err)
	}
	if err != nil {
		return nil, err
	}
	m.controlPlane = found
	return found, nil
}

func (c *Cluster) find(ctx context.Context) (*controlplane.Mesh, error) {
	config, err := c.Rest()
	if err != nil {
		return nil, process.Usage(err)
	}
	api, err := kube.NewAPI(config)
	if err != nil {
		return nil, err
	}
	return controlplane.Find(ctx, config, api, c.Namespace, c.Revision)
}

// Kube returns a client of the cluster's API server; nil for a mesh of this machine.
func (m *Mesh) Kube(ctx context.Context) (kube.API, error) {
	found, err := m.ControlPlane(ctx)
	if err != nil || found == nil {
		return nil, err
	}
	return m.Cluster.API()
}

// State reads the state of the mesh that runs on the run directory; an error if none runs.
func (m *Mesh) State() (*runstate.State, error) {
	dir, err := rundir.Abs(m.RunDir)
	if err != nil {
		return nil, err
	}
	return rundir.Open(dir)
}

// LastState reads the state of the run directory's mesh, which may have ended.
func (m *Mesh) LastState() (*runstate.State, error) {
	dir, err := rundir.Abs(m.RunDir)
	if err != nil {
		return nil, err
	}
	state, err := runstate.Read(dir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return m.State() // for its error, which names the remedy
	}
	return state, err
}

// Dial returns a client of the mesh's config-watcher, which connects at its first call. The caller closes it.
func (m *Mesh) Dial(ctx context.Context) (*configapi.Client, error) {
	found, err := m.ControlPlane(ctx)
	if err != nil {
		return nil, err
	}
	if found == nil {
		cfg, err := m.machineAPI()
		if err != nil {
			return nil, err
		}
		return configapi.Dial(cfg)
	}
	replicas, err := watchers(found)
	if err != nil {
		return nil, err
	}
	if revisions := found.Revisions(controlplane.ConfigWatcher); m.Cluster.OneRevision && len(revisions) > 1 {
		return nil, process.Usagef("namespace %s has control planes of the revisions %s, which may read different objects: choose one "+
			"with --revision", found.Namespace, strings.Join(revisions, ", "))
	}
	return replicas[0].API(ctx)
}

// watchers lists the replicas of config-watcher, those that are ready first; at least one.
func watchers(found *controlplane.Mesh) ([]*controlplane.Replica, error) {
	all := found.Of(controlplane.ConfigWatcher)
	if len(all) == 0 {
		return nil, fmt.Errorf("no Pod of %s runs in namespace %s; `fairlead verify-install` says what is missing", controlplane.ConfigWatcher,
			found.Namespace)
	}
	return all, nil
}

// machineAPI says where the config-watcher of the addresses or of the run directory is.
func (m *Mesh) machineAPI() (configapi.Config, error) {
	cfg := configapi.Config{Address: m.Address, RootFile: m.RootFile, TokenFile: m.TokenFile, TrustDomain: m.TrustDomain}
	if m.Address == "" {
		s, err := m.State()
		if err != nil {
			return cfg, err
		}
		cfg.Address = s.ConfigWatcherAddress
		cfg.RootFile = cmp.Or(cfg.RootFile, s.RootCertFile)
		cfg.TokenFile = cmp.Or(cfg.TokenFile, s.AdminTokenFile)
		cfg.TrustDomain = cmp.Or(cfg.TrustDomain, s.TrustDomain)
	}
	cfg.TrustDomain = cmp.Or(cfg.TrustDomain, "cluster.local")
	if cfg.RootFile == "" || cfg.TokenFile == "" {
		return cfg, process.Usage(errors.New("--config-watcher-address needs --token-file and --root-cert-file"))
	}
	return cfg, cfg.CheckFiles()
}

// Call dials config-watcher and runs do, whose calls must end within CallTimeout. An error of do gets a text for people
// (configapi.Client.Explain) and its exit code.
func (m *Mesh) Call(ctx context.Context, do func(ctx context.Context, client *configapi.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	client, err := m.Dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	return configapi.WithExitCode(client.Explain(do(ctx, client)))
}

// Watcher is a replica of config-watcher.
type Watcher struct {
	Name string
	*configapi.Client
}

// Watchers returns a client of each replica of config-watcher: of a cluster's Pods, or of the list of
// --config-watcher-address. Each xds-server reports its proxies to one of them. The caller closes the clients.
func (m *Mesh) Watchers(ctx context.Context) (list []Watcher, err error) {
	defer func() {
		if err != nil {
			CloseAll(list)
			list = nil
		}
	}()
	found, err := m.ControlPlane(ctx)
	if err != nil {
		return nil, err
	}
	if found != nil {
		replicas, err := watchers(found)
		for _, r := range replicas {
			client, err := r.API(ctx)
			if err != nil {
				return list, err
			}
			list = append(list, Watcher{r.Name(), client})
		}
		return list, err
	}
	cfg, err := m.machineAPI()
	if err != nil {
		return nil, err
	}
	for address := range strings.SplitSeq(cfg.Address, ",") {
		cfg.Address = strings.TrimSpace(address)
		client, err := configapi.Dial(cfg)
		if err != nil {
			return list, err
		}
		list = append(list, Watcher{cfg.Address, client})
	}
	return list, nil
}

// CloseAll closes clients.
func CloseAll(list []Watcher) {
	for _, w := range list {
		_ = w.Close()
	}
}
