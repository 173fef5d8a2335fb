package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
	"fairlead.dev/services/installer/internal/tag"
)

func newTag(env command.Env) *cobra.Command {
	return command.Group("tag", "Names for revisions of the control plane, which namespaces can refer to",
		newTagList(), newTagSet(env, false), newTagSet(env, true), newTagRemove(env))
}

// tagFlags are the flags of the commands that work with tags.
type tagFlags struct {
	kubeflags.Cluster
	tag.Options
	overwrite, yes bool
	manifests      string
}

// tags returns the client, and the context that bounds its calls.
func (f *tagFlags) tags(ctx context.Context) (tag.Client, context.Context, context.CancelFunc, error) {
	api, err := f.API()
	if err != nil {
		return tag.Client{}, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 4*f.Timeout)
	return tag.Client{API: api, Namespace: f.IstioNamespace}, ctx, cancel, nil
}

// tagError gives an error of a tag its exit code.
func tagError(err error) error {
	if errors.Is(err, tag.ErrRefused) {
		return process.Refused(err)
	}
	return kube.Explain(err)
}

func newTagList() *cobra.Command {
	var f tagFlags
	out := output.New("table", "json", "yaml")
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"show"},
		Short: "List the tags, and the revisions that have none",
		Long:  `List the tags with their revisions and the namespaces that refer to them by the label istio.io/rev, and the revisions that no tag stands for.`,
		Args:  command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, ctx, cancel, err := f.tags(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			list, err := client.List(ctx)
			if err != nil {
				return tagError(err)
			}
			if out.Value != "" {
				if list == nil {
					list = []tag.Tag{}
				}
				return structured.Print(cmd.OutOrStdout(), out.Value, list)
			}
			if len(list) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "no tags and no revisions")
				return nil
			}
			tab := &table.Table{Header: []string{"TAG", "REVISION", "NAMESPACES"}}
			for _, t := range list {
				tab.Add(t.Tag, t.Revision, strings.Join(t.Namespaces, ","))
			}
			return tab.Write(cmd.OutOrStdout())
		},
	}
	f.Add(cmd)
	output.Flag(cmd, out)
	return cmd
}

func newTagSet(env command.Env, generate bool) *cobra.Command {
	var f tagFlags
	cmd := &cobra.Command{
		Use:   "set TAG --revision REVISION",
		Short: "Make a tag, or let it stand for another revision",
		Long: `Let a tag stand for a revision: namespaces and Pods with the label istio.io/rev=TAG are injected by that revision. The tag is made from the
MutatingWebhookConfiguration of the revision's injector, which must be there.

The tag default injects where the label istio-injection=enabled is, too, and validates objects that name no revision. The injector of the revision
default then injects nothing by itself until the tag is removed.`,
		Example: `  fairlead tag set prod --revision 1-31-0
  fairlead tag set prod --revision 1-31-1 --overwrite
  kubectl label namespace shop istio.io/rev=prod`,
		Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			f.Tag = a[0]
			if f.Revision == "" {
				return process.Usage(errors.New("name the revision that the tag stands for with --revision"))
			}
			if f.manifests != "" {
				output.Warn(cmd.ErrOrStderr(), []string{"--manifests is not read: a tag is made from the webhooks of its revision's injector"})
			}
			return setTag(cmd, env, &f, generate)
		},
	}
	if generate {
		cmd.Use, cmd.Short = "generate TAG --revision REVISION", "Print the objects of a tag, and change nothing"
		cmd.Example = "  fairlead tag generate prod --revision 1-31-0 | kubectl apply -f -"
	}
	f.Add(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&f.Revision, "revision", "r", "", "revision that the tag stands for")
	fs.BoolVar(&f.overwrite, "overwrite", false, "replace a tag that is there")
	fs.BoolVarP(&f.yes, "skip-confirmation", "y", false, "of the tag default: do not ask before other namespaces are injected by it")
	fs.BoolVar(&f.AutoInject, "auto-inject-namespaces", false, "of the tag default: inject where no label says anything")
	fs.StringVar(&f.Webhook, "webhook-name", "", "name of the MutatingWebhookConfiguration (default: istio-revision-tag-TAG)")
	fs.StringVarP(&f.manifests, "manifests", "d", "", "istioctl's; it is not read")
	_ = cmd.RegisterFlagCompletionFunc("revision", f.Complete(tag.Revisions))
	return cmd
}

