package config

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

// configStatusFlags are the flags of `fairlead config status`.
type configStatusFlags struct {
	meshclient.Selection
	out *output.Format
}

func newConfigStatus(flags *meshflags.Flags) *cobra.Command {
	f := configStatusFlags{out: output.New(output.AsTable, "yaml", "json")}
	cmd := &cobra.Command{
		Use:   "status [KIND[/NAME] | KIND NAME]",
		Short: "Show how the sources of the configuration do, and what has become of objects",
		Long: `Show how the sources of the configuration do, and what has become of the objects of each, those of files included.

Objects of Istio's kinds and of the Gateway API have the conditions that config-watcher also writes into their status, where it can:

  ACCEPTED    the newest version is valid, and no other source's version of the object counts in its place; the parents of a route take it
  PROGRAMMED  every proxy has acknowledged the newest version; if not, the message names those that have not, with Envoy's own words

Then it lists what is to be said of objects of any kind:

  REFUSED     the object, or a part of a file, is not valid; its last good version stays in force
  STAYS       its file is gone, empty or cut off; the object stays in force until the time given
  UNREAD      nobody in the mesh reads objects of this kind
  OVERRIDDEN  another source has the same object, which counts
  WARNING     it is accepted, and something in it has no effect, or refers to what is not there

With a name it shows which source the object in force comes from, and every condition.`,
		Example: `  fairlead config status
  fairlead config status vs/reviews
  fairlead config status -n shop`,
		Args:              command.Args(cobra.MaximumNArgs(2)),
		ValidArgsFunction: flags.CompleteObjects,
		RunE: func(cmd *cobra.Command, a []string) error {
			return f.run(cmd, flags.MeshOfOneRevision(cmd), a)
		},
	}
	flags.AddSelection(cmd, &f.Selection, "of the objects (default: all; \"default\" for a single object)")
	output.Flag(cmd, f.out)
	flags.AddCluster(cmd)
	return cmd
}

func (f configStatusFlags) run(cmd *cobra.Command, mesh *meshclient.Mesh, a []string) error {
	out := cmd.OutOrStdout()
	kind, name, err := kinds.ParseObject(a)
	if err != nil {
		return err
	}
	var res *configv1.StatusResponse
	var object *configv1.Object
	var hint string
	err = mesh.Call(cmd.Context(), func(ctx context.Context, client *configapi.Client) (err error) {
		if name == "" {
			res, err = client.Status(ctx, &configv1.StatusRequest{Kind: kind, Namespace: f.Namespace})
			return err
		}
		res, object, err = statusOf(ctx, client, kinds.Key(kind, f.Namespace, name))
		dot := strings.LastIndexByte(name, '.')
		if missing := new(configapi.NotFoundError); f.Namespace == "" && !kinds.ClusterScoped[kind] && dot > 0 && errors.As(err, &missing) {
			// The name may end with its namespace.
			if in, found, inErr := statusOf(ctx, client, kinds.Key(kind, name[dot+1:], name[:dot])); inErr == nil {
				res, object, name, err = in, found, name[:dot], nil
			}
		}
		hint = otherGateway(ctx, client, kind, cmp.Or(object.GetKey().GetNamespace(), f.Namespace), name)
		if hint == "" && err != nil && f.Namespace == "" && dot > 0 {
			hint = otherGateway(ctx, client, kind, name[dot+1:], name[:dot])
		}
		return err
	})
	switch missing := new(configapi.NotFoundError); {
	case err != nil && hint != "" && errors.As(err, &missing):
		return fmt.Errorf("%w; %s", err, hint)
	case err != nil:
		return err
	case hint != "":
		fmt.Fprintln(cmd.ErrOrStderr(), hint)
	}
	if f.out.Value != "" {
		return printStatus(out, f.out.Value, object, res)
	}
	if name != "" {
		if err := printInForce(out, kind, name, object, res.GetObjects()); err != nil {
			return err
		}
	} else if err := printObjectStatuses(out, res); err != nil {
		return err
	}
	if len(res.GetFindings()) == 0 {
		_, err := fmt.Fprintln(out, "\nnothing is to be said of the objects")
		return err
	}
	fmt.Fprintln(out)
	return findingsTable(res).Write(out)
}

