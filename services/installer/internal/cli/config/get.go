package config

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/jsonpath"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

// objectArg is an object that an argument names, or all objects of a kind.
type objectArg struct {
	kind string
	// name is empty for all objects of the kind.
	name string
}

// parseObjectArgs parses kubectl's ways to name objects: KIND[,KIND]..., KIND NAME..., KIND/NAME.... No argument, or
// "all", means the objects of all kinds.
func parseObjectArgs(a []string) ([]objectArg, error) {
	if len(a) == 0 || len(a) == 1 && a[0] == "all" {
		return []objectArg{{}}, nil
	}
	var list []objectArg
	if strings.Contains(a[0], "/") {
		for _, word := range a {
			kind, name, ok := strings.Cut(word, "/")
			if !ok || kind == "" || name == "" {
				return nil, fmt.Errorf("%q: write every object as KIND/NAME, as in vs/reviews", word)
			}
			kind, err := kinds.Parse(kind)
			if err != nil {
				return nil, err
			}
			list = append(list, objectArg{kind, name})
		}
		return list, nil
	}
	for word := range strings.SplitSeq(a[0], ",") {
		if word == "" {
			return nil, fmt.Errorf("%q: an empty kind in the list", a[0])
		}
		kind, err := kinds.Parse(word)
		if err != nil {
			return nil, err
		}
		if len(a) == 1 {
			list = append(list, objectArg{kind: kind})
		}
		for _, name := range a[1:] {
			if strings.Contains(name, "/") {
				return nil, fmt.Errorf("%q: after KIND come names alone; or write every object as KIND/NAME", name)
			}
			list = append(list, objectArg{kind, name})
		}
	}
	return list, nil
}

// getObject fetches a named object: the stored one, or with inForce the one in force. An empty namespace means
// "default"; if there is no such object, the name may end with its namespace, as in vs/reviews.shop.
func getObject(ctx context.Context, client *configapi.Client, n objectArg, namespace string, inForce bool) (*configv1.Object, error) {
	res, err := client.Get(ctx, &configv1.GetRequest{Key: kinds.Key(n.kind, namespace, n.name), InForce: inForce})
	if err == nil {
		return res.GetObject(), nil
	}
	first := client.Explain(err)
	dot := strings.LastIndexByte(n.name, '.')
	if missing := new(configapi.NotFoundError); kinds.ClusterScoped[n.kind] || !errors.As(first, &missing) {
		return nil, first
	}
	if namespace == "" && dot > 0 {
		res, err = client.Get(ctx, &configv1.GetRequest{Key: kinds.Key(n.kind, n.name[dot+1:], n.name[:dot]), InForce: inForce})
		if err == nil {
			return res.GetObject(), nil
		}
	}
	return nil, hintNamespaces(ctx, client, n, inForce, first)
}

// hintNamespaces adds to missing, the error about an object that does not exist, the namespaces that have an object of
// that kind and name. It returns missing alone if there are none or the caller may not list them.
func hintNamespaces(ctx context.Context, client *configapi.Client, n objectArg, inForce bool, missing error) error {
	res, err := client.List(ctx, &configv1.ListRequest{Kind: n.kind, InForce: inForce, WithoutManifests: true})
	if err != nil {
		return missing
	}
	var namespaces []string
	for _, o := range res.GetObjects() {
		if o.GetKey().GetName() == n.name {
			namespaces = append(namespaces, o.GetKey().GetNamespace())
		}
	}
	if len(namespaces) == 0 {
		return missing
	}
	slices.Sort(namespaces)
	return &configapi.NotFoundError{Message: fmt.Sprintf("%s; there is one in namespace %s: add -n %s", missing,
		strings.Join(namespaces, ", "), namespaces[0])}
}

// getFlags are the flags of `fairlead config get`.
type getFlags struct {
	meshclient.Selection
	source string
	watch  bool
	out    *output.Format
}

