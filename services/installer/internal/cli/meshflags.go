package cli

import (
	"cmp"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fairlead.dev/services/installer/internal/meshclient"
)

// meshFlags are the flags that say which mesh a command talks to: the one of the run directory, unless others name
// another. Commands with the flags of AddCluster also work with the mesh of a cluster: that of --kubeconfig and its
// like, or of the user's own kubeconfig if no mesh runs on the run directory.
type meshFlags struct {
	mesh     meshclient.Config
	cluster  clusterFlags
	revision string
}

// newMeshFlags adds --run-dir to the flags of all commands.
func newMeshFlags(fs *pflag.FlagSet, getenv func(string) string) *meshFlags {
	named := getenv("FAIRLEAD_RUN_DIR")
	f := &meshFlags{mesh: meshclient.Config{RunDirNamed: named != ""}}
	fs.StringVar(&f.mesh.RunDir, "run-dir", cmp.Or(named, ".run"), "run directory of the mesh; FAIRLEAD_RUN_DIR sets another default")
	return f
}

// register adds the flags that replace a run directory.
func (f *meshFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.mesh.Address, "config-watcher-address", "", "address of config-watcher, host:port (default: that of the run directory)")
	fs.StringVar(&f.mesh.TokenFile, "token-file", "", "file with a JWT of audience fairlead (default: that of the run directory)")
	fs.StringVar(&f.mesh.RootFile, "root-cert-file", "",
		"PEM file with the root certificates to trust (default: that of the run directory)")
	fs.StringVar(&f.mesh.TrustDomain, "trust-domain", "",
		"trust domain of config-watcher (default: that of the run directory, or cluster.local)")
}

// registerServers adds the flags of register, and the one for commands that also ask xds-servers.
func (f *meshFlags) registerServers(fs *pflag.FlagSet) {
	f.register(fs)
	fs.StringSliceVar(&f.mesh.XDSAddresses, "xds-server-address", nil,
		"operations ports of the xds-servers, host:port (default: those of the run directory)")
}

// registerCluster adds the flags that name a cluster, for a command that works with its mesh as with one of this
// machine.
func (f *meshFlags) registerCluster(cmd *cobra.Command) {
	f.cluster.add(cmd)
	cmd.Flags().StringVar(&f.revision, "revision", "", "only the control plane of this revision (default: all)")
}

// inClusterNames are the flags that choose a cluster: any of them means the mesh of a cluster.
var inClusterNames = []string{"kubeconfig", "context", "as", "as-group", "istioNamespace", "revision", "remote"}

// Mesh is the mesh that a command line names. The flags of the command were parsed.
func (f *meshFlags) Mesh(cmd *cobra.Command) *meshclient.Mesh {
	cfg := f.mesh
	changed := func(flag string) bool { return cmd.Flags().Changed(flag) }
	cfg.RunDirNamed = cfg.RunDirNamed || changed("run-dir")
	if cmd.Flags().Lookup("kubeconfig") != nil {
		cfg.Cluster = &meshclient.Cluster{
			Config: f.cluster.Config, Namespace: f.cluster.istioNamespace, Revision: f.revision, Named: slices.ContainsFunc(inClusterNames, changed),
		}
	}
	return meshclient.New(cfg)
}

// MeshOfOneRevision is Mesh for a command that shows what one config-watcher has.
func (f *meshFlags) MeshOfOneRevision(cmd *cobra.Command) *meshclient.Mesh {
	mesh := f.Mesh(cmd)
	if mesh.Cluster != nil {
		mesh.Cluster.OneRevision = true
	}
	return mesh
}

// Machine is the mesh of the run directory, or of addresses.
func (f *meshFlags) Machine() *meshclient.Mesh { return meshclient.New(f.mesh) }

// RunDir is the value of --run-dir.
func (f *meshFlags) RunDir() string { return f.mesh.RunDir }

// registerSelection adds -n and -A; about ends the help of -n.
func (f *meshFlags) registerSelection(cmd *cobra.Command, s *meshclient.Selection, about string) {
	f.namespaceFlag(cmd, &s.Namespace, "namespace "+about)
	cmd.Flags().BoolVarP(&s.All, "all-namespaces", "A", false, "all namespaces")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
}

// registerSelector adds -l; of says whose labels.
func registerSelector(cmd *cobra.Command, s *meshclient.Selection, of string) {
	cmd.Flags().StringVarP(&s.Selector, "selector", "l", "", "only those whose "+of+" match, as in app=web,version!=v1")
}

// namespaceFlag adds -n, and completes it with the namespaces of the mesh.
func (f *meshFlags) namespaceFlag(cmd *cobra.Command, namespace *string, about string) {
	cmd.Flags().StringVarP(namespace, "namespace", "n", "", about)
	_ = cmd.RegisterFlagCompletionFunc("namespace", f.completeNamespaces) // fails only if the command lacks the flag
}
