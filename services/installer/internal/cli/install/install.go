package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/installflags"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/structured"
)

// deployFlags are the flags of commands that apply an installation to a cluster.
type deployFlags struct {
	installflags.Inputs
	kubeflags.Cluster
	changeFlags
	recreate bool
}

// changeFlags are the flags of commands that change a cluster.
type changeFlags struct {
	yes, dryRun, wait bool
	// waiting bounds all waiting together.
	waiting time.Duration
	out     *output.Format
}

// defaultWait is how long is waited for readiness, as by istioctl.
const defaultWait = 5 * time.Minute

// addChanges adds the flags.
func (f *changeFlags) addChanges(cmd *cobra.Command) {
	f.out = output.New("json", "yaml")
	fs := cmd.Flags()
	fs.BoolVarP(&f.yes, "skip-confirmation", "y", false, "do not ask")
	fs.BoolVar(&f.dryRun, "dry-run", false, "print what would be done, and change nothing")
	fs.BoolVar(&f.wait, "wait", true, "wait until each component is ready before the next, and until what is deleted is gone")
	fs.DurationVar(&f.waiting, "timeout", defaultWait, "how long to wait at most, all together")
	fs.DurationVar(&f.waiting, "readiness-timeout", defaultWait, "istioctl's name of --timeout")
	cobra.CheckErr(fs.MarkHidden("readiness-timeout"))
	output.Flag(cmd, f.out)
}

func (f *changeFlags) options(env command.Env, cmd *cobra.Command) apply.Options {
	return apply.Options{Wait: f.wait, Timeout: f.waiting, Progress: installProgress(env, cmd.ErrOrStderr())}
}

func (f *deployFlags) add(cmd *cobra.Command) {
	f.Inputs.Add(cmd)
	f.Cluster.Add(cmd)
	f.addChanges(cmd)
	f.addRecreate(cmd)
	cmd.Flags().Lookup("force").Usage = "go on in spite of what validation refuses, and take over fields that others manage"
}

func (f *deployFlags) addRecreate(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.recreate, "recreate", false,
		"delete and make anew the objects of which a field changes that cannot be changed, such as the selector of a Deployment")
}

func newInstall(env command.Env) *cobra.Command {
	var f deployFlags
	cmd := &cobra.Command{
		Use: "install [-f FILE] [--set path=value]", Aliases: []string{"apply"},
		Short: "Install a control plane in a cluster, or change an installation",
		Long: `Install a control plane in a cluster, or change the installation of its revision. What differs is applied on the server's side, component by component,
and each is waited for; an installation that is as it should be is not written to. What the last installation of the revision had and this one has not is
deleted, unless another revision has it, or somebody else has taken it over.

Objects of which a field changes that cannot be changed, such as the selector of a Deployment, are named one by one; if the answer is yes, or by --recreate, they
are deleted and made anew.

Fields that others manage, with other values, are named and nothing is changed; --force takes them over. An installation that is cut short, by Ctrl-C for
example, is completed by running the same command again.`,
		Example: `  fairlead install --set profile=demo -y
  fairlead install -f mesh.yaml --revision canary
  fairlead install -f mesh.yaml --dry-run -o json`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := f.Request(cmd, env, &f.Cluster)
			if err != nil {
				return err
			}
			return f.install(cmd, env, req, nil)
		},
	}
	f.add(cmd)
	return cmd
}

// install applies a request. Check, if it is not nil, may refuse the plan.
func (f *deployFlags) install(cmd *cobra.Command, env command.Env, req *apply.Request, check func(*apply.Plan) error) error {
	c, err := f.Connect()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	plan, err := apply.NewPlan(ctx, c, req, f.Force)
	if err == nil && check != nil {
		err = check(plan)
	}
	if err != nil {
		return interrupted(ctx, err)
	}
	output.Warn(cmd.ErrOrStderr(), plan.Notes)
	output.Warn(cmd.ErrOrStderr(), c.Warnings())
	output.Warn(cmd.ErrOrStderr(), heldNotes(plan.Record))
	output.Warn(cmd.ErrOrStderr(), inventory.Foreign(ctx, c, req.Namespace))
	for _, v := range plan.Prunes {
		if v.Fate != apply.Delete && v.Reason != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is not deleted: %s\n", v.ID, v.Reason)
		}
	}
	if f.dryRun {
		return printPlan(cmd, f.out.Value, plan)
	}
	options := f.options(env, cmd)
	options.Recreate = f.recreate || !f.yes // the question names them
	if err := plan.MayRecreate(options); err != nil {
		return err
	}
	if !f.yes && plan.Changed() {
		question := anew(cmd.ErrOrStderr(), plan) +
			fmt.Sprintf("Revision %s, profile %s, will be installed in namespace %s of the cluster at %s: %s. Proceed?",
				req.Revision, req.Profile, req.Namespace, c.Host, plan.Summary())
		if yes, err := command.Confirm(env.In, cmd.ErrOrStderr(), question, "--skip-confirmation"); err != nil || !yes {
			return command.OrNothingChanged(err)
		}
	}
	if err := plan.Apply(ctx, c, options); err != nil {
		return f.back(ctx, again(interrupted(ctx, err)), plan.Record)
	}
	output.Warn(cmd.ErrOrStderr(), c.Warnings())
	if f.out.Value != "" {
		return printPlan(cmd, f.out.Value, plan)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is installed in namespace %s: %s\n", inventory.Title(plan.Record.Revision, plan.Record.Name),
		req.Namespace, plan.Summary())
	return err
}

