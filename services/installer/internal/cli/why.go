package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/proto/fairlead/contract"

	"fairlead.dev/services/installer/internal/opsclient"
	"fairlead.dev/services/installer/internal/table"
)

// explanation is xds-server's, with config-watcher's warnings about the objects of the answer and others for the same
// host; WarningsUnknown says why they could not be read.
type explanation struct {
	contract.Explanation
	Warnings        []string `json:"warnings,omitempty"`
	WarningsUnknown string   `json:"warningsUnknown,omitempty"`
}

func objectID(o contract.ExplainedObject) string { return fullName(o.Namespace, o.Name) }

func generationOf(o contract.ExplainedObject) string {
	if o.Generation == 0 {
		return ""
	}
	return fmt.Sprint(o.Generation)
}

// whyFlags are the flags of `fairlead why`.
type whyFlags struct {
	kind      string
	namespace string
	all       bool
	out       *format
}

func newWhy(t *target) *cobra.Command {
	f := whyFlags{out: newFormat("json", "yaml")}
	cmd := &cobra.Command{
		Use:   "why PROXY RESOURCE",
		Short: "Show which objects a proxy's resource was made from",
		Long: `Show which objects, in which generation, a proxy's resource was made from, which ones about the same hosts have no part in it and why, and what
was looked for and not found.

PROXY is NAME.NAMESPACE, NAME, or a beginning of it that only one proxy has, pod/NAME, or deploy/NAME for the first of a Deployment's Pods. RESOURCE is the name of a cluster, endpoint assignment, listener, route
configuration or virtual host ("<route configuration>/<virtual host>"), as proxy-config shows it, or a host with or without its port and domain. A
host that several resources belong to means its virtual host if there is one; otherwise the answer is the list of them: choose one by its name or
with --type, or take --all.`,
		Example: `  fairlead why productpage-v1-0 reviews:9080 --type virtualhosts
  fairlead why productpage-v1-0 'outbound|9080|v2|reviews.default.svc.cluster.local'`,
		Args: args(cobra.ExactArgs(2)),
		ValidArgsFunction: func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(a) == 0 {
				return t.completeProxies(1)(cmd, a, begun)
			}
			return t.completeServices(1)(cmd, a, begun)
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			return why(cmd.Context(), t, a[0], a[1], f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	t.namespaceFlag(cmd, &f.namespace, "namespace of the proxy, if PROXY does not say")
	fs.StringVarP(&f.kind, "type", "t", "",
		"type of the resource: virtualhosts, clusters, endpoints, listeners, routes, nametables, ..., or a type URL")
	fs.BoolVar(&f.all, "all", false, "explain all resources that RESOURCE may mean")
	outputFlag(cmd, f.out)
	t.registerServers(fs)
	t.registerCluster(cmd)
	completeFlag(cmd, "type", slices.Sorted(maps.Values(servedTypes))...)
	return cmd
}

func why(ctx context.Context, t *target, proxy, name string, f whyFlags, out, diagnostics io.Writer) error {
	c, err := t.findProxy(ctx, proxy, f.namespace)
	if err != nil {
		return err
	}
	ask := func(kind, name string) (*explanation, error) {
		e := &explanation{}
		return e, c.ask(ctx, "/debug/why", url.Values{"type": {kind}, "name": {name}}, e)
	}
	first, err := ask(f.kind, name)
	if no := new(opsclient.StatusError); errors.As(err, &no) && no.Code == http.StatusInternalServerError {
		return fmt.Errorf("%w; `fairlead proxy-config %s clusters --served` and its like list what there is", err, proxyName(c.nodeID))
	}
	if err != nil {
		return err
	}
	answers := []*explanation{first}
	switch host := onlyVirtualHost(first.Candidates); {
	case len(first.Candidates) == 0:
	case !f.all && host == nil:
		return ambiguous(name, first.Candidates)
	case !f.all:
		if first, err = ask(host.Type, host.Name); err != nil {
			return err
		}
		fmt.Fprintf(diagnostics, "%q has other resources too; --type chooses, and --all explains every one\n", name)
		answers = []*explanation{first}
	default:
		answers = nil
		for _, candidate := range first.Candidates {
			e, err := ask(candidate.Type, candidate.Name)
			if err != nil {
				return err
			}
			answers = append(answers, e)
		}
	}
	t.addWarnings(ctx, answers)
	if f.out.value != "" {
		var tree any = answers
		if !f.all {
			tree = first
		}
		return printTree(out, f.out.value, tree)
	}
	for i, e := range answers {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := e.print(out); err != nil {
			return err
		}
	}
	if e := answers[0]; e.Problem != "" && e.Version == "" && len(e.MadeFrom) == 0 {
		return fmt.Errorf("%s has no resource %q of this type, made from objects of the mesh; `fairlead proxy-config %s %s --served` lists "+
			"what there is",
			proxyName(c.nodeID), e.Name, proxyName(c.nodeID), e.Type)
	}
	return nil
}

// onlyVirtualHost returns the virtual host of the list if there is exactly one, else nil: it decides where requests to
// a host go, and names the clusters.
func onlyVirtualHost(candidates []contract.ResourceName) *contract.ResourceName {
	var found *contract.ResourceName
	for i, c := range candidates {
		switch {
		case c.Type != "virtualhosts":
		case found != nil:
			return nil
		default:
			found = &candidates[i]
		}
	}
	return found
}

// ambiguous is the error for a name that several resources have.
func ambiguous(name string, candidates []contract.ResourceName) error {
	tab := &table.Table{Header: []string{"TYPE", "NAME"}}
	for _, c := range candidates {
		tab.Add(c.Type, c.Name)
	}
	return fmt.Errorf("%q may be any of these; name one, with --type if types share the name, or take --all:\n  %s",
		name, strings.Join(tab.Lines(), "\n  "))
}

func (e *explanation) print(out io.Writer) error {
	head := [][2]string{
		{"resource", e.Name}, {"type", e.Type}, {"in", e.RouteConfiguration}, {"version", e.Version}, {"revision", e.revisions()},
		{"proxy", e.proxy()}, {"class", e.Class}, {"sidecar", e.Sidecar}, {"problem", strings.Join(strings.Fields(e.Problem), " ")},
	}
	for _, line := range head {
		if line[1] != "" {
			fmt.Fprintf(out, "%-10s %s\n", line[0]+":", line[1])
		}
	}
	errs := []error{objectTable(out, "made from", []string{"KIND", "OBJECT", "GENERATION", "SOURCE", "LOCATION", "DETAIL"}, e.MadeFrom,
		func(o contract.ExplainedObject) []string {
			return []string{o.Kind, objectID(o), generationOf(o), o.Source, o.Location, o.Detail}
		})}
	if len(e.PassedOver) > 0 {
		errs = append(errs, objectTable(out, "passed over", []string{"KIND", "OBJECT", "GENERATION", "BECAUSE"}, e.PassedOver,
			func(o contract.ExplainedObject) []string {
				return []string{o.Kind, objectID(o), generationOf(o), o.Detail}
			}))
	}
	if len(e.NotFound) > 0 {
		fmt.Fprintln(out, "\nlooked for and not found:")
		for _, line := range e.NotFound {
			fmt.Fprintln(out, "  "+strings.TrimPrefix(line, "no "))
		}
	}
	e.printWarnings(out)
	return errors.Join(errs...)
}

func (e *explanation) revisions() string {
	text := fmt.Sprint(e.Revision)
	if e.Sent > 0 {
		text += fmt.Sprintf("; of its type, revision %d was sent last and %d acknowledged", e.Sent, e.Acked)
	}
	return text
}

func (e *explanation) proxy() string {
	text := proxyName(e.Proxy)
	if w := e.Workload; w != nil {
		text += ", " + w.Kind + " " + objectID(*w)
		if w.Generation > 0 {
			text += fmt.Sprintf(" generation %d", w.Generation)
		}
	}
	return text
}

// objectTable prints objects under a title, as an indented table.
func objectTable(out io.Writer, title string, header []string, list []contract.ExplainedObject,
	row func(contract.ExplainedObject) []string) error {
	if len(list) == 0 {
		_, err := fmt.Fprintf(out, "\n%s: nothing of the mesh\n", title)
		return err
	}
	tab := &table.Table{Header: header}
	for _, o := range list {
		tab.Add(row(o)...)
	}
	_, err := fmt.Fprintf(out, "\n%s:\n  %s\n", title, strings.Join(tab.Lines(), "\n  "))
	return err
}
