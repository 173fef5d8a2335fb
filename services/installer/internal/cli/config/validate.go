package config

import (
	"bytes"
	"errors"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/fileflag"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/structured"
)

// validateFlags are the flags of `fairlead validate`.
type validateFlags struct {
	files  []string
	strict bool
	binDir string
	out    *output.Format
}

func newValidate(env command.Env) *cobra.Command {
	f := validateFlags{out: output.New("text", "json", "yaml")}
	cmd := &cobra.Command{
		Use:   "validate -f FILE|DIR|-",
		Short: "Judge files of objects without a mesh",
		Long: `Judge files of objects as a mesh would, without one: every mistake is printed with its file and line, and the last line counts.

A file may hold a bare MeshConfig. Objects of kinds that no part of the mesh's configuration is made of, such as Deployments, are counted and not
judged. What depends on other objects, such as a host that does not exist, is not looked at.`,
		Example: `  fairlead validate -f samples/bookinfo/mesh.yaml
  helm template . | fairlead validate -f -`,
		Args:              command.Args(cobra.ArbitraryArgs),
		ValidArgsFunction: complete.Files,
		RunE: func(cmd *cobra.Command, named []string) error {
			f.files = append(f.files, named...)
			return f.run(cmd, env)
		},
	}
	fs := cmd.Flags()
	fileflag.Add(fs, &f.files, "file, directory, or - for standard input, also without a flag")
	fs.BoolVar(&f.strict, "strict", false, "refuse objects with warnings too")
	fs.StringVar(&f.binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	output.Flag(cmd, f.out)
	return cmd
}

func (f *validateFlags) run(cmd *cobra.Command, env command.Env) error {
	if len(f.files) == 0 {
		return process.Usage(errors.New("name a file or a directory with -f; - is standard input"))
	}
	program, out := env.Analysis(f.binDir), cmd.OutOrStdout()
	if f.out.Value != "yaml" {
		return program.Validate(cmd.Context(), f.files, f.strict, f.out.Value == "json", out)
	}
	var printed bytes.Buffer
	err := program.Validate(cmd.Context(), f.files, f.strict, true, &printed)
	if printed.Len() > 0 {
		if err := structured.PrintText(out, printed.Bytes(), true); err != nil {
			return err
		}
	}
	return err
}
