package mesh

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/version"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/versions"
)

func newVersion(env command.Env, flags *meshflags.Flags) *cobra.Command {
	f := output.New("json", "yaml")
	var binDir, envoy string
	var brief, remote bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of every component: of the running ones, else of the binaries",
		Long: `Show the version of fairlead, of each replica of the control plane, and of the connected proxies, which are counted by version.

The mesh is that of the run directory, whose services are asked, and Envoy's binary; else that of the cluster. Flags that name a cluster, and --remote,
go before the run directory. If nothing runs in either, the binaries beside fairlead are asked.

It is an error if flags name a cluster, or --remote asks for one, and no control plane answers there; the version of fairlead is printed all the same.`,
		Example: `  fairlead version
  fairlead version --short --context production
  fairlead version --remote=false -o json`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			asked := cmd.Flags().Changed("remote")
			show := func(m *versions.Mesh) error {
				if f.Value != "" {
					return structured.Print(out, f.Value, m)
				}
				return m.Print(out, brief)
			}
			if asked && !remote {
				return show(&versions.Mesh{Client: version.Info()})
			}
			mesh := flags.Mesh(cmd)
			controlPlane, err := mesh.ControlPlane(cmd.Context())
			switch {
			case controlPlane != nil:
				m, err := versions.OfCluster(cmd.Context(), mesh, controlPlane)
				return errors.Join(show(m), err)
			case cmd.Context().Err() != nil:
				return cmd.Context().Err()
			case err != nil && mesh.Cluster.Named:
				return errors.Join(show(&versions.Mesh{Client: version.Info()}), err)
			case err != nil:
				fmt.Fprintf(cmd.ErrOrStderr(), "no control plane is asked: %v\n", err)
			}
			if brief {
				_, err := fmt.Fprintln(out, version.Info().Version)
				return err
			}
			find := env.Programs(binDir)
			list := versions.OfMachine(cmd.Context(), mesh, find, envoy)
			if f.Value != "" {
				return structured.Print(out, f.Value, list)
			}
			return versions.Print(out, list)
		},
	}
	output.Flag(cmd, f)
	cmd.Flags().BoolVarP(&brief, "short", "s", false,
		"only versions: one line for fairlead, the control plane and the proxies; of a mesh on this machine, fairlead's alone")
	cmd.Flags().BoolVar(&remote, "remote", true, "ask the control plane of a cluster; --remote=false asks nobody")
	cmd.Flags().StringVar(&binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	cmd.Flags().StringVar(&envoy, "envoy", "", "Envoy binary (default: found as fairlead up does)")
	flags.AddCluster(cmd)
	return cmd
}
