package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// target holds the flags that say which mesh a command talks to: the one of the run directory, unless flags name
// another. Commands that call registerCluster also work with the mesh of a cluster: that of --kubeconfig and its like,
// or of the user's own kubeconfig if no mesh runs on the run directory (targetcluster.go).
type target struct {
	runDir string
	// runDirNamed is true if the environment names the run directory.
	runDirNamed bool

	address, tokenFile, rootFile, trustDomain string
	// xdsAddresses are the operations ports of xds-servers.
	xdsAddresses []string

	cluster  clusterFlags
	revision string
	// flags are those of the running command if it has the flags of a cluster, else nil.
	flags *pflag.FlagSet
	// oneRevision is true for commands whose answer is that of one control plane: where several run, --revision must
	// choose.
	oneRevision bool
	// remote is true if the mesh is that of a cluster, whatever runs on the run directory.
	remote bool
	// found is the control plane of the cluster, once it was looked for.
	found *controlplane.Mesh
}

// register adds the flags that replace a run directory.
func (t *target) register(fs *pflag.FlagSet) {
	fs.StringVar(&t.address, "config-watcher-address", "", "address of config-watcher, host:port (default: that of the run directory)")
	fs.StringVar(&t.tokenFile, "token-file", "", "file with a JWT of audience fairlead (default: that of the run directory)")
	fs.StringVar(&t.rootFile, "root-cert-file", "", "PEM file with the root certificates to trust (default: that of the run directory)")
	fs.StringVar(&t.trustDomain, "trust-domain", "", "trust domain of config-watcher (default: that of the run directory, or cluster.local)")
}

// registerServers adds the flags of register, and the one for commands that also ask xds-servers.
func (t *target) registerServers(fs *pflag.FlagSet) {
	t.register(fs)
	fs.StringSliceVar(&t.xdsAddresses, "xds-server-address", nil,
		"operations ports of the xds-servers, host:port (default: those of the run directory)")
}

// state reads the state of the mesh that runs on the run directory; an error if none runs.
func (t *target) state() (*runstate.State, error) {
	dir, err := rundir.Abs(t.runDir)
	if err != nil {
		return nil, err
	}
	return rundir.Open(dir)
}

// dial returns a client of the mesh's config-watcher, which connects at its first call. The caller closes it.
func (t *target) dial(ctx context.Context) (*configapi.Client, error) {
	mesh, err := t.controlPlane(ctx)
	if err != nil {
		return nil, err
	}
	if mesh != nil {
		watcher, err := oneOf(mesh, controlplane.ConfigWatcher)
		if err != nil {
			return nil, err
		}
		if revisions := mesh.Revisions(controlplane.ConfigWatcher); t.oneRevision && len(revisions) > 1 {
			return nil, usage(fmt.Errorf("namespace %s has control planes of the revisions %s, which may read different objects: choose one with "+
				"--revision", mesh.Namespace, strings.Join(revisions, ", ")))
		}
		return watcher.API(ctx)
	}
	cfg, err := t.machineAPI()
	if err != nil {
		return nil, err
	}
	return configapi.Dial(cfg)
}

// machineAPI says where the config-watcher of the flags or of the run directory is.
func (t *target) machineAPI() (configapi.Config, error) {
	cfg := configapi.Config{Address: t.address, RootFile: t.rootFile, TokenFile: t.tokenFile, TrustDomain: t.trustDomain}
	if t.address == "" {
		s, err := t.state()
		if err != nil {
			return cfg, err
		}
		cfg.Address = cmp.Or(cfg.Address, s.ConfigWatcherAddress)
		cfg.RootFile = cmp.Or(cfg.RootFile, s.RootCertFile)
		cfg.TokenFile = cmp.Or(cfg.TokenFile, s.AdminTokenFile)
		cfg.TrustDomain = cmp.Or(cfg.TrustDomain, s.TrustDomain)
	}
	cfg.TrustDomain = cmp.Or(cfg.TrustDomain, "cluster.local")
	if cfg.RootFile == "" || cfg.TokenFile == "" {
		return cfg, usage(errors.New("--config-watcher-address needs --token-file and --root-cert-file"))
	}
	return cfg, cfg.CheckFiles()
}

// watcher is a replica of config-watcher.
type watcher struct {
	name   string
	client *configapi.Client
}

// dialAll returns a client of each replica of config-watcher: of a cluster's Pods, or of the list of
// --config-watcher-address. Each xds-server reports its proxies to one of them. The caller closes the clients.
func (t *target) dialAll(ctx context.Context) (list []watcher, err error) {
	defer func() {
		if err != nil {
			closeAll(list)
		}
	}()
	mesh, err := t.controlPlane(ctx)
	if err != nil {
		return nil, err
	}
	if mesh != nil {
		if _, err := oneOf(mesh, controlplane.ConfigWatcher); err != nil {
			return nil, err
		}
		for _, r := range mesh.Of(controlplane.ConfigWatcher) {
			client, err := r.API(ctx)
			if err != nil {
				return list, err
			}
			list = append(list, watcher{r.Name(), client})
		}
		return list, nil
	}
	cfg, err := t.machineAPI()
	if err != nil {
		return nil, err
	}
	for address := range strings.SplitSeq(cfg.Address, ",") {
		one := cfg
		one.Address = strings.TrimSpace(address)
		client, err := configapi.Dial(one)
		if err != nil {
			return list, err
		}
		list = append(list, watcher{one.Address, client})
	}
	return list, nil
}

func closeAll(list []watcher) {
	for _, w := range list {
		_ = w.client.Close()
	}
}

// call dials config-watcher and runs do, whose calls must end within callTimeout. An error of do gets a text for people
// (configapi.Client.Explain) and its exit code.
func (t *target) call(ctx context.Context, do func(ctx context.Context, client *configapi.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	return withExitCode(client.Explain(do(ctx, client)))
}
