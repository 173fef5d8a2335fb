package config

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/fileflag"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/proxystatus"
	"fairlead.dev/services/installer/internal/structured"
)

// applyFlags are the flags of `fairlead config apply`.
type applyFlags struct {
	files   []string
	dryRun  bool
	skip    bool
	strict  bool
	wait    bool
	timeout time.Duration
	out     *output.Format
}

func newApply(env command.Env, flags *meshflags.Flags) *cobra.Command {
	f := applyFlags{out: output.New("json", "yaml")}
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Create or replace objects: all of them, or none if one is refused",
		Example: `  fairlead config apply -f reviews-v3.yaml --wait
  fairlead config apply -f - --dry-run < mesh.yaml`,
		Args: fileflag.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return applyConfig(cmd.Context(), env, flags.Machine(), f, cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	fileflag.Add(fs, &f.files, "file, directory, or - for standard input")
	fs.BoolVar(&f.dryRun, "dry-run", false, "check everything and change nothing")
	fs.BoolVar(&f.skip, "skip-unread", false,
		"pass over objects of kinds that nobody in the mesh reads, such as Deployments, and name them; without it they are refused")
	fs.BoolVar(&f.strict, "strict", false, "refuse objects with warnings, and a change that causes some about others, and change nothing")
	fs.BoolVar(&f.wait, "wait", false, "wait until every connected proxy has acknowledged the change, and tell how it ended")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long --wait waits")
	output.Flag(cmd, f.out)
	return cmd
}

// applyAnswer is what `config apply` prints with -o json or yaml.
type applyAnswer struct {
	Results []appliedObject `json:"results"`
	// Skipped are the objects that --skip-unread has left out: no service reads their kinds.
	Skipped []string `json:"skipped,omitempty"`
	// Broken are warnings about other objects that the change has caused.
	Broken   []string    `json:"broken,omitempty"`
	Revision uint64      `json:"revision"`
	DryRun   bool        `json:"dryRun,omitempty"`
	Wait     *waitAnswer `json:"wait,omitempty"`
}

type appliedObject struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Action is "created", "configured" or "unchanged".
	Action string `json:"action"`
	// Warnings are findings about the object: fields without an effect, references to nothing.
	Warnings []string `json:"warnings,omitempty"`
	// Overrides are the places of the same object in files. The store's version is in force instead of them.
	Overrides []string `json:"overrides,omitempty"`
	// OverriddenBy is the place of the same object that is in force instead of this one.
	OverriddenBy string `json:"overriddenBy,omitempty"`
}

func applyConfig(ctx context.Context, env command.Env, mesh *meshclient.Mesh, f applyFlags, out io.Writer) error {
	docs, err := documents(env, f.files)
	if err != nil {
		return err
	}
	req := &configv1.ApplyRequest{Documents: docs, DryRun: f.dryRun || f.strict, SkipUnread: f.skip}
	if err := req.Validate(); err != nil {
		return process.Refusedf("nothing was changed: %w", err)
	}
	client, err := mesh.Dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	began := time.Now()
	call, cancel := context.WithTimeout(ctx, meshclient.CallTimeout)
	defer cancel()
	res, err := client.Apply(call, req)
	if err == nil && f.strict {
		if err := withoutWarnings(res); err != nil {
			return err
		}
		if !f.dryRun {
			req.DryRun = false
			res, err = client.Apply(call, req)
		}
	}
	if err != nil {
		return configapi.WithExitCode(client.Explain(err))
	}
	answer := applyAnswer{Revision: res.GetRevision(), DryRun: f.dryRun, Results: []appliedObject{}}
	for _, r := range res.GetResults() {
		o := appliedObject{
			Kind: kinds.NameOf(r.GetKey()), Namespace: r.GetKey().GetNamespace(), Name: r.GetKey().GetName(), Action: action(r.GetAction()),
			Warnings: r.GetWarnings(),
		}
		for _, p := range r.GetOverrides() {
			o.Overrides = append(o.Overrides, placeName(p))
		}
		if r.GetOverriddenBy() != nil {
			o.OverriddenBy = placeName(r.GetOverriddenBy())
		}
		answer.Results = append(answer.Results, o)
	}
	answer.Broken = warningTexts(res.GetBroken())
	for _, u := range res.GetUnread() {
		answer.Skipped = append(answer.Skipped, fmt.Sprintf("%s: %s: %s", u.GetLocation(), u.GetObject(), u.GetMessage()))
	}
	if f.out.Value == "" {
		answer.print(out)
	}
	var waitErr error
	if f.wait && !f.dryRun {
		answer.Wait, waitErr = wait(ctx, client, res.GetRevision(), f.timeout, began)
		if answer.Wait != nil && f.out.Value == "" {
			answer.Wait.print(out)
		}
	}
	if f.out.Value != "" {
		if err := structured.Print(out, f.out.Value, answer); err != nil {
			return err
		}
	}
	return waitErr
}

