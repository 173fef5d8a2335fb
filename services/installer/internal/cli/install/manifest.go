package install

import (
	"runtime/debug"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/installflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/order"
)

func newManifest(env command.Env) *cobra.Command {
	installs := newInstall(env)
	installs.Hidden = true // an older name of istioctl's
	return command.Group("manifest", "Make the objects of an installation", installs, newManifestGenerate(env), newManifestDiff(env),
		newManifestMigrate(env))
}

func newManifestGenerate(env command.Env) *cobra.Command {
	var f installflags.Inputs
	var file string
	cmd := &cobra.Command{
		Use:   "generate [-f FILE] [--set path=value]",
		Short: "Print the objects of an installation",
		Long: `Print the objects that an installation consists of, in the order in which they are applied; nothing is sent to a cluster.

The default profile lies under the chosen profile, then come the files in their order, then the settings. Warnings go to standard error.`,
		Example: `  fairlead manifest generate -f mesh.yaml --set profile=demo --set values.global.hub=example.com/mesh
  fairlead manifest generate --set 'components.ingressGateways[0].name=edge' -o edge.yaml
  fairlead manifest generate --manifests istio-1.31.0/manifests`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The process lives for one rendering: half the usual garbage costs little time. A fifth would double it.
			debug.SetGCPercent(50)
			in, err := f.Judged(env)
			if err != nil {
				return err
			}
			result, err := install.Generate(in)
			if err != nil {
				return process.Refused(err)
			}
			output.Warn(cmd.ErrOrStderr(), result.Warnings)
			text, err := order.Text(result.Objects)
			if err != nil {
				return err
			}
			return output.Write(cmd.OutOrStdout(), file, text)
		},
	}
	f.Add(cmd)
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write, instead of standard output")
	return cmd
}
