package config

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/objectfile"
)

func newEdit(env command.Env, flags *meshflags.Flags) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "edit KIND/NAME | KIND NAME",
		Short: "Change an object in your editor and apply it",
		Long: `Open an object in the editor that VISUAL or EDITOR names (default: vi), and apply what it leaves behind. An object of a file is stored with the change,
and overrides the file's from then on. An object that was changed by somebody else meanwhile is refused.`,
		Example: "  EDITOR=nano fairlead config edit vs/reviews",
		Args:    command.Args(cobra.RangeArgs(1, 2)),

		ValidArgsFunction: flags.CompleteObjects,
		RunE: func(cmd *cobra.Command, a []string) error {
			kind, name, err := kinds.ParseObject(a)
			if err != nil {
				return err
			}
			if name == "" {
				return process.Usagef("%q: name the object, as in vs/reviews", a[0])
			}
			return edit(cmd, env, flags.Machine(), objectArg{kind, name}, namespace)
		},
	}
	flags.AddNamespace(cmd, &namespace, "namespace (default: \"default\")")
	return cmd
}

func edit(cmd *cobra.Command, env command.Env, mesh *meshclient.Mesh, n objectArg, namespace string) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	key, before, err := editable(ctx, mesh, n, namespace)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "fairlead-edit")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := dir + "/" + key.GetKind() + "-" + key.GetName() + ".yaml"
	if err := os.WriteFile(file, before, 0o600); err != nil {
		return err
	}
	if err := openEditor(ctx, env, file); err != nil {
		return err
	}
	after, err := objectfile.ReadFile(file)
	if err != nil {
		return err
	}
	if bytes.Equal(before, after) {
		fmt.Fprintf(out, "%s unchanged\n", kinds.Text(key))
		return nil
	}
	if err := applyConfig(ctx, env, mesh, applyFlags{files: []string{file}, out: output.New("json")}, out); err != nil {
		// The person's work must outlive the temporary directory.
		kept, keepErr := os.CreateTemp("", "fairlead-edit-*.yaml")
		if keepErr != nil {
			return err
		}
		defer kept.Close()
		if _, keepErr = kept.Write(after); keepErr != nil {
			return err
		}
		return fmt.Errorf("%w\nwhat you have written is in %s", err, kept.Name())
	}
	return nil
}

// editable returns the object in force with its key, as YAML without its status. An object of the store keeps its
// resource version, so that apply refuses it if somebody else has changed it meanwhile.
func editable(ctx context.Context, mesh *meshclient.Mesh, n objectArg, namespace string) (*configv1.ObjectKey, []byte, error) {
	var object *configv1.Object
	err := mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) (err error) {
		object, err = getObject(ctx, client, n, namespace, true)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(object.GetManifest(), &tree); err != nil {
		return nil, nil, err
	}
	delete(tree, "status")
	text, err := yaml.Marshal(tree)
	return object.GetKey(), text, err
}

// openEditor runs the editor's command, which may have arguments, on a file.
func openEditor(ctx context.Context, env command.Env, file string) error {
	editor := cmp.Or(env.Getenv("VISUAL"), env.Getenv("EDITOR"), "vi")
	cmd := exec.CommandContext(ctx, "sh", "-c", editor+` "$1"`, "editor", file)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = env.In, env.Out, env.Err
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("editor %q: %w; nothing was changed", editor, err)
	}
	return nil
}