// withoutWarnings returns an error if a dry run has any.
func withoutWarnings(res *configv1.ApplyResponse) error {
	var all []string
	for _, r := range res.GetResults() {
		all = append(all, r.GetWarnings()...)
	}
	for _, text := range warningTexts(res.GetBroken()) {
		all = append(all, "now wrong: "+text)
	}
	if len(all) == 0 {
		return nil
	}
	return process.Refusedf("refused by --strict, nothing was changed:\n  %s", strings.Join(all, "\n  "))
}

func action(a configv1.Action) string {
	return strings.ToLower(strings.TrimPrefix(a.String(), "ACTION_"))
}

func (a applyAnswer) print(out io.Writer) {
	suffix := ""
	if a.DryRun {
		suffix = " (dry run)"
	}
	for _, r := range a.Results {
		over := ""
		if len(r.Overrides) > 0 {
			over = ", overrides " + strings.Join(r.Overrides, ", ")
		}
		fmt.Fprintf(out, "%s %s %s%s%s\n", r.Kind, kinds.FullName(r.Namespace, r.Name), r.Action, suffix, over)
		if r.OverriddenBy != "" {
			fmt.Fprintf(out, "  warning: has no effect: the same object of %s counts\n", r.OverriddenBy)
		}
		for _, w := range r.Warnings {
			fmt.Fprintf(out, "  warning: %s\n", w)
		}
	}
	for _, s := range a.Skipped {
		fmt.Fprintf(out, "skipped: %s\n", s)
	}
	printNewWarnings(out, a.Broken, a.DryRun)
}

// waitAnswer says which proxies have acknowledged a revision by the end of --wait.
type waitAnswer struct {
	Revision uint64      `json:"revision"`
	Acked    uint32      `json:"acked"`
	Pending  []string    `json:"pending"`
	Rejected []rejection `json:"rejected"`
	// Milliseconds is the time from the write to the end of the wait.
	Milliseconds float64 `json:"milliseconds"`
}

type rejection struct {
	Proxy  string `json:"proxy"`
	Type   string `json:"type"`
	Reason string `json:"reason"`
}

// wait waits until every connected proxy has acknowledged the revision, 0 for the newest, or timeout has passed. It
// returns an error as well as the answer if not every proxy has.
func wait(ctx context.Context, client *configapi.Client, revision uint64, timeout time.Duration, began time.Time) (*waitAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, err := client.WaitAcked(ctx, &configv1.WaitAckedRequest{Sequence: revision})
	if err != nil {
		return nil, configapi.WithExitCode(client.Explain(err))
	}
	w := &waitAnswer{
		Revision: res.GetRevision().GetSequence(), Acked: res.GetAcked(), Pending: []string{}, Rejected: []rejection{},
		Milliseconds: float64(time.Since(began).Microseconds()) / 1000,
	}
	for _, id := range res.GetPending() {
		w.Pending = append(w.Pending, meshclient.ProxyName(id))
	}
	for _, p := range res.GetRejected() {
		for _, ty := range p.GetTypes() {
			if r := ty.GetRejection(); r != nil {
				w.Rejected = append(w.Rejected, rejection{meshclient.ProxyName(p.GetNodeId()), proxystatus.TypeName(ty.GetTypeUrl()), r.GetMessage()})
			}
		}
	}
	if len(w.Pending)+len(res.GetRejected()) > 0 {
		return w, fmt.Errorf("revision %d: not every proxy has taken it (%d pending, %d rejected); see `fairlead proxy-status`",
			w.Revision, len(w.Pending), len(res.GetRejected()))
	}
	return w, nil
}

func (w *waitAnswer) print(out io.Writer) {
	fmt.Fprintf(out, "revision %d: %d proxies acked, %d pending, %d rejected after %.1f ms\n",
		w.Revision, w.Acked, len(w.Pending), len(w.Rejected), w.Milliseconds)
	for _, p := range w.Pending {
		fmt.Fprintf(out, "  pending: %s\n", p)
	}
	for _, r := range w.Rejected {
		fmt.Fprintf(out, "  rejected: %s, %s: %s\n", r.Proxy, r.Type, r.Reason)
	}
}

// warningTexts returns the texts of warnings.
func warningTexts(list []*configv1.Warning) []string {
	return lists.Map(list, (*configv1.Warning).GetText)
}

// printNewWarnings prints the warnings about other objects that apply or delete has caused.
func printNewWarnings(out io.Writer, texts []string, dryRun bool) {
	became := "now wrong"
	if dryRun {
		became = "would be wrong"
	}
	for _, text := range texts {
		fmt.Fprintf(out, "warning: %s: %s\n", became, text)
	}
}

// withoutDeleted drops the warnings about objects that `config delete` has deleted itself: it deletes one after the
// other, and the first deletion may cause a warning about an object that goes next.
func withoutDeleted(list []*configv1.Warning, deleted []*configv1.ObjectKey) []*configv1.Warning {
	return slices.DeleteFunc(list, func(w *configv1.Warning) bool {
		return slices.ContainsFunc(deleted, func(k *configv1.ObjectKey) bool {
			o := w.GetObject()
			return o.GetKind() == k.GetKind() && o.GetNamespace() == k.GetNamespace() && o.GetName() == k.GetName()
		})
	})
}
