// Package explanation says which objects a proxy's resource was made from: xds-server's answer (/debug/why), with
// config-watcher's warnings about the objects in it. It is what `fairlead why` prints.
package explanation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/opsclient"
	"fairlead.dev/services/installer/internal/table"
)

// Explanation is xds-server's, with config-watcher's warnings about the objects of the answer and others for the same
// host; WarningsUnknown says why they could not be read.
type Explanation struct {
	contract.Explanation
	Warnings        []string `json:"warnings,omitempty"`
	WarningsUnknown string   `json:"warningsUnknown,omitempty"`
}

// Request says which resource of a proxy is explained.
type Request struct {
	// Resource is its name, or a host; Type may be empty.
	Resource, Type string
	// All explains all resources that Resource may mean.
	All bool
}

// Ask returns the explanations that a request means, at least one. chosen is true if the one of the virtual host was
// chosen of several resources.
func Ask(ctx context.Context, mesh *meshclient.Mesh, proxy *meshclient.Proxy, r Request) (answers []*Explanation, chosen bool, err error) {
	ask := func(of contract.ResourceName) error {
		e := &Explanation{}
		answers = append(answers, e)
		return proxy.Ask(ctx, "/debug/why", url.Values{"type": {of.Type}, "name": {of.Name}}, e)
	}
	err = ask(contract.ResourceName{Type: r.Type, Name: r.Resource})
	if no := new(opsclient.StatusError); errors.As(err, &no) && no.Code == http.StatusInternalServerError {
		return nil, false, fmt.Errorf("%w; `fairlead proxy-config %s clusters --served` and its like list what there is", err, proxy.Name())
	}
	if err != nil {
		return nil, false, err
	}
	if wanted := answers[0].Candidates; len(wanted) > 0 {
		if !r.All {
			host := onlyVirtualHost(wanted)
			if host == nil {
				return nil, false, ambiguous(r.Resource, wanted)
			}
			wanted, chosen = []contract.ResourceName{*host}, true
		}
		answers = nil
		for _, candidate := range wanted {
			if err := ask(candidate); err != nil {
				return nil, false, err
			}
		}
	}
	addWarnings(ctx, mesh, answers)
	return answers, chosen, nil
}

func generationOf(o contract.ExplainedObject) string {
	if o.Generation == 0 {
		return ""
	}
	return fmt.Sprint(o.Generation)
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

// addWarnings adds to each answer of `why` config-watcher's warnings about the objects that the answer names, and about
// other objects for the same host.
func addWarnings(ctx context.Context, mesh *meshclient.Mesh, answers []*Explanation) {
	if mesh.WithoutConfigWatcher() {
		return // the flags name xds-servers and no config-watcher
	}
	client, err := mesh.Dial(ctx)
	if err != nil {
		return
	}
	defer client.Close()
	for _, e := range answers {
		req := &configv1.ListWarningsRequest{Hosts: e.hosts()}
		for _, o := range slices.Concat(e.MadeFrom, e.PassedOver) {
			req.Objects = append(req.Objects, &configv1.ObjectKey{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name})
		}
		call, cancel := context.WithTimeout(ctx, meshclient.CallTimeout)
		res, err := client.ListWarnings(call, req)
		cancel()
		if err != nil {
			e.WarningsUnknown = client.Explain(err).Error()
			continue
		}
		e.Warnings = lists.Map(res.GetWarnings(), (*configv1.Warning).GetText)
	}
}

// hosts returns the host that a resource's name ends with: "outbound|9080|v1|<host>", "<route
// configuration>/<host>:9080".
func (e *Explanation) hosts() []string {
	host := e.Name[strings.LastIndexAny(e.Name, "|/")+1:]
	if name, port, found := strings.Cut(host, ":"); found && port != "" && strings.Trim(port, "0123456789") == "" {
		host = name
	}
	if !strings.Contains(host, ".") {
		return nil
	}
	return []string{host}
}

// printWarnings prints the warnings of a `why` answer, or why they are not known.
func (e *Explanation) printWarnings(out io.Writer) {
	if e.WarningsUnknown != "" {
		fmt.Fprintf(out, "\nwarnings: not known: %s\n", e.WarningsUnknown)
	}
	if len(e.Warnings) > 0 {
		fmt.Fprintln(out, "\nwarnings:\n  "+strings.Join(e.Warnings, "\n  "))
	}
}

// Print prints the explanation for people.
func (e *Explanation) Print(out io.Writer) error {
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
			return []string{o.Kind, kinds.FullName(o.Namespace, o.Name), generationOf(o), o.Source, o.Location, o.Detail}
		})}
	if len(e.PassedOver) > 0 {
		errs = append(errs, objectTable(out, "passed over", []string{"KIND", "OBJECT", "GENERATION", "BECAUSE"}, e.PassedOver,
			func(o contract.ExplainedObject) []string {
				return []string{o.Kind, kinds.FullName(o.Namespace, o.Name), generationOf(o), o.Detail}
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

func (e *Explanation) revisions() string {
	text := fmt.Sprint(e.Revision)
	if e.Sent > 0 {
		text += fmt.Sprintf("; of its type, revision %d was sent last and %d acknowledged", e.Sent, e.Acked)
	}
	return text
}

func (e *Explanation) proxy() string {
	text := meshclient.ProxyName(e.Proxy)
	if w := e.Workload; w != nil {
		text += ", " + w.Kind + " " + kinds.FullName(w.Namespace, w.Name)
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
