package install

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/structured"
)

func newDiff(env command.Env) *cobra.Command {
	var f deployFlags
	out := output.New("json", "yaml")
	cmd := &cobra.Command{
		Use:   "diff [-f FILE] [--set path=value]",
		Short: "Print what an installation would change in a cluster",
		Long: `Print what ` + "`fairlead install`" +
			` with the same flags would change, object by object: - is what the cluster has, + what it would have. The API server applies
each object without effect, so that defaults and admission webhooks are part of it. Values of Secrets are not shown. Fields with other values that others
manage, which install refuses to change without --force, are shown with their manager.

Nothing is printed if nothing would change, and then the exit code is 0; it is 4 if something would.`,
		Example: `  fairlead diff -f mesh.yaml
  fairlead diff -f mesh.yaml -o json`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := f.Request(cmd, env, &f.Cluster)
			if err != nil {
				return err
			}
			c, err := f.Connect()
			if err != nil {
				return err
			}
			plan, err := apply.NewComparison(cmd.Context(), c, req, f.Force)
			if err != nil {
				return interrupted(cmd.Context(), err)
			}
			output.Warn(cmd.ErrOrStderr(), plan.Notes)
			output.Warn(cmd.ErrOrStderr(), c.Warnings())
			list := changedObjects(plan)
			switch {
			case out.Value != "":
				err = structured.Print(cmd.OutOrStdout(), out.Value, list)
			case len(list) > 0:
				err = writeDiff(env, cmd.OutOrStdout(), list)
			}
			if err == nil && len(list) > 0 {
				err = differs("%s", plan.Summary())
			}
			return err
		},
	}
	f.Inputs.Add(cmd)
	f.Cluster.Add(cmd)
	cmd.Flags().Lookup("force").Usage = "go on in spite of what validation refuses, and say nothing of who manages fields"
	output.Flag(cmd, out)
	return cmd
}

// changedObjects lists the objects that a plan changes, with the fields that differ.
func changedObjects(plan *apply.Plan) []plannedObject {
	list := []plannedObject{}
	for i, o := range plannedObjects(plan) {
		if o.Action == string(apply.Unchanged) {
			continue
		}
		if o.Action == string(apply.Configure) {
			ch := plan.Changes[i]
			o.Fields = tree.Diff(apply.Shown(ch.Live, ch.After))
			switch {
			case len(ch.Managed) > 0:
				o.Reason = ch.WhoManages() + ": only install --force takes it over"
			case ch.Unsure:
				o.Reason = "an admission webhook does not answer, so that only applying shows what changes"
			case len(o.Fields) == 0:
				o.Reason = "only the manager of fields"
			}
		}
		list = append(list, o)
	}
	return list
}

// writeDiff prints objects with their fields.
func writeDiff(env command.Env, out io.Writer, list []plannedObject) error {
	var b strings.Builder
	for _, o := range list {
		switch o.Action {
		case string(apply.Create):
			fmt.Fprintf(&b, "+ %s\n", o.Object)
		case string(apply.Prune):
			fmt.Fprintf(&b, "- %s\n", o.Object)
		default:
			b.WriteString(o.Object + "\n")
			if o.Reason != "" {
				fmt.Fprintf(&b, "    %s\n", o.Reason)
			}
			for line := range strings.SplitSeq(strings.Join(o.Fields, "\n"), "\n") {
				if line != "" {
					fmt.Fprintf(&b, "%s   %s\n", line[:1], line[1:])
				}
			}
		}
	}
	return writeColoured(env, out, b.String())
}
