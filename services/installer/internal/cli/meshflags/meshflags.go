// Package meshflags has the flags that say which mesh a command talks to, and completes by what that mesh has.
package meshflags

import (
	"cmp"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/meshclient"
)

// Flags are the flags that say which mesh a command talks to: the one of the run directory, unless others name
// another. Commands with the flags of AddCluster also work with the mesh of a cluster: that of --kubeconfig and its
// like, or of the user's own kubeconfig if no mesh runs on the run directory.
type Flags struct {
	mesh     meshclient.Config
	cluster  kubeflags.Cluster
	revision string
}

// New adds --run-dir to the flags of all commands.
func New(fs *pflag.FlagSet, getenv func(string) string) *Flags {
	named := getenv("FAIRLEAD_RUN_DIR")
	f := &Flags{mesh: meshclient.Config{RunDirNamed: named != ""}}
	fs.StringVar(&f.mesh.RunDir, "run-dir", cmp.Or(named, ".run"), "run directory of the mesh; FAIRLEAD_RUN_DIR sets another default")
	return f
}

// Add adds the flags that replace a run directory.
func (f *Flags) Add(fs *pflag.FlagSet) {
	fs.StringVar(&f.mesh.Address, "config-watcher-address", "", "address of config-watcher, host:port (default: that of the run directory)")
	fs.StringVar(&f.mesh.TokenFile, "token-file", "", "file with a JWT of audience fairlead (default: that of the run directory)")
	fs.StringVar(&f.mesh.RootFile, "root-cert-file", "",
		"PEM file with the root certificates to trust (default: that of the run directory)")
	fs.StringVar(&f.mesh.TrustDomain, "trust-domain", "",
		"trust domain of config-watcher (default: that of the run directory, or cluster.local)")
}

// AddServers adds the flags of Add, and the one for commands that also ask xds-servers.
func (f *Flags) AddServers(fs *pflag.FlagSet) {
	f.Add(fs)
	fs.StringSliceVar(&f.mesh.XDSAddresses, "xds-server-address", nil,
		"operations ports of the xds-servers, host:port (default: those of the run directory)")
}

// AddCA adds the flags that replace a run directory for a command that asks the ca alone.
func (f *Flags) AddCA(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.mesh.CAAddresses, "ca-address", nil,
		"operations ports of the replicas of the ca, host:port (default: those of the run directory)")
	fs.StringVar(&f.mesh.TokenFile, "token-file", "", "file with a JWT of audience fairlead (default: that of the run directory)")
}

// AddCluster adds the flags that name a cluster, for a command that works with its mesh as with one of this
// machine.
func (f *Flags) AddCluster(cmd *cobra.Command) {
	f.cluster.Add(cmd)
	cmd.Flags().StringVar(&f.revision, "revision", "", "only the control plane of this revision (default: all)")
}

// inClusterNames are the flags that choose a cluster: any of them means the mesh of a cluster.
var inClusterNames = []string{"kubeconfig", "context", "as", "as-group", "istioNamespace", "revision", "remote"}

// Mesh is the mesh that a command line names. The flags of the command were parsed.
func (f *Flags) Mesh(cmd *cobra.Command) *meshclient.Mesh {
	cfg := f.mesh
	changed := func(flag string) bool { return cmd.Flags().Changed(flag) }
	cfg.RunDirNamed = cfg.RunDirNamed || changed("run-dir")
	if cmd.Flags().Lookup("kubeconfig") != nil {
		cfg.Cluster = &meshclient.Cluster{
			Config: f.cluster.Config, Namespace: f.cluster.IstioNamespace, Revision: f.revision, Named: slices.ContainsFunc(inClusterNames, changed),
		}
	}
	return meshclient.New(cfg)
}

// MeshOfOneRevision is Mesh for a command that shows what one config-watcher has.
func (f *Flags) MeshOfOneRevision(cmd *cobra.Command) *meshclient.Mesh {
	mesh := f.Mesh(cmd)
	if mesh.Cluster != nil {
		mesh.Cluster.OneRevision = true
	}
	return mesh
}

// Machine is the mesh of the run directory, or of addresses.
func (f *Flags) Machine() *meshclient.Mesh { return meshclient.New(f.mesh) }

// RunDir is the value of --run-dir.
func (f *Flags) RunDir() string { return f.mesh.RunDir }

// AddSelection adds -n and -A; about ends the help of -n.
func (f *Flags) AddSelection(cmd *cobra.Command, s *meshclient.Selection, about string) {
	f.AddNamespace(cmd, &s.Namespace, "namespace "+about)
	cmd.Flags().BoolVarP(&s.All, "all-namespaces", "A", false, "all namespaces")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
}

// AddSelector adds -l; of says whose labels.
func AddSelector(cmd *cobra.Command, s *meshclient.Selection, of string) {
	cmd.Flags().StringVarP(&s.Selector, "selector", "l", "", "only those whose "+of+" match, as in app=web,version!=v1")
}

// AddNamespace adds -n, and completes it with the namespaces of the mesh.
func (f *Flags) AddNamespace(cmd *cobra.Command, namespace *string, about string) {
	cmd.Flags().StringVarP(namespace, "namespace", "n", "", about)
	_ = cmd.RegisterFlagCompletionFunc("namespace", complete.Names(func(cmd *cobra.Command, _ []string) []string {
		return f.ask(cmd, meshclient.Namespaces)
	}))
}