func newGet(flags *meshflags.Flags) *cobra.Command {
	f := getFlags{out: output.New("wide", "json", "yaml", "name", output.JSONPath+"TEMPLATE")}
	cmd := &cobra.Command{
		Use:   "get [KIND[,KIND]... [NAME]... | KIND/NAME...]",
		Short: "Show the objects in force, whatever source they come from",
		Long: `Show the objects in force, whatever source they come from: all, those of kinds, or those named. SOURCE is "memory" for what config apply has
stored, "file" for the files that config-watcher follows (those of fairlead up -f), "kubernetes/CLUSTER" for the API server of a cluster,
"mesh-config-file" for config-watcher's option of that name; LOCATION is the place in the file. An object that several sources have counts once: --mesh-config-file before all others, then the oldest, then those of files,
which state no creation time.

Kinds may be written short (vs, dr, gw, se, we, wg, sc, ef, pa), in any case and in the plural.

With -o json and yaml, Secrets are left out unless their kind or name is asked for: their values are not shown, so that what is printed can be applied.

An object without -n is looked for in namespace default; NAME.NAMESPACE names its namespace. With -A it is looked for in all.

Exit code 0, with a line on standard error, if there are no such objects; 1 if a named object does not exist.`,
		Example: `  fairlead config get vs,dr -n shop
  fairlead config get vs/reviews dr/reviews.default -o yaml
  fairlead config get pods -A -l app=reviews
  fairlead config get vs/reviews -o jsonpath='{.spec.hosts[0]}'
  fairlead config get vs -w`,
		ValidArgsFunction: flags.CompleteObjects,
		RunE: func(cmd *cobra.Command, a []string) error {
			if f.watch {
				return f.watchObjects(cmd, flags.MeshOfOneRevision(cmd), a)
			}
			return f.get(cmd, flags.MeshOfOneRevision(cmd), a)
		},
	}
	flags.AddSelection(cmd, &f.Selection, "of the objects (default: all; \"default\" for a named object)")
	meshflags.AddSelector(cmd, &f.Selection, "labels")
	cmd.Flags().StringVar(&f.source, "source", "",
		"only the objects of a source, memory for those that config apply has stored, in force or not (default: what is in force)")
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "go on, and print objects again that change, and those that are gone")
	complete.Flag(cmd, "source", storeSource, "file", "kubernetes/Kubernetes", "mesh-config-file")
	output.Flag(cmd, f.out)
	flags.AddCluster(cmd)
	return cmd
}

func (f getFlags) get(cmd *cobra.Command, mesh *meshclient.Mesh, a []string) error {
	diagnostics := cmd.ErrOrStderr()
	objects, single, err := f.objects(cmd.Context(), mesh, a)
	if err != nil {
		return err
	}
	if kept := withoutSecrets(objects); f.out.WantsManifests() && (len(a) == 0 || a[0] == "all") && len(kept) < len(objects) {
		fmt.Fprintf(diagnostics, "Secrets are left out, %d of them: their values are not shown; `fairlead config get secrets` names them\n",
			len(objects)-len(kept))
		objects = kept
	}
	if len(objects) == 0 {
		if err := f.ReportEmpty(diagnostics, "objects"); err != nil {
			return err
		}
	}
	return printObjects(cmd.OutOrStdout(), f.out.Value, objects, single)
}

// withoutSecrets returns the objects that are no Secrets.
func withoutSecrets(objects []*configv1.Object) []*configv1.Object {
	return lists.Filter(objects, func(o *configv1.Object) bool { return o.GetKey().GetKind() != "Secret" })
}

// objects lists what arguments and selector mean; single is true for one that is named.
func (f getFlags) objects(ctx context.Context, mesh *meshclient.Mesh, a []string) (objects []*configv1.Object, single bool, err error) {
	wanted, err := parseObjectArgs(a)
	if err != nil {
		return nil, false, process.Usage(err)
	}
	selector, err := f.Labels()
	if err != nil {
		return nil, false, err
	}
	objects = []*configv1.Object{}
	single = len(wanted) == 1 && wanted[0].name != "" && !f.All
	err = mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) error {
		for _, n := range wanted {
			found, err := f.find(ctx, client, n)
			if err != nil {
				return err
			}
			objects = append(objects, found...)
		}
		return nil
	})
	if err == nil && selector != nil {
		objects, err = filterByLabels(objects, selector)
		single = false
	}
	return objects, single, err
}