func setTag(cmd *cobra.Command, env command.Env, f *tagFlags, generate bool) error {
	client, ctx, cancel, err := f.tags(cmd.Context())
	if err != nil {
		return err
	}
	defer cancel()
	plan, err := client.Make(ctx, f.Options, f.overwrite || generate)
	if err != nil {
		return tagError(err)
	}
	output.Warn(cmd.ErrOrStderr(), plan.Warnings)
	if generate {
		return writeObjects(cmd.OutOrStdout(), plan.List())
	}
	if len(plan.Moves) > 0 && !f.yes {
		question := fmt.Sprintf("New Pods in namespaces %s are injected by revision %s instead of default. Proceed?",
			strings.Join(plan.Moves, ", "), f.Revision)
		if yes, err := command.Confirm(env.In, cmd.ErrOrStderr(), question, "--skip-confirmation"); err != nil || !yes {
			return command.OrNothingChanged(err)
		}
	}
	if err := client.Set(ctx, plan); err != nil {
		return tagError(fmt.Errorf("tag %s is not complete: %w", f.Tag, err))
	}
	verb := "created"
	if plan.Old != "" {
		verb = "changed"
	}
	fmt.Fprintf(cmd.OutOrStdout(), "tag %s %s: it stands for revision %s; `kubectl label namespace NAMESPACE istio.io/rev=%s` injects by it\n",
		f.Tag, verb, f.Revision, f.Tag)
	return nil
}

func newTagRemove(env command.Env) *cobra.Command {
	var f tagFlags
	cmd := &cobra.Command{
		Use: "remove TAG", Aliases: []string{"delete"},
		Short: "Remove a tag",
		Long:  `Remove a tag. New Pods of namespaces that refer to it get no proxy any more; which these are is asked about first.`,
		Args:  command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			client, ctx, cancel, err := f.tags(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			using, err := client.Using(ctx, a[0])
			if err != nil {
				return tagError(err)
			}
			users := fmt.Sprintf("amespaces %s are injected by tag %s", strings.Join(using, ", "), a[0])
			switch {
			case len(using) == 0:
			case f.yes:
				output.Warn(cmd.ErrOrStderr(), []string{"n" + users + ", which is removed"})
			default:
				if yes, err := command.Confirm(env.In, cmd.ErrOrStderr(), "N"+users+". Proceed?", "--skip-confirmation"); err != nil || !yes {
					return command.OrNothingChanged(err)
				}
			}
			warnings, err := client.Remove(ctx, a[0])
			output.Warn(cmd.ErrOrStderr(), warnings)
			if err != nil {
				return tagError(fmt.Errorf("tag %s is not removed as a whole: %w", a[0], err))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "tag %s removed\n", a[0])
			return nil
		},
	}
	f.Add(cmd)
	cmd.Flags().BoolVarP(&f.yes, "skip-confirmation", "y", false, "do not ask about namespaces that refer to the tag")
	names := f.Complete(tag.Names)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(a) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd, a, begun)
	}
	return cmd
}

// writeObjects writes Kubernetes objects as one YAML stream, without the fields that the API server sets.
func writeObjects(out io.Writer, objects []any) error {
	for i, o := range objects {
		data, err := json.Marshal(o)
		if err != nil {
			return err
		}
		m, err := tree.ParseMap(data)
		if err != nil {
			return err
		}
		delete(m, "status")
		tree.Delete(m, "metadata", "creationTimestamp")
		text, err := tree.Text(m)
		if err != nil {
			return err
		}
		if i > 0 {
			text = append([]byte("---\n"), text...)
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	return nil
}
