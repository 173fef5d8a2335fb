package cli

import (
	"context"
	"errors"

	"github.com/spf13/pflag"

	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// target holds the flags that say which mesh a command talks to: the one of the run directory, unless flags name
// another.
type target struct {
	runDir string

	address, tokenFile, rootFile, trustDomain string
	// xdsAddresses are the operations ports of xds-servers.
	xdsAddresses []string
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
func (t *target) state() (*rundir.State, error) {
	dir, err := rundir.Abs(t.runDir)
	if err != nil {
		return nil, err
	}
	return rundir.Open(dir)
}

// dial returns a client of the mesh's config-watcher, which connects at its first call. The caller closes it.
func (t *target) dial() (*configapi.Client, error) {
	cfg := configapi.Config{Address: t.address, RootFile: t.rootFile, TokenFile: t.tokenFile, TrustDomain: t.trustDomain}
	if t.address == "" {
		s, err := t.state()
		if err != nil {
			return nil, err
		}
		orDefault(&cfg.Address, s.ConfigWatcherAddress)
		orDefault(&cfg.RootFile, s.RootCertFile)
		orDefault(&cfg.TokenFile, s.AdminTokenFile)
		orDefault(&cfg.TrustDomain, s.TrustDomain)
	}
	orDefault(&cfg.TrustDomain, "cluster.local")
	if cfg.RootFile == "" || cfg.TokenFile == "" {
		return nil, usage(errors.New("--config-watcher-address needs --token-file and --root-cert-file"))
	}
	if err := cfg.CheckFiles(); err != nil {
		return nil, err
	}
	return configapi.Dial(cfg)
}

// call dials config-watcher and runs do, whose calls must end within callTimeout. An error of do gets a text for people
// (configapi.Client.Explain) and its exit code.
func (t *target) call(ctx context.Context, do func(ctx context.Context, client *configapi.Client) error) error {
	client, err := t.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return withExitCode(client.Explain(do(ctx, client)))
}

func orDefault(s *string, value string) {
	if *s == "" {
		*s = value
	}
}
