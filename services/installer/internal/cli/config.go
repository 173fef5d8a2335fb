package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/objectfile"
	"fairlead.dev/services/installer/internal/table"
)

func newConfig(env Env, t *target) *cobra.Command {
	cmd := group("config", "Read and write the mesh's objects", newApply(env, t), newGet(t), newConfigStatus(t), newEdit(env, t), newDelete(env, t),
		newWhoAmI(t), newCanI(t), newBan(t), newUnban(t), newBans(t), newAudit(t))
	t.register(cmd.PersistentFlags())
	return cmd
}

// callTimeout bounds one request to config-watcher.
const callTimeout = 15 * time.Second

// applyFlags are the flags of `fairlead config apply`.
type applyFlags struct {
	files   []string
	dryRun  bool
	skip    bool
	wait    bool
	timeout time.Duration
	out     *format
}

func newApply(env Env, t *target) *cobra.Command {
	f := applyFlags{out: newFormat("json", "yaml")}
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Create or replace objects: all of them, or none if one is refused",
		Example: `  fairlead config apply -f reviews-v3.yaml --wait
  fairlead config apply -f - --dry-run < mesh.yaml`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return apply(cmd.Context(), env, t, f, cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	filesFlag(fs, &f.files, "file, directory, or - for standard input")
	fs.BoolVar(&f.dryRun, "dry-run", false, "check everything and change nothing")
	fs.BoolVar(&f.skip, "skip-unread", false, "pass over objects of kinds that nobody in the mesh reads, such as Deployments, and name them; without it they are refused")
	fs.BoolVar(&f.wait, "wait", false, "wait until every connected proxy has acknowledged the change, and tell how it ended")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long --wait waits")
	outputFlag(cmd, f.out)
	return cmd
}

// documents reads the files; "-" is standard input.
func documents(env Env, files []string) ([]*configv1.Document, error) {
	if len(files) == 0 {
		return nil, usage(errors.New("name a file with -f; - is standard input"))
	}
	var docs []*configv1.Document
	for _, name := range files {
		if name == "-" {
			content, err := objectfile.Read("standard input", env.In)
			if err != nil {
				return nil, err
			}
			docs = append(docs, &configv1.Document{Name: "stdin", Content: content})
			continue
		}
		paths, err := objectfile.List([]string{name})
		if err != nil {
			return nil, usage(err)
		}
		for _, path := range paths {
			content, err := readDocuments(path)
			if err != nil {
				return nil, err
			}
			if len(bytes.TrimSpace(content)) == 0 {
				return nil, refused(fmt.Errorf("%s: holds no object; write one, or do not name it", path))
			}
			docs = append(docs, &configv1.Document{Name: path, Content: content})
		}
	}
	return docs, nil
}

// readDocuments reads a file, or a pipe that a shell has opened for the command, as in -f <(helm template .).
func readDocuments(path string) ([]byte, error) {
	if info, err := os.Stat(path); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return objectfile.ReadFile(path)
	}
	return readAny(path)
}

// readAny reads a file of any kind, pipes included, up to the bound of mesh files.
func readAny(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return objectfile.Read(path, f)
}

// applied is the answer of apply as JSON.
type applied struct {
	Results []appliedObject `json:"results"`
	// Skipped are objects of kinds that nobody reads.
	Skipped []string `json:"skipped,omitempty"`
	// Broken is what the change has made wrong about other objects.
	Broken   []string `json:"broken,omitempty"`
	Revision uint64   `json:"revision"`
	DryRun   bool     `json:"dryRun,omitempty"`
	Wait     *waited  `json:"wait,omitempty"`
}

type appliedObject struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Action is "created", "configured" or "unchanged".
	Action string `json:"action"`
	// Warnings name fields that are accepted and have no effect, and what is found about the object in its mesh.
	Warnings []string `json:"warnings,omitempty"`
	// Overrides are the places of the same object in files, which does not count any more.
	Overrides []string `json:"overrides,omitempty"`
	// OverriddenBy is the place of the same object that counts instead of this one.
	OverriddenBy string `json:"overriddenBy,omitempty"`
}

// storeSource is config-watcher's name for what its API stores.
const storeSource = "memory"

// fullName is "<namespace>/<name>", the name alone of an object without a namespace.
func fullName(namespace, name string) string { return strings.TrimPrefix(namespace+"/"+name, "/") }

// placeName is where an object is written, for a sentence.
func placeName(p *configv1.Place) string {
	switch {
	case p.GetLocation() != "":
		return p.GetLocation()
	case p.GetSource() == storeSource:
		return "the store"
	}
	return p.GetSource()
}