// otherGateway says how to name the Gateway of the other API, Istio's or the Gateway API, that has the name of an
// object of a kind; "" if there is none.
func otherGateway(ctx context.Context, client *configapi.Client, kind, namespace, name string) string {
	other, is, written := kinds.APIGateway, "of the Gateway API", "gtw"
	switch kind {
	case "Gateway":
	case kinds.APIGateway:
		other, is, written = "Gateway", "of Istio's API", "gateway"
	default:
		return ""
	}
	key := kinds.Key(other, namespace, name)
	if _, err := client.Get(ctx, &configv1.GetRequest{Key: key, InForce: true}); err != nil {
		return ""
	}
	return fmt.Sprintf("there is a Gateway %s of that name: fairlead config status %s/%s -n %s", is, written, name, key.GetNamespace())
}

// statusOf asks for the status of one object, and for the version in force.
func statusOf(ctx context.Context, client *configapi.Client, key *configv1.ObjectKey) (*configv1.StatusResponse, *configv1.Object, error) {
	res, err := client.Status(ctx, &configv1.StatusRequest{Kind: kinds.NameOf(key), Namespace: key.GetNamespace(), Name: key.GetName()})
	if err != nil {
		return nil, nil, client.Explain(err)
	}
	object, err := inForce(ctx, client, key, len(res.GetFindings()) > 0)
	return res, object, err
}

// inForce returns the object in force. If there is none and config-watcher has findings about one of that name, it
// returns nil and no error: the findings say why.
func inForce(ctx context.Context, client *configapi.Client, key *configv1.ObjectKey, hasFindings bool) (*configv1.Object, error) {
	res, err := client.Get(ctx, &configv1.GetRequest{Key: key, InForce: true})
	if err == nil {
		return res.GetObject(), nil
	}
	err = client.Explain(err)
	if missing := new(configapi.NotFoundError); hasFindings && errors.As(err, &missing) {
		return nil, nil
	}
	return nil, err
}

// printInForce prints what is known of a single object: the version in force, and the conditions of all versions.
func printInForce(out io.Writer, kind, name string, o *configv1.Object, versions []*configv1.ObjectStatus) error {
	if o == nil {
		fmt.Fprintf(out, "%s %s\nin force:  no\n", kind, name)
		return printConditions(out, versions)
	}
	fmt.Fprintf(out, "%s\nin force:  yes\nsource:    %s\n", kinds.Text(o.GetKey()), o.GetSource())
	if o.GetLocation() != "" {
		fmt.Fprintf(out, "location:  %s\n", o.GetLocation())
	}
	if o.GetGeneration() > 0 {
		fmt.Fprintf(out, "generation: %d\n", o.GetGeneration())
	}
	for _, p := range o.GetOverrides() {
		fmt.Fprintf(out, "overrides: %s\n", placeName(p))
	}
	var tree struct {
		Status json.RawMessage `json:"status"`
	}
	if len(versions) == 0 && json.Unmarshal(o.GetManifest(), &tree) == nil && len(tree.Status) > 0 {
		fmt.Fprintf(out, "status:    %s\n", tree.Status)
	}
	return printConditions(out, versions)
}

// printConditions prints the conditions of all versions of one object.
func printConditions(out io.Writer, versions []*configv1.ObjectStatus) error {
	if len(versions) == 0 {
		return nil
	}
	tab := &table.Table{Header: []string{"SOURCE", "CONDITION", "STATUS", "REASON", "GENERATION", "MESSAGE"}}
	for _, v := range versions {
		for _, c := range v.GetConditions() {
			tab.Add(v.GetSource(), c.GetType(), c.GetStatus(), c.GetReason(), generationText(v.GetObservedGeneration()), c.GetMessage())
		}
		for _, s := range v.GetServers() {
			tab.Add(v.GetSource(), "server "+s.GetName(), s.GetPort(), s.GetReason(), "", s.GetMessage())
		}
		for _, l := range v.GetListeners() {
			for _, c := range l.GetConditions() {
				tab.Add(v.GetSource(), "listener "+l.GetName()+" "+c.GetType(), c.GetStatus(), c.GetReason(), "", c.GetMessage())
			}
		}
		if len(v.GetParents()) < 2 {
			continue
		}
		for _, p := range v.GetParents() {
			for _, c := range p.GetConditions() {
				tab.Add(v.GetSource(), p.GetParent()+" "+c.GetType(), c.GetStatus(), c.GetReason(), "", c.GetMessage())
			}
		}
	}
	fmt.Fprintln(out)
	return tab.Write(out)
}

