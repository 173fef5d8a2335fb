package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/fileflag"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/objectfile"
)

// deleteFlags are the flags of `fairlead config delete`.
type deleteFlags struct {
	namespace string
	files     []string
}

func newDelete(env command.Env, flags *meshflags.Flags) *cobra.Command {
	var f deleteFlags
	cmd := &cobra.Command{
		Use:   "delete KIND NAME... | KIND/NAME... | -f FILE",
		Short: "Delete objects",
		Example: `  fairlead config delete vs/reviews dr/reviews.shop
  fairlead config delete -f reviews-v3.yaml`,
		ValidArgsFunction: flags.CompleteObjects,
		RunE: func(cmd *cobra.Command, a []string) error {
			return f.run(cmd, env, flags.Machine(), a)
		},
	}
	flags.AddNamespace(cmd, &f.namespace, "namespace (default: \"default\")")
	fileflag.Add(cmd.Flags(), &f.files, "file, directory, or - for standard input")
	return cmd
}

func (f *deleteFlags) run(cmd *cobra.Command, env command.Env, mesh *meshclient.Mesh, a []string) error {
	out := cmd.OutOrStdout()
	var keys []*configv1.ObjectKey
	var wanted []objectArg
	switch {
	case len(f.files) > 0 && len(a) == 0:
		docs, err := documents(env, f.files)
		if err != nil {
			return err
		}
		for _, d := range docs {
			objects, err := objectfile.Parse(d.GetName(), d.GetContent())
			if err != nil {
				return process.Refused(err)
			}
			for _, o := range objects {
				switch mistake := kinds.Check(o); {
				case mistake != nil:
					return mistake
				case !slices.Contains(kinds.Names, o.Kind):
					fmt.Fprintf(out, "%s skipped (%s:%d): the store keeps no objects of this kind\n", o, o.File, o.Line)
					continue
				}
				key := kinds.Key(o.Kind, o.Namespace, o.Name)
				key.ApiVersion = o.APIVersion
				keys = append(keys, key)
			}
		}
	case len(f.files) == 0 && len(a) > 0:
		var err error
		if wanted, err = parseObjectArgs(a); err != nil {
			return process.Usage(err)
		}
		if slices.ContainsFunc(wanted, func(n objectArg) bool { return n.name == "" }) {
			return process.Usage(errors.New("name what to delete: KIND NAME, KIND/NAME, or -f FILE"))
		}
	default:
		return process.Usage(errors.New("name what to delete: KIND NAME, or -f FILE"))
	}
	return mesh.Call(cmd.Context(), func(ctx context.Context, client *configapi.Client) error {
		for _, n := range wanted {
			key := kinds.Key(n.kind, f.namespace, n.name)
			if f.namespace == "" && strings.Contains(n.name, ".") {
				// The name may end with its namespace.
				o, err := getObject(ctx, client, n, "", false)
				if missing := new(configapi.NotFoundError); errors.As(err, &missing) {
					// An object of another source: the refusal to delete it names that.
					if other, otherErr := getObject(ctx, client, n, "", true); otherErr == nil {
						o, err = other, nil
					}
				}
				if err != nil {
					return err
				}
				key = kinds.Key(n.kind, o.GetKey().GetNamespace(), o.GetKey().GetName())
			}
			keys = append(keys, key)
		}
		slices.Reverse(keys) // objects that refer to others are deleted before those
		var broken []*configv1.Warning
		for _, k := range keys {
			res, err := client.Delete(ctx, &configv1.DeleteRequest{Key: k})
			if err != nil {
				return err
			}
			remains := ""
			if res.GetRemains() != nil {
				remains = "; that of " + placeName(res.GetRemains()) + " is in force"
			}
			fmt.Fprintf(out, "%s deleted%s\n", kinds.Text(k), remains)
			broken = append(broken, res.GetBroken()...)
		}
		printNewWarnings(out, warningTexts(withoutDeleted(broken, keys)), false)
		return nil
	})
}