func apply(ctx context.Context, env Env, t *target, f applyFlags, out io.Writer) error {
	docs, err := documents(env, f.files)
	if err != nil {
		return err
	}
	client, err := t.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	began := time.Now()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := client.Apply(call, &configv1.ApplyRequest{Documents: docs, DryRun: f.dryRun, SkipUnread: f.skip})
	if err != nil {
		return exit(client.Explain(err))
	}
	answer := applied{Revision: res.GetRevision(), DryRun: f.dryRun, Results: []appliedObject{}}
	for _, r := range res.GetResults() {
		o := appliedObject{
			Kind: r.GetKey().GetKind(), Namespace: r.GetKey().GetNamespace(), Name: r.GetKey().GetName(), Action: action(r.GetAction()),
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
	if f.out.value == "" {
		answer.print(out)
	}
	var waitErr error
	if f.wait && !f.dryRun {
		answer.Wait, waitErr = wait(ctx, client, res.GetRevision(), f.timeout, began)
		if answer.Wait != nil && f.out.value == "" {
			answer.Wait.print(out)
		}
	}
	if f.out.value != "" {
		if err := printTree(out, f.out.value, answer); err != nil {
			return err
		}
	}
	return waitErr
}

func action(a configv1.Action) string {
	return strings.ToLower(strings.TrimPrefix(a.String(), "ACTION_"))
}

func (a applied) print(out io.Writer) {
	suffix := ""
	if a.DryRun {
		suffix = " (dry run)"
	}
	for _, r := range a.Results {
		over := ""
		if len(r.Overrides) > 0 {
			over = ", overrides " + strings.Join(r.Overrides, ", ")
		}
		fmt.Fprintf(out, "%s %s %s%s%s\n", r.Kind, fullName(r.Namespace, r.Name), r.Action, suffix, over)
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
	printBroken(out, a.Broken, a.DryRun)
}

// waited is how a wait for acknowledgements ended.
type waited struct {
	Revision uint64      `json:"revision"`
	Acked    uint32      `json:"acked"`
	Pending  []string    `json:"pending"`
	Rejected []rejection `json:"rejected"`
	// Milliseconds from the write to the end of the wait.
	Milliseconds float64 `json:"milliseconds"`
}

type rejection struct {
	Proxy  string `json:"proxy"`
	Type   string `json:"type"`
	Reason string `json:"reason"`
}

// wait waits until every proxy has acknowledged a revision; 0 is the newest.
func wait(ctx context.Context, client *configapi.Client, revision uint64, timeout time.Duration, began time.Time) (*waited, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, err := client.WaitAcked(ctx, &configv1.WaitAckedRequest{Sequence: revision})
	if err != nil {
		return nil, exit(client.Explain(err))
	}
	w := &waited{
		Revision: res.GetRevision().GetSequence(), Acked: res.GetAcked(), Pending: []string{}, Rejected: []rejection{},
		Milliseconds: float64(time.Since(began).Microseconds()) / 1000,
	}
	for _, id := range res.GetPending() {
		w.Pending = append(w.Pending, proxyName(id))
	}
	for _, p := range res.GetRejected() {
		for _, ty := range p.GetTypes() {
			if r := ty.GetRejection(); r != nil {
				w.Rejected = append(w.Rejected, rejection{proxyName(p.GetNodeId()), shortType(ty.GetTypeUrl()), r.GetMessage()})
			}
		}
	}
	if len(w.Pending)+len(res.GetRejected()) > 0 {
		return w, fmt.Errorf("revision %d: not every proxy has taken it (%d pending, %d rejected); see `fairlead proxy-status`",
			w.Revision, len(w.Pending), len(res.GetRejected()))
	}
	return w, nil
}

func (w *waited) print(out io.Writer) {
	fmt.Fprintf(out, "revision %d: %d proxies acked, %d pending, %d rejected after %.1f ms\n",
		w.Revision, w.Acked, len(w.Pending), len(w.Rejected), w.Milliseconds)
	for _, p := range w.Pending {
		fmt.Fprintf(out, "  pending: %s\n", p)
	}
	for _, r := range w.Rejected {
		fmt.Fprintf(out, "  rejected: %s, %s: %s\n", r.Proxy, r.Type, r.Reason)
	}
}

// exit gives an error of config-watcher its exit code.
func exit(err error) error {
	var bad *configapi.RefusedError
	if errors.As(err, &bad) {
		return refused(err)
	}
	return err
}

// printObjects prints one object as itself and several as a list, as kubectl does.
func printObjects(out io.Writer, as string, objects []*configv1.Object, single bool) error {
	switch as {
	case "json", "yaml":
		var text []byte
		if single {
			text = objects[0].GetManifest()
		} else {
			items := []json.RawMessage{}
			for _, o := range objects {
				items = append(items, o.GetManifest())
			}
			var err error
			text, err = json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
			if err != nil {
				return err
			}
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, text, "", "  "); err != nil {
			return err
		}
		return printJSONOr(out, indented.Bytes(), as == "yaml")
	}
	if as == "name" {
		for _, o := range objects {
			fmt.Fprintln(out, strings.ToLower(o.GetKey().GetKind())+"/"+o.GetKey().GetName())
		}
		return nil
	}
	tab := &table.Table{Header: []string{"NAMESPACE", "KIND", "NAME", "GENERATION", "SOURCE", "LOCATION"}}
	if as == "wide" {
		tab.Header = append(tab.Header, "API VERSION", "RESOURCE VERSION")
	}
	for _, o := range objects {
		k := o.GetKey()
		generation := "" // files keep none
		if g := o.GetGeneration(); g > 0 {
			generation = fmt.Sprint(g)
		}
		row := []string{k.GetNamespace(), k.GetKind(), k.GetName(), generation, o.GetSource(), locationOf(o)}
		if as == "wide" {
			row = append(row, k.GetApiVersion(), o.GetResourceVersion())
		}
		tab.Add(row...)
	}
	return tab.Write(out)
}

// locationOf is where an object is written, with what is special about that.
func locationOf(o *configv1.Object) string {
	var parts []string
	for _, p := range o.GetOverrides() {
		parts = append(parts, "overrides "+placeName(p))
	}
	if until := o.GetStaysUntil(); until != nil {
		parts = append(parts, "its file is not whole, stays until "+until.AsTime().UTC().Format(time.RFC3339))
	}
	text := o.GetLocation()
	if len(parts) > 0 {
		text = strings.TrimSpace(text + " (" + strings.Join(parts, ", ") + ")")
	}
	return text
}

// deleteFlags are the flags of `fairlead config delete`.
type deleteFlags struct {
	namespace string
	files     []string
}

func newDelete(env Env, t *target) *cobra.Command {
	var f deleteFlags
	cmd := &cobra.Command{
		Use:   "delete KIND NAME... | KIND/NAME... | -f FILE",
		Short: "Delete objects",
		Example: `  fairlead config delete vs/reviews dr/reviews.shop
  fairlead config delete -f reviews-v3.yaml`,
		ValidArgsFunction: t.completeObjects,
		RunE: func(cmd *cobra.Command, a []string) error {
			return remove(cmd.Context(), env, t, f, a, cmd.OutOrStdout())
		},
	}
	t.namespaceFlag(cmd, &f.namespace, "namespace (default: \"default\")")
	filesFlag(cmd.Flags(), &f.files, "file, directory, or - for standard input")
	return cmd
}

func remove(ctx context.Context, env Env, t *target, f deleteFlags, a []string, out io.Writer) error {
	var keys []*configv1.ObjectKey
	var wanted []named
	switch {
	case len(f.files) > 0 && len(a) == 0:
		docs, err := documents(env, f.files)
		if err != nil {
			return err
		}
		for _, d := range docs {
			objects, err := objectfile.Parse(d.GetName(), d.GetContent())
			if err != nil {
				return refused(err)
			}
			for _, o := range objects {
				switch mistake := unreadKind(o); {
				case mistake != nil:
					return mistake
				case !slices.Contains(kindNames, o.Kind):
					fmt.Fprintf(out, "%s skipped (%s:%d): the store keeps no objects of this kind\n", o, o.File, o.Line)
					continue
				}
				key := objectKey(o.Kind, o.Namespace, o.Name)
				key.ApiVersion = o.APIVersion
				keys = append(keys, key)
			}
		}
	case len(f.files) == 0 && len(a) > 0:
		var err error
		if wanted, err = parseObjects(a); err != nil {
			return usage(err)
		}
		if slices.ContainsFunc(wanted, func(n named) bool { return n.name == "" }) {
			return usage(errors.New("name what to delete: KIND NAME, KIND/NAME, or -f FILE"))
		}
	default:
		return usage(errors.New("name what to delete: KIND NAME, or -f FILE"))
	}
	client, err := t.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for _, n := range wanted {
		key := objectKey(n.kind, f.namespace, n.name)
		if f.namespace == "" && strings.Contains(n.name, ".") {
			// The name may end with its namespace.
			o, err := one(ctx, client, n, "", false)
			if err != nil {
				return exit(client.Explain(err))
			}
			key = objectKey(n.kind, o.GetKey().GetNamespace(), o.GetKey().GetName())
		}
		keys = append(keys, key)
	}
	// In reverse, so that what refers goes before what is referred to.
	slices.Reverse(keys)
	var broken []*configv1.Warning
	for _, k := range keys {
		res, err := client.Delete(ctx, &configv1.DeleteRequest{Key: k})
		if err != nil {
			return exit(client.Explain(err))
		}
		remains := ""
		if res.GetRemains() != nil {
			remains = "; that of " + placeName(res.GetRemains()) + " is in force"
		}
		fmt.Fprintf(out, "%s %s deleted%s\n", k.GetKind(), fullName(k.GetNamespace(), k.GetName()), remains)
		broken = append(broken, res.GetBroken()...)
	}
	printBroken(out, warningTexts(others(broken, keys)), false)
	return nil
}