// anew names the objects that are to be made anew, one by one, and returns what begins the question about the plan.
func anew(w io.Writer, plan *apply.Plan) (question string) {
	list := plan.Anew()
	for _, ch := range list {
		fmt.Fprintf(w, "%s is deleted and made anew: %s\n", ch.ID, ch.Why())
	}
	if len(list) > 0 {
		question = fmt.Sprintf("%d objects are deleted and made anew, which interrupts what they do. ", len(list))
	}
	return question
}

// heldNotes say which revisions IstioOperators of the cluster hold.
func heldNotes(records ...*inventory.Record) (notes []string) {
	for _, rec := range records {
		if rec.Holder != nil {
			notes = append(notes, fmt.Sprintf(
				"revision %s is held by %s: an operator that runs makes it again what that says; change or delete the resource instead", rec.Revision,
				rec.Holder.ID()))
		}
	}
	return notes
}

// interrupted is the error of a command that a signal has ended: without it, such an end would be a success.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errors.New("interrupted")
	}
	return err
}

// again says how to go on after an error that left a part undone.
func again(err error) error {
	return fmt.Errorf("%w\nWhat was done so far is in the inventory; run the same command again to complete it", err)
}

// back names the way back to what was installed before, if it is known: the same command does not correct what it asks
// for.
func (f *deployFlags) back(ctx context.Context, err error, rec *inventory.Record) error {
	if ctx.Err() != nil || rec.State != inventory.Applying || rec.Hash == "" {
		return err
	}
	command := "fairlead rollback --revision " + rec.Revision
	if f.Manifests != "" {
		command += " --manifests " + f.Manifests
	}
	return fmt.Errorf("%w, with what is wrong corrected, or bring back what was installed before: %s", err, command)
}

// plannedObject is an object of a plan, for people and programs.
type plannedObject struct {
	Object    string `json:"object"`
	Component string `json:"component,omitempty"`
	Action    string `json:"action"`
	Reason    string `json:"reason,omitempty"`
	// Fields that differ, of `fairlead diff`.
	Fields []string `json:"fields,omitempty"`
}

// plannedObjects lists what a plan does.
func plannedObjects(plan *apply.Plan) []plannedObject {
	list := []plannedObject{}
	for _, ch := range plan.Changes {
		o := plannedObject{Object: ch.String(), Component: ch.Component, Action: string(ch.Action)}
		if ch.Action == apply.Recreate {
			o.Reason = "it is made anew: " + ch.Why()
		}
		list = append(list, o)
	}
	for _, v := range plan.Prunes {
		if v.Fate == apply.Delete {
			list = append(list, plannedObject{Object: v.String(), Component: v.Component, Action: string(apply.Prune)})
		}
	}
	return list
}

func printPlan(cmd *cobra.Command, as string, plan *apply.Plan) error {
	list := plannedObjects(plan)
	if as != "" {
		return structured.Print(cmd.OutOrStdout(), as, map[string]any{
			"revision": plan.Revision, "namespace": plan.Namespace, "profile": plan.Profile, "hash": plan.Hash, "objects": list,
		})
	}
	var b strings.Builder
	for _, o := range list {
		if o.Action != string(apply.Unchanged) {
			fmt.Fprintf(&b, "%s %s\n", o.Action, o.Object)
		}
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s%s in namespace %s: %s\n", b.String(), inventory.Title(plan.Revision, plan.Record.Name),
		plan.Namespace, plan.Summary())
	return err
}

// installed returns the records of a namespace, or of all if the flag -i was not given.
func installed(cmd *cobra.Command, f *kubeflags.Cluster, c *cluster.Client) ([]*inventory.Record, error) {
	if cmd.Flags().Changed("istioNamespace") {
		return inventory.In(cmd.Context(), c, f.IstioNamespace)
	}
	return inventory.List(cmd.Context(), c)
}

// ofRevision returns the records of a revision. Its error names those that there are.
func ofRevision(all []*inventory.Record, revision string) ([]*inventory.Record, error) {
	var found []*inventory.Record
	for _, r := range all {
		if r.Revision == revision {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("revision %s is not installed%s", revision, installedRevisions(all))
	}
	return found, nil
}

func installedRevisions(all []*inventory.Record) string {
	if len(all) == 0 {
		return "; no inventory of an installation is in the cluster"
	}
	return "; installed: " + strings.Join(inventory.Revisions(all), ", ")
}

// completeRevisions completes -r by what is installed.
func completeRevisions(cmd *cobra.Command, f *kubeflags.Cluster) {
	_ = cmd.RegisterFlagCompletionFunc("revision", complete.Names(func(cmd *cobra.Command, _ []string) []string {
		c, err := f.Connect()
		if err != nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), complete.Timeout)
		defer cancel()
		all, _ := inventory.List(ctx, c)
		return inventory.Revisions(all)
	}))
}

// exitDiffers is the exit code of a comparison that has found a difference.
const exitDiffers = 4

func differs(format string, a ...any) error {
	return process.WithExitCode(fmt.Errorf(format, a...), exitDiffers)
}
