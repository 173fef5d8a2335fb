// Package answering says which rule of the Gateway API answers a request at a Gateway, as an xds-server has it: what
// `fairlead describe gateway --request` prints.
package answering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/describe/apiobject"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/objectfile"
	"fairlead.dev/services/installer/internal/opsclient"
	"fairlead.dev/services/installer/internal/table"
)

// Request is a request to a Gateway.
type Request struct {
	// Gateway is NAME[.NAMESPACE], and Namespace that of -n.
	Gateway, Namespace string
	// Line is "[METHOD] [http[s]://]HOST[:PORT][/PATH]".
	Line string
	// Headers are "NAME: VALUE".
	Headers []string
}

// Ask asks the mesh who answers.
func Ask(ctx context.Context, mesh *meshclient.Mesh, r Request) (*contract.RequestAnswer, error) {
	method, target, found := strings.Cut(strings.TrimSpace(r.Line), " ")
	if !found {
		method, target = http.MethodGet, method
	}
	if target = strings.TrimSpace(target); target == "" || strings.Contains(target, " ") {
		return nil, process.Usagef(`--request %q: write "METHOD HOST/PATH", such as "GET shop.example.com/cart"`, r.Line)
	}
	for _, h := range r.Headers {
		if name, _, found := strings.Cut(h, ":"); !found || strings.TrimSpace(name) == "" {
			return nil, process.Usagef(`--header %q: write "NAME: VALUE"`, h)
		}
	}
	namespace, name := meshclient.WholeName(r.Gateway, r.Namespace)
	if name == "" {
		namespace, name = objectfile.DefaultNamespace, r.Gateway
	}
	var a contract.RequestAnswer
	query := url.Values{"gateway": {namespace + "/" + name}, "method": {method}, "url": {target}, "header": r.Headers}
	if err := mesh.AskMesh(ctx, "/debug/request", query, &a); err != nil {
		if no := new(opsclient.StatusError); errors.As(err, &no) && no.Code == http.StatusNotFound {
			return nil, notServed(ctx, mesh, namespace, name)
		}
		return nil, err
	}
	return &a, nil
}

// notServed is the error about a Gateway that the mesh does not serve: it is not there, or none of its listeners is
// served.
func notServed(ctx context.Context, mesh *meshclient.Mesh, namespace, name string) error {
	d, err := apiobject.Ask(ctx, mesh, kinds.APIGateway, name, namespace)
	if err != nil {
		return err
	}
	because := append([]string{"no listener of it is served"}, d.Notes...)
	for _, c := range d.Conditions {
		if c.Status != "True" {
			because = append(because, c.String())
		}
	}
	return fmt.Errorf("Gateway %s/%s answers no request: %s; `fairlead describe gateway/%s.%s` shows its listeners", namespace, name,
		strings.Join(because, "; "), name, namespace)
}

// Print prints the answer for people.
func Print(out io.Writer, a *contract.RequestAnswer) error {
	var errs []error
	line := func(form string, args ...any) {
		_, err := fmt.Fprintf(out, form+"\n", args...)
		errs = append(errs, err)
	}
	line("request:  %s", a.Request)
	if a.Listener != "" {
		line("gateway:  %s, listener %s, port %d, hostname %s", a.Gateway, a.Listener, a.Port, a.ListenerHost)
		line("routes:   those for %s", a.Domain)
	} else {
		line("gateway:  %s, port %d", a.Gateway, a.Port)
	}
	switch {
	case a.Answers != nil:
		line("answers:  %s, %s", name(a.Answers), a.Answers.Conditions)
		line("sends to: %s", cmp.Or(a.Answers.To, "nothing"))
	case a.Status > 0:
		line("answers:  the gateway itself, status %d: %s", a.Status, a.Because)
	default:
		line("answers:  no route of the Gateway API: %s", a.Because)
	}
	list := func(title string, matches []contract.RouteMatch, more int) {
		if len(matches) == 0 {
			return
		}
		tab := &table.Table{Header: []string{"RULE", "CONDITIONS", "BECAUSE"}}
		for i := range matches {
			tab.Add(name(&matches[i]), matches[i].Conditions, matches[i].Because)
		}
		line("\n%s:\n  %s", title, strings.Join(tab.Lines(), "\n  "))
		if more > 0 {
			line("  and %d more", more)
		}
	}
	list("match too, and come later", a.Lost, a.MoreLost)
	list("can never match a request for "+a.Domain, a.Never, a.MoreNever)
	if a.NotCompared > 0 {
		line("\n%d more were not compared: there are too many", a.NotCompared)
	}
	return errors.Join(errs...)
}

// name is "HTTPRoute shop/web rule 2 (checkout)", with the place in a file.
func name(m *contract.RouteMatch) string {
	text := fmt.Sprintf("%s %s rule %d", m.Route.Kind, kinds.FullName(m.Route.Namespace, m.Route.Name), m.Rule)
	if m.RuleName != "" {
		text += " (" + m.RuleName + ")"
	}
	if m.Match > 1 {
		text += fmt.Sprintf(", match %d", m.Match)
	}
	if m.Route.Location != "" {
		text += ", " + m.Route.Location
	}
	return text
}