// find lists the objects that one argument means.
func (f getFlags) find(ctx context.Context, client *configapi.Client, n objectArg) ([]*configv1.Object, error) {
	if n.name != "" && !f.All {
		o, err := getObject(ctx, client, n, f.Namespace, f.source != storeSource)
		if err != nil {
			return nil, err
		}
		return []*configv1.Object{o}, nil
	}
	tabular := f.Selector == "" && !f.watch && !f.out.WantsManifests() && n.kind != "Pod" // a Pod's row has its address
	res, err := client.List(ctx, &configv1.ListRequest{Kind: n.kind, Namespace: f.Namespace, InForce: f.source != storeSource,
		WithoutManifests: tabular})
	if err != nil {
		return nil, err
	}
	list := slices.DeleteFunc(res.GetObjects(), func(o *configv1.Object) bool {
		return n.name != "" && o.GetKey().GetName() != n.name || f.source != "" && o.GetSource() != f.source
	})
	if n.name != "" && len(list) == 0 {
		return nil, fmt.Errorf("%s %q is in no namespace", n.kind, n.name)
	}
	return list, nil
}

// printObjects prints objects. In JSON and YAML, single prints the object itself, otherwise it is a List, as in
// kubectl.
func printObjects(out io.Writer, as string, objects []*configv1.Object, single bool) error {
	template, byPath := strings.CutPrefix(as, output.JSONPath)
	if as == "json" || as == "yaml" || byPath {
		text, err := manifestOf(objects, single)
		if err != nil {
			return err
		}
		if byPath {
			return printPath(out, template, text)
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, text, "", "  "); err != nil {
			return err
		}
		return structured.PrintText(out, indented.Bytes(), as == "yaml")
	}
	if as == "name" {
		for _, o := range objects {
			fmt.Fprintln(out, strings.ToLower(kinds.NameOf(o.GetKey()))+"/"+o.GetKey().GetName())
		}
		return nil
	}
	return rowsOf(objects, as).Write(out)
}

// rowsOf has a row for each object.
func rowsOf(objects []*configv1.Object, as string) *table.Table {
	tab := &table.Table{Header: []string{"NAMESPACE", "KIND", "NAME", "GENERATION", "SOURCE", "LOCATION"}}
	pods := len(objects) > 0 && lists.All(objects, func(o *configv1.Object) bool { return o.GetKey().GetKind() == "Pod" })
	if pods {
		tab.Header = append(tab.Header, "ADDRESS")
	}
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
		if pods {
			row = append(row, podAddress(o))
		}
		if as == "wide" {
			row = append(row, k.GetApiVersion(), o.GetResourceVersion())
		}
		tab.Add(row...)
	}
	return tab
}

// manifestOf is the object itself, or a List of the objects.
func manifestOf(objects []*configv1.Object, single bool) ([]byte, error) {
	if single {
		return objects[0].GetManifest(), nil
	}
	items := []json.RawMessage{}
	for _, o := range objects {
		items = append(items, o.GetManifest())
	}
	return json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
}

// printPath prints what a template of kubectl's JSONPath makes of a manifest.
func printPath(out io.Writer, template string, text []byte) error {
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return err
	}
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return process.Usagef("-o %s%s: %w", output.JSONPath, template, err)
	}
	if err := path.Execute(out, tree); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out)
	return err
}

// podAddress is the address in a Pod's status; empty before it has one.
func podAddress(o *configv1.Object) string {
	var pod struct {
		Status struct{ PodIP string }
	}
	if json.Unmarshal(o.GetManifest(), &pod) != nil {
		return ""
	}
	return pod.Status.PodIP
}

// locationOf is the cell LOCATION: the object's place, which places it overrides, and until when it stays without its
// file.
func locationOf(o *configv1.Object) string {
	parts := lists.Map(o.GetOverrides(), func(p *configv1.Place) string { return "overrides " + placeName(p) })
	if until := o.GetStaysUntil(); until != nil {
		parts = append(parts, "its file is not whole, stays until "+until.AsTime().UTC().Format(time.RFC3339))
	}
	text := o.GetLocation()
	if len(parts) > 0 {
		text = strings.TrimSpace(text + " (" + strings.Join(parts, ", ") + ")")
	}
	return text
}

// filterByLabels returns the objects that a selector selects.
func filterByLabels(objects []*configv1.Object, selector labels.Selector) ([]*configv1.Object, error) {
	kept := []*configv1.Object{}
	for _, o := range objects {
		var tree struct {
			Metadata struct{ Labels labels.Set }
		}
		if err := json.Unmarshal(o.GetManifest(), &tree); err != nil {
			return nil, fmt.Errorf("%s %s/%s: %w", kinds.NameOf(o.GetKey()), o.GetKey().GetNamespace(), o.GetKey().GetName(), err)
		}
		if selector.Matches(tree.Metadata.Labels) {
			kept = append(kept, o)
		}
	}
	return kept, nil
}
