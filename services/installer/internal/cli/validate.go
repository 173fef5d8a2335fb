package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/local/programs"
)

// validateFlags are the flags of `fairlead validate`.
type validateFlags struct {
	files  []string
	strict bool
	binDir string
	out    *format
}

func newValidate(env Env) *cobra.Command {
	f := validateFlags{out: newFormat("text", "json", "yaml")}
	cmd := &cobra.Command{
		Use:   "validate -f FILE|DIR|-",
		Short: "Judge files of objects without a mesh",
		Long: `Judge files of objects as a mesh would, without one: every mistake is printed with its file and line, and the last line counts.

A file may hold a bare MeshConfig. Objects of kinds that no part of the mesh's configuration is made of, such as Deployments, are counted and not
judged. What depends on other objects, such as a host that does not exist, is not looked at.`,
		Example: `  fairlead validate -f samples/bookinfo/mesh.yaml
  helm template . | fairlead validate -f -`,
		Args: args(cobra.ArbitraryArgs),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // files
		},
		RunE: func(cmd *cobra.Command, named []string) error {
			f.files = append(f.files, named...)
			return validate(cmd.Context(), env, f, cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	filesFlag(fs, &f.files, "file, directory, or - for standard input, also without a flag")
	fs.BoolVar(&f.strict, "strict", false, "refuse objects with warnings too")
	fs.StringVar(&f.binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	outputFlag(cmd, f.out)
	return cmd
}

// validate runs `config-watcher validate`: the rules for valid objects are config-watcher's.
func validate(ctx context.Context, env Env, f validateFlags, out io.Writer) error {
	if len(f.files) == 0 {
		return usage(errors.New("name a file or a directory with -f; - is standard input"))
	}
	watcher, err := programs.Finder{Executable: env.Executable, BinDir: f.binDir, Getenv: env.Getenv}.Program("config-watcher")
	if err != nil {
		return err
	}
	a := []string{"validate", "--output=text"}
	if f.out.value == "json" || f.out.value == "yaml" {
		a[1] = "--output=json"
	}
	if f.strict {
		a = append(a, "--strict")
	}
	var printed, said bytes.Buffer
	cmd := exec.CommandContext(ctx, watcher, append(append(a, "--"), f.files...)...) //nolint:gosec // our own program
	cmd.Env = programs.BaseEnv(env.Getenv)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = env.In, out, &said
	if f.out.value == "yaml" {
		cmd.Stdout = &printed
	}
	err = cmd.Run()
	if f.out.value == "yaml" && printed.Len() > 0 {
		if err := printJSONOr(out, printed.Bytes(), true); err != nil {
			return err
		}
	}
	var exited *exec.ExitError
	if errors.As(err, &exited) && exited.ExitCode() > 0 {
		return process.WithExitCode(errors.New(strings.TrimPrefix(strings.TrimSpace(said.String()), "config-watcher: ")), exited.ExitCode())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", watcher, err)
	}
	return nil
}
