package install

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/installflags"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/structured"
)

// uninstallFlags are the flags of `fairlead uninstall`.
type uninstallFlags struct {
	installflags.Inputs
	kubeflags.Cluster
	changeFlags
	apply.RemovalOptions
}

func newUninstall(env command.Env) *cobra.Command {
	var f uninstallFlags
	cmd := &cobra.Command{
		Use:   "uninstall --revision REVISION|--purge|-f FILE",
		Short: "Remove a revision of the control plane, or all of them, from a cluster",
		Long: `Remove what installations have made, by the inventory that is kept in the cluster. What is deleted is listed first.

With --revision, what other revisions have too stays, and so do namespaces, PersistentVolumeClaims, and CustomResourceDefinitions that have objects; a
later --purge knows them.
With -f or --set, the same happens to those objects of the revision that the IstioOperator makes, and the rest of the revision stays installed.
With --purge, everything that any revision has installed goes, and what is left of revisions that were removed before: data of PersistentVolumeClaims, the
ConfigMaps that the ca has made in every namespace, the webhooks of their tags, definitions, and namespaces that an installation has made. A definition that has
objects, and a namespace with what no installation has made, stay, and what is in them is counted; --with-contents deletes these too, with all that is in them.
What somebody else has taken over stays in each case, and is named.

Proxies and namespaces that use what goes are counted before anything is asked.

An object whose deletion does not end is named, with the finalizer that holds it up.`,
		Example: `  fairlead uninstall --revision canary
  fairlead uninstall -f mesh.yaml
  fairlead uninstall --purge -y
  fairlead uninstall --purge --dry-run -o json
  fairlead uninstall --purge --with-contents`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.uninstall(cmd, env) },
	}
	f.Inputs.Add(cmd)
	f.Cluster.Add(cmd)
	f.addChanges(cmd)
	fs := cmd.Flags()
	fs.Lookup("filename").Usage = "file with the IstioOperator whose objects are removed, or - for standard input; may be repeated, or a " +
		"list with commas"
	fs.Lookup("set").Usage = "a setting of that IstioOperator's spec, path=value; may be repeated"
	fs.Lookup("revision").Usage = "revision to remove"
	fs.Lookup("force").Usage = "with -f or --set: go on in spite of what validation refuses; it is printed as warnings"
	fs.BoolVar(&f.Purge, "purge", false, "remove everything that any revision has installed")
	fs.BoolVar(&f.Contents, "with-contents", false,
		"with --purge: delete definitions and namespaces with what others have in them, such as every VirtualService")
	completeRevisions(cmd, &f.Cluster)
	return cmd
}

// ofFiles says whether an IstioOperator says what goes.
func (f *uninstallFlags) ofFiles() bool { return len(f.Files) > 0 || len(f.Set) > 0 }

func (f *uninstallFlags) uninstall(cmd *cobra.Command, env command.Env) error {
	given := 0
	for _, one := range []bool{f.Revision != "", f.Purge, f.ofFiles()} {
		if one {
			given++
		}
	}
	if given != 1 {
		return process.Usagef("name what goes: --revision REVISION for one, or --purge for all, or -f FILE for what an IstioOperator makes, " +
			"one of them")
	}
	if f.Contents && !f.Purge {
		return process.Usage(errors.New("--with-contents has no effect without --purge"))
	}
	if !f.ofFiles() && (f.Manifests != "" || f.Force) {
		return process.Usage(errors.New("--manifests and --force have no effect without -f FILE or --set"))
	}
	var req *apply.Request
	if f.ofFiles() {
		var err error
		if req, err = f.Request(cmd, env, &f.Cluster); err != nil {
			return err
		}
	}
	c, err := f.Connect()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	removal, err := f.removal(cmd, c, req)
	if err != nil {
		return interrupted(ctx, err)
	}
	if len(removal.Records) == 0 && len(removal.Verdicts) == 0 {
		if f.Purge && !f.dryRun {
			if err := inventory.Tidy(ctx, c); err != nil {
				return err
			}
		}
		n, err := apply.AwaitNamespaces(ctx, c, f.options(env, cmd))
		if n > 0 || err != nil {
			return interrupted(ctx, err)
		}
		_, err = fmt.Fprintln(cmd.ErrOrStderr(), "nothing is installed: no inventory of an installation is in the cluster")
		return err
	}
	uses, err := f.uses(cmd, c, removal)
	if err != nil {
		return interrupted(ctx, err)
	}
	if f.dryRun && f.out.Value != "" {
		return structured.Print(cmd.OutOrStdout(), f.out.Value, fates(removal))
	}
	if f.dryRun {
		return writeRemoval(cmd.OutOrStdout(), removal)
	}
	if err := writeRemoval(cmd.ErrOrStderr(), removal); err != nil {
		return err
	}
	output.Warn(cmd.ErrOrStderr(), heldNotes(removal.Records...))
	if !f.yes {
		if yes, err := command.Confirm(env.In, cmd.ErrOrStderr(), uses+"Proceed?", "--skip-confirmation"); err != nil || !yes {
			return command.OrNothingChanged(err)
		}
	}
	if err := removal.Run(ctx, c, f.options(env, cmd)); err != nil {
		return again(interrupted(ctx, err))
	}
	if f.out.Value != "" {
		return structured.Print(cmd.OutOrStdout(), f.out.Value, fates(removal))
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), "uninstalled")
	return err
}

