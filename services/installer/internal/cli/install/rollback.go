package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/installflags"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/operator"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

// rollbackFlags are the flags of `fairlead rollback`.
type rollbackFlags struct {
	deployFlags
	to          int
	list, print bool
}

func newRollback(env command.Env) *cobra.Command {
	var f rollbackFlags
	cmd := &cobra.Command{
		Use:   "rollback [--revision REVISION] [--to N]",
		Short: "Bring an earlier specification of an installation back",
		Long: `Install an IstioOperator again that the revision had before: the one before the last change, after a change that failed the one that it was to replace, or with
--to another one of --list. The cluster keeps the last five, with profile and settings, the last that failed among them. What differs in the specification and
which objects change is printed before anything is done. It is rendered from the install package that is named: name the older one to bring older components
back.

The rollback is a change as others: what it replaces is kept, so that a second rollback takes the first back.

A revision that an IstioOperator of the cluster holds, which an operator reconciles, is decided by that resource: nothing is changed then, and the command that gives
the resource the earlier specification is printed. --print prints the resource for it.`,
		Example: `  fairlead rollback
  fairlead rollback --list
  fairlead rollback --revision canary --to 3 --dry-run
  fairlead rollback --print | kubectl replace -f -`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, env) },
	}
	f.AddPackage(cmd)
	f.Cluster.Add(cmd)
	f.addChanges(cmd)
	f.addRecreate(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&f.Revision, "revision", "r", inventory.Default, "revision to roll back")
	fs.BoolVar(&f.Force, "force", false, "go on in spite of what validation refuses, and take over fields that others manage")
	fs.IntVar(&f.to, "to", 0, "which earlier specification, by its number in --list, instead of the latest that was completed")
	fs.BoolVar(&f.list, "list", false, "list the earlier specifications, and what each would change")
	fs.BoolVar(&f.print, "print", false, "print the earlier IstioOperator, and change nothing")
	cmd.MarkFlagsMutuallyExclusive("list", "print")
	completeRevisions(cmd, &f.Cluster)
	return cmd
}

func (f *rollbackFlags) run(cmd *cobra.Command, env command.Env) error {
	ctx := cmd.Context()
	if f.to < 1 && cmd.Flags().Changed("to") {
		return process.Usagef("--to %d: earlier specifications are numbered from 1, the one before the last change", f.to)
	}
	c, err := f.Connect()
	if err != nil {
		return err
	}
	records, err := installed(cmd, &f.Cluster, c)
	if err != nil {
		return interrupted(ctx, err)
	}
	if records, err = ofRevision(records, f.Revision); err != nil {
		return err
	}
	if len(records) > 1 {
		// That of the control plane, and not of gateways with a name of their own.
		records = slices.DeleteFunc(records, func(r *inventory.Record) bool { return r.Name != "" })
	}
	if len(records) > 1 {
		return process.Usagef("revision %s has inventories in namespaces %s and %s: name one with -i", f.Revision, records[0].Namespace,
			records[1].Namespace)
	}
	rec := records[0]
	if f.list {
		return f.writePast(cmd, rec)
	}
	past, err := f.choose(rec)
	if err != nil {
		return err
	}
	if f.print {
		return printEarlier(ctx, cmd.OutOrStdout(), c, rec, past)
	}
	if err := f.decides(cmd, c, rec); err != nil {
		return err
	}
	return f.rollBack(cmd, env, rec, past)
}

// choose finds the specification that is meant, and notes its number.
func (f *rollbackFlags) choose(rec *inventory.Record) (inventory.Installation, error) {
	all := rec.Earlier()
	if f.to == 0 {
		f.to = 1 + slices.IndexFunc(all, func(past inventory.Installation) bool { return !past.Failed })
	}
	var err error
	switch {
	case len(all) == 0 && rec.State == inventory.Applying:
		err = fmt.Errorf("revision %s has no earlier specification, and its first installation was not completed: install it again, with what "+
			"is wrong in it corrected, or remove it with fairlead uninstall --revision %s", f.Revision, f.Revision)
	case len(all) == 0:
		err = fmt.Errorf("revision %s has no earlier specification: it was not changed since it was installed", f.Revision)
	case f.to == 0:
		err = fmt.Errorf("revision %s has no earlier specification that was completed: --to names one that failed, see fairlead rollback "+
			"--revision %s --list", f.Revision, f.Revision)
	case f.to > len(all):
		err = fmt.Errorf("revision %s has %d earlier specifications, and no number %d: see fairlead rollback --revision %s --list", f.Revision,
			len(all), f.to, f.Revision)
	default:
		return all[f.to-1], nil
	}
	return inventory.Installation{}, err
}

