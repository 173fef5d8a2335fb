package cli

import (
	"fmt"
	"io"
	"runtime/debug"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/order"
)

func newManifest(env Env) *cobra.Command {
	installs := newInstall(env)
	installs.Hidden = true // an older name of istioctl's
	return group("manifest", "Make the objects of an installation", installs, newManifestGenerate(env), newManifestDiff(env),
		newManifestMigrate(env))
}

func newManifestGenerate(env Env) *cobra.Command {
	var f installFlags
	var output string
	cmd := &cobra.Command{
		Use:   "generate [-f FILE] [--set path=value]",
		Short: "Print the objects of an installation",
		Long: `Print the objects that an installation consists of, in the order in which they are applied; nothing is sent to a cluster.

The default profile lies under the chosen profile, then come the files in their order, then the settings. Warnings go to standard error.`,
		Example: `  fairlead manifest generate -f mesh.yaml --set profile=demo --set values.global.hub=example.com/mesh
  fairlead manifest generate --set 'components.ingressGateways[0].name=edge' -o edge.yaml
  fairlead manifest generate --manifests istio-1.31.0/manifests`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The process lives for one rendering: half the usual garbage costs little time. A fifth would double it.
			debug.SetGCPercent(50)
			in, err := f.judged(env)
			if err != nil {
				return err
			}
			result, err := install.Generate(in)
			if err != nil {
				return process.Refused(err)
			}
			warn(cmd.ErrOrStderr(), result.Warnings)
			return writeManifest(cmd.OutOrStdout(), output, result)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write, instead of standard output")
	return cmd
}

func writeManifest(out io.Writer, file string, result *install.Result) error {
	text, err := order.Text(result.Objects)
	if err != nil {
		return err
	}
	if file == "" {
		_, err = out.Write(text)
		return err
	}
	if err := fileio.Output(file, text, 0o644); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}