// uses warns of who uses what goes, and returns what begins the question about it. What an IstioOperator's objects are
// to a revision that stays, nobody knows.
func (f *uninstallFlags) uses(cmd *cobra.Command, c *cluster.Client, removal *apply.Removal) (question string, err error) {
	if f.ofFiles() {
		return "", nil
	}
	uses, err := removal.Uses(cmd.Context(), c)
	for _, u := range uses {
		output.Warn(cmd.ErrOrStderr(), []string{u.String()})
		if u.Unknown == "" {
			question = "What goes is in use. "
		}
	}
	return question, err
}

// removal decides what goes. The request is nil if no IstioOperator says it.
func (f *uninstallFlags) removal(cmd *cobra.Command, c *cluster.Client, req *apply.Request) (*apply.Removal, error) {
	ctx := cmd.Context()
	// Other namespaces' revisions matter too: what they have stays.
	named := f.IstioNamespace
	if req != nil {
		named = req.Namespace
	}
	all, err := inventory.List(ctx, c, named)
	if err != nil {
		return nil, err
	}
	output.Warn(cmd.ErrOrStderr(), inventory.Foreign(ctx, c, named))
	if req != nil {
		records, err := ofRevision(all, req.Revision)
		if err != nil {
			return nil, err
		}
		rec := inventory.Find(records, req.Revision, req.Namespace, req.Name)
		if !rec.Stored() { // gateways that are the revision's own
			rec = inventory.Find(records, req.Revision, req.Namespace, "")
		}
		if !rec.Stored() {
			return nil, fmt.Errorf("revision %s is installed in namespace %s, and not in %s: name it with -i, or in values.global.istioNamespace",
				req.Revision, records[0].Namespace, req.Namespace)
		}
		return apply.NewPartialRemoval(ctx, c, rec, all, req)
	}
	records, err := installed(cmd, &f.Cluster, c)
	if err != nil {
		return nil, err
	}
	records = within(all, records)
	if !f.Purge {
		if records, err = ofRevision(records, f.Revision); err != nil {
			return nil, err
		}
	}
	return apply.NewRemoval(ctx, c, records, all, f.RemovalOptions)
}

// within returns those of all records that some are.
func within(all, some []*inventory.Record) []*inventory.Record {
	var out []*inventory.Record
	for _, r := range some {
		out = append(out, inventory.Find(all, r.Revision, r.Namespace, r.Name))
	}
	return out
}

// fates lists what happens to the objects of a removal, those that are not there left out.
func fates(r *apply.Removal) []plannedObject {
	list := []plannedObject{}
	for _, v := range r.Verdicts {
		if v.Live != nil {
			list = append(list, plannedObject{Object: v.String(), Component: v.Component, Action: string(v.Fate), Reason: v.Reason})
		}
	}
	return list
}

func writeRemoval(w io.Writer, r *apply.Removal) error {
	for _, v := range r.Verdicts {
		var err error
		switch {
		case v.Live == nil:
		case v.Fate != apply.Delete:
			_, err = fmt.Fprintf(w, "keep   %s: %s\n", v.ID, v.Reason)
		case v.Reason != "":
			_, err = fmt.Fprintf(w, "delete %s: %s\n", v.ID, v.Reason)
		default:
			_, err = fmt.Fprintf(w, "delete %s\n", v.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