// printObjectStatuses prints the sources and a line for each object.
func printObjectStatuses(out io.Writer, res *configv1.StatusResponse) error {
	if err := sourcesTable(res).Write(out); err != nil || len(res.GetObjects()) == 0 {
		return err
	}
	tab := &table.Table{Header: []string{"OBJECT", "SOURCE", "GENERATION", "ACCEPTED", "PROGRAMMED", "MESSAGE"}}
	for _, o := range res.GetObjects() {
		cells := map[string]string{}
		message := ""
		for _, c := range o.GetConditions() {
			text := c.GetStatus()
			if text != "True" && c.GetReason() != "" {
				text = c.GetReason()
			}
			cells[c.GetType()] = text
			if c.GetType() == "Programmed" || c.GetStatus() != "True" && message == "" {
				message = cmp.Or(message, c.GetMessage())
			}
		}
		tab.Add(kinds.Text(o.GetKey()), o.GetSource(), generationText(o.GetObservedGeneration()),
			cells["Accepted"], cells["Programmed"], message)
	}
	fmt.Fprintln(out)
	if err := tab.Write(out); err != nil {
		return err
	}
	if n := res.GetMoreObjects(); n > 0 {
		fmt.Fprintf(out, "%d more objects are left out; name a KIND or a namespace\n", n)
	}
	return nil
}

// generationText is a generation, empty for an object of a source that keeps none.
func generationText(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// printStatus prints config-watcher's answer as JSON or YAML.
func printStatus(out io.Writer, as string, object *configv1.Object, res *configv1.StatusResponse) error {
	status, err := structured.Tree(res)
	if err != nil {
		return err
	}
	answer := map[string]any{"status": status}
	if object != nil {
		object.Manifest = nil // `config get` shows it
		if answer["object"], err = structured.Tree(object); err != nil {
			return err
		}
	}
	return structured.Print(out, as, answer)
}

func sourcesTable(res *configv1.StatusResponse) *table.Table {
	tab := &table.Table{Header: []string{"SOURCE", "STATE", "OBJECTS", "REFUSED", "STAYING", "UNREAD"}}
	for _, s := range res.GetSources() {
		state := "read"
		switch {
		case len(s.GetWithheld()) > 0:
			state = s.GetProblem() + "; " + s.GetRemedy()
		case s.GetStatusUnwritten() != "":
			state = s.GetStatusUnwritten()
		case s.GetAlarm() != "":
			state = "takes no writes: " + s.GetAlarm()
		case s.GetDegraded() != "":
			state = "cannot be read, its last objects stay: " + s.GetDegraded()
		case s.GetLastGood() != nil:
			state = "not read since the start, served as of " + s.GetLastGood().AsTime().UTC().Format(time.RFC3339)
		case !s.GetSynced():
			state = "being read"
		}
		tab.Add(s.GetName(), state, fmt.Sprint(s.GetObjects()), fmt.Sprint(s.GetRefused()), fmt.Sprint(s.GetStaying()), fmt.Sprint(s.GetUnread()))
	}
	return tab
}

func findingsTable(res *configv1.StatusResponse) *table.Table {
	tab := &table.Table{Header: []string{"FINDING", "OBJECT", "SOURCE", "LOCATION", "MESSAGE"}}
	for _, f := range res.GetFindings() {
		tab.Add(strings.TrimPrefix(f.GetType().String(), "FINDING_TYPE_"), f.GetObject(), f.GetSource(), f.GetLocation(), f.GetMessage())
	}
	return tab
}