// rollBack shows what differs, and installs an earlier specification.
func (f *rollbackFlags) rollBack(cmd *cobra.Command, env command.Env, rec *inventory.Record, past inventory.Installation) error {
	pkg, err := installflags.OpenPackage(f.Manifests)
	if err != nil {
		return err
	}
	text, err := tree.Text(merge.Operator(past.Spec))
	if err != nil {
		return err
	}
	in := install.Inputs{Inputs: merge.Inputs{Files: []merge.File{{Name: "the inventory", Text: text}}}, Package: pkg, Force: f.Force}
	req, err := installflags.Generate(cmd, in)
	if err != nil {
		return err
	}
	req.Name = rec.Name
	if req.Namespace != rec.Namespace || req.Revision != rec.Revision {
		return errors.New("the earlier specification is of another revision or namespace; nothing was changed")
	}
	return f.install(cmd, env, req, func(plan *apply.Plan) error {
		if f.out.Value != "" {
			return nil // the objects are printed, and nothing else
		}
		out := cmd.ErrOrStderr()
		if f.dryRun {
			out = cmd.OutOrStdout()
		}
		if past.Package != plan.Package {
			fmt.Fprintf(out, "version %s was installed then, the install package is %s: name another with --manifests\n", past.Package, plan.Package)
		}
		lines := specChanges(rec.Now().Spec, past.Spec)
		if len(lines) == 0 {
			lines = []string{"the specifications are the same; the install packages differ"}
		}
		fmt.Fprintf(out, "specification:\n  %s\n", strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\n  "))
		return writeDiff(env, out, changedObjects(plan))
	})
}

// specChanges lists what differs between two specifications, of which one was read from an inventory.
func specChanges(now, then tree.Map) []string { return tree.Diff(now, then) }

// decides refuses a rollback that an operator would take back.
func (f *rollbackFlags) decides(cmd *cobra.Command, c *cluster.Client, rec *inventory.Record) error {
	if rec.Holder == nil {
		return nil
	}
	ctx := cmd.Context()
	live, err := c.Get(ctx, rec.Holder.ID())
	if err != nil {
		return interrupted(ctx, err)
	}
	if live == nil || live.GetAnnotations()[operator.IgnoreAnnotation] == "true" {
		return nil
	}
	running, err := operator.Running(ctx, c, rec.Holder.Lease)
	if err != nil {
		return interrupted(ctx, err)
	}
	if !running {
		return nil // the note that install prints says what a later operator does
	}
	return fmt.Errorf("revision %s is held by %s, which an operator reconciles: the resource decides, and what is changed here would be "+
		"taken back. Nothing was changed. Give the resource the earlier specification:\n  fairlead rollback --revision %s --to %d --print | "+
		"kubectl replace -f -",
		rec.Revision, rec.Holder.ID(), rec.Revision, f.to)
}

// printEarlier prints an earlier IstioOperator: the resource that holds the revision with the earlier specification, or
// a file for `fairlead install -f`.
func printEarlier(ctx context.Context, out io.Writer, c *cluster.Client, rec *inventory.Record, past inventory.Installation) error {
	doc := merge.Operator(past.Spec)
	if rec.Holder != nil {
		live, err := c.Get(ctx, rec.Holder.ID())
		if err != nil {
			return interrupted(ctx, err)
		}
		if live != nil {
			for _, field := range []string{"managedFields", "resourceVersion", "uid", "generation", "creationTimestamp"} {
				unstructured.RemoveNestedField(live.Object, "metadata", field)
			}
			delete(live.Object, "status")
			live.Object["spec"] = past.Spec
			doc = live.Object
		}
	}
	text, err := tree.Text(doc)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// pastEntry is an earlier specification, for programs.
type pastEntry struct {
	Number  int      `json:"number"`
	At      string   `json:"at,omitempty"`
	Failed  bool     `json:"failed,omitempty"`
	Profile string   `json:"profile,omitempty"`
	Package string   `json:"package,omitempty"`
	Changes []string `json:"changes"`
}

// writePast lists the earlier specifications of a record.
func (f *rollbackFlags) writePast(cmd *cobra.Command, rec *inventory.Record) error {
	out := cmd.OutOrStdout()
	list := []pastEntry{}
	for i, past := range rec.Earlier() {
		list = append(list, pastEntry{
			Number: i + 1, At: past.At, Failed: past.Failed, Profile: past.Profile, Package: past.Package,
			Changes: append([]string{}, specChanges(rec.Now().Spec, past.Spec)...),
		})
	}
	if f.out.Value != "" {
		return structured.Print(out, f.out.Value, list)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintf(cmd.ErrOrStderr(), "revision %s has no earlier specification\n", rec.Revision)
		return err
	}
	tab := &table.Table{Header: []string{"NUMBER", "INSTALLED", "PROFILE", "VERSION", "A ROLLBACK CHANGES"}}
	for _, p := range list {
		changes := "nothing in the specification"
		if len(p.Changes) > 0 {
			changes = shortened(p.Changes)
		}
		at := orNone(p.At)
		if p.Failed {
			at = "failed " + p.At
		}
		tab.Add(strconv.Itoa(p.Number), at, orNone(p.Profile), orNone(p.Package), changes)
	}
	return tab.Write(out)
}

func orNone(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// maxShown bounds the changes that one line of --list shows.
const maxShown = 3

// shortened are the first changes, in one line.
func shortened(lines []string) string {
	var shown []string
	for _, line := range lines[:min(len(lines), maxShown)] {
		first, _, more := strings.Cut(line, "\n")
		if more {
			first += " …"
		}
		shown = append(shown, first)
	}
	if more := len(lines) - maxShown; more > 0 {
		shown = append(shown, fmt.Sprintf("%d more", more))
	}
	return strings.Join(shown, ", ")
}
