// Package proxystatus shows what proxies were sent, have acknowledged and have rejected: the tables of `fairlead
// proxy-status`, and the words that other commands share with them.
package proxystatus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/proxyname"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

// Options say what is shown.
type Options struct {
	meshclient.Selection
	// Proxy is the name of one, or of several.
	Proxy string
	// Verbose has a row for each proxy and type.
	Verbose bool
	// Output is "json", "yaml", "wide", or empty for a table.
	Output string
}

// Show prints what the connected proxies have.
func Show(ctx context.Context, mesh *meshclient.Mesh, o Options, out, diagnostics io.Writer) error {
	var wanted proxyname.Wanted
	if o.Proxy != "" {
		var err error
		if wanted, err = proxyname.Parse(o.Proxy, o.Namespace); err != nil {
			return process.Usage(err)
		}
	}
	fleet, err := mesh.Fleet(ctx, o.Selection)
	if err != nil {
		return err
	}
	reportSilent(diagnostics, fleet)
	res := fleet.ListProxiesResponse
	if o.Proxy != "" {
		res.Refusals = slices.DeleteFunc(res.GetRefusals(),
			func(r *configv1.Refusal) bool {
				return !strings.HasPrefix(meshclient.ProxyName(r.GetNodeId()), o.Proxy)
			})
		kept, err := meshclient.MatchProxies(res.GetProxies(), wanted)
		if err != nil && len(res.GetRefusals()) == 0 {
			return err
		}
		for i, p := range kept {
			kept[i] = liveStatus(ctx, mesh, p)
			if acked := kept[i].GetAcked(); acked.GetEpoch() == res.GetRevision().GetEpoch() &&
				acked.GetSequence() > res.GetRevision().GetSequence() {
				res.Revision = acked // it came between the two answers
			}
		}
		res.Proxies = kept
	}
	if len(res.GetProxies()) == 0 {
		if err := o.ReportEmpty(diagnostics, "connected proxies"); err != nil {
			return err
		}
	}
	if o.Output == "json" || o.Output == "yaml" {
		return structured.PrintMessage(out, o.Output, res)
	}
	fmt.Fprintf(out, "newest revision: %s\n", cmp.Or(fleet.Newest(), "- (config-watcher has not read its sources yet)"))
	if o.Proxy == "" && !o.Verbose {
		return errors.Join(statusTable(res, o.Output == "wide", time.Now()).Write(out), printRefusals(out, res))
	}
	return errors.Join(detailTable(res, time.Now()).Write(out), printRejections(out, res), printRefusals(out, res))
}

// liveStatus asks the xds-server itself for a proxy's status, because reports to config-watcher lag behind. It returns
// reported if the xds-server does not answer.
func liveStatus(ctx context.Context, mesh *meshclient.Mesh, reported *configv1.ProxyStatus) *configv1.ProxyStatus {
	proxy, err := mesh.ProxyOf(ctx, reported)
	if err != nil {
		return reported
	}
	var answer struct {
		Proxies []json.RawMessage `json:"proxies"`
	}
	if proxy.Ask(ctx, "/debug/proxies", url.Values{}, &answer) != nil || len(answer.Proxies) != 1 {
		return reported
	}
	now := &configv1.ProxyStatus{}
	// An xds-server of a later version may send more fields.
	if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(answer.Proxies[0], now) != nil ||
		now.GetNodeId() != reported.GetNodeId() ||
		now.GetIdentity() != reported.GetIdentity() {
		return reported
	}
	now.XdsServer = reported.GetXdsServer() // the instance, with its run
	return now
}

// usualTypes are the xDS types with a column in every table; others get one if a proxy has asked for them.
var usualTypes = []string{"CDS", "LDS", "EDS", "RDS"}

// statusTable has a row for each proxy; wide adds columns about its identity and connection.
func statusTable(res *configv1.ListProxiesResponse, wide bool, now time.Time) *table.Table {
	columns := slices.Clone(usualTypes)
	for _, p := range res.GetProxies() {
		for _, ty := range p.GetTypes() {
			if s := TypeName(ty.GetTypeUrl()); !slices.Contains(columns, s) {
				columns = append(columns, s)
			}
		}
	}
	slices.Sort(columns[len(usualTypes):])
	tab := &table.Table{Header: slices.Concat([]string{"PROXY"}, columns, []string{"ACKED", "XDS-SERVER", "VERSION", "AGENT", "REVISION"})}
	if wide {
		tab.Header = append(tab.Header, "TYPE", "CONNECTED", "IDENTITY", "CLASS", "NODE ID")
	}
	for _, p := range res.GetProxies() {
		row := []string{shownName(p)}
		for _, column := range columns {
			row = append(row, typeCell(p, column))
		}
		row = append(row, revision(p.GetAcked()), p.GetXdsServer(), p.GetProxyVersion(), p.GetAgentVersion(), p.GetRevision())
		if wide {
			row = append(row, meshclient.ProxyType(p.GetNodeId()), connectedFor(p, now), p.GetIdentity(), p.GetClass(), p.GetNodeId())
		}
		tab.Add(row...)
	}
	return tab
}

// connectedFor is how long the proxy has been connected.
func connectedFor(p *configv1.ProxyStatus, now time.Time) string {
	if p.GetConnectedAt() == nil {
		return ""
	}
	return max(now.Sub(p.GetConnectedAt().AsTime()), 0).Round(time.Second).String()
}

func typeCell(p *configv1.ProxyStatus, column string) string {
	for _, ty := range p.GetTypes() {
		if TypeName(ty.GetTypeUrl()) == column {
			return TypeStatus(ty)
		}
	}
	if len(p.GetTypes()) == 0 && slices.Contains(usualTypes, column) {
		return "NOT SENT"
	}
	return ""
}

// detailTable has a row for each proxy and type.
func detailTable(res *configv1.ListProxiesResponse, now time.Time) *table.Table {
	tab := &table.Table{Header: []string{
		"PROXY", "TYPE", "STATUS", "SENT", "ACKED", "NACKED", "RESOURCES", "BYTES SENT", "WAITING", "XDS-SERVER",
	}}
	for _, p := range res.GetProxies() {
		for _, ty := range p.GetTypes() {
			tab.Add(shownName(p), TypeName(ty.GetTypeUrl()), TypeStatus(ty), revision(ty.GetSent()), revision(ty.GetAcked()),
				revision(ty.GetRejection().GetRevision()), fmt.Sprint(ty.GetResources()), fmt.Sprint(ty.GetBytesSent()), Waiting(ty, now),
				p.GetXdsServer())
		}
		if len(p.GetTypes()) == 0 {
			tab.Add(shownName(p), "", "NOT SENT", "", "", "", "", "", "", p.GetXdsServer())
		}
	}
	return tab
}

// TypeStatus is the state of an xDS type in istioctl's words.
func TypeStatus(t *configv1.ProxyTypeStatus) string {
	switch {
	case t.GetRejection() != nil:
		return "ERROR"
	case t.GetAwaiting() || t.GetSent() != nil && t.GetPending() > 0:
		return "STALE"
	case t.GetSent() == nil && (t.GetPending() > 0 || t.GetResources() == 0):
		return "NOT SENT"
	}
	// A proxy that reconnects with all that it needs is sent nothing.
	return "SYNCED"
}

// shownPending is how many names of waiting resources a table shows.
const shownPending = 3

// Waiting says what a type waits for: the proxy's answer to a response, and resources that are to be sent after it.
func Waiting(t *configv1.ProxyTypeStatus, now time.Time) string {
	var parts []string
	if t.GetAwaiting() {
		answer := "ack"
		if since := t.GetAwaitingSince(); since != nil {
			answer += fmt.Sprintf(" for %.1fs", max(now.Sub(since.AsTime()).Seconds(), 0))
		}
		parts = append(parts, answer)
	}
	if n := int(t.GetPending()); n > 0 {
		names := t.GetPendingNames()[:min(len(t.GetPendingNames()), shownPending)]
		text := fmt.Sprintf("%d to send: %s", n, strings.Join(names, ", "))
		if n > len(names) {
			text += ", ..."
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// printRejections prints the reasons of NACKs below the table, for which they are too long.
func printRejections(out io.Writer, res *configv1.ListProxiesResponse) error {
	var b strings.Builder
	for _, p := range res.GetProxies() {
		for _, ty := range p.GetTypes() {
			r := ty.GetRejection()
			if r == nil {
				continue
			}
			fmt.Fprintf(&b, "\n%s, %s, revision %s: %s\n", shownName(p), TypeName(ty.GetTypeUrl()), cmp.Or(revision(r.GetRevision()), "-"),
				strings.Join(strings.Fields(r.GetMessage()), " "))
			for _, name := range r.GetResourceNames() {
				fmt.Fprintf(&b, "  %s\n", name)
			}
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// printRefusals prints the streams that xds-servers have refused because their identity exceeds its budget.
func printRefusals(out io.Writer, res *configv1.ListProxiesResponse) error {
	var b strings.Builder
	for _, r := range res.GetRefusals() {
		fmt.Fprintf(&b, "\nREFUSED %s by %s, %d times, last at %s, for %s: %s\n",
			cmp.Or(meshclient.ProxyName(r.GetNodeId()), "a proxy that has not said its name"),
			r.GetXdsServer(), r.GetCount(), r.GetAt().AsTime().Format(time.RFC3339), r.GetBudget(), r.GetReason())
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func revision(r *configv1.Revision) string { return meshclient.RevisionText(r) }

// shownName is the proxy's name in a table, marked if no workload of the mesh has its identity.
func shownName(p *configv1.ProxyStatus) string {
	if p.GetUnverified() {
		return meshclient.ProxyName(p.GetNodeId()) + " (unverified)"
	}
	return meshclient.ProxyName(p.GetNodeId())
}

// typeNames are the usual abbreviations of xDS types.
var typeNames = map[string]string{
	"envoy.config.cluster.v3.Cluster":                  "CDS",
	"envoy.config.endpoint.v3.ClusterLoadAssignment":   "EDS",
	"envoy.config.listener.v3.Listener":                "LDS",
	"envoy.config.route.v3.RouteConfiguration":         "RDS",
	"envoy.config.route.v3.ScopedRouteConfiguration":   "SRDS",
	"envoy.config.route.v3.VirtualHost":                "VHDS",
	"envoy.extensions.transport_sockets.tls.v3.Secret": "SDS",
	"envoy.config.core.v3.TypedExtensionConfig":        "ECDS",
	"envoy.service.runtime.v3.Runtime":                 "RTDS",
	"fairlead.dns.v1.NameTable":                        "NDS",
	"istio.networking.nds.v1.NameTable":                "NDS",
}

// TypeName is the usual abbreviation of a type URL, else the name of its message.
func TypeName(url string) string {
	name := url[strings.LastIndexByte(url, '/')+1:]
	if s, ok := typeNames[name]; ok {
		return s
	}
	return name
}

// reportSilent says which replicas have not answered, and while no xds-server reports, that what is known of proxies is
// old, or nothing.
func reportSilent(out io.Writer, f *meshclient.Fleet) {
	const nobody = "no xds-server reports to config-watcher: %s; see whether xds-server runs\n"
	switch {
	case f.GetReporters() > 0:
	case len(f.GetProxies()) > 0:
		fmt.Fprintf(out, nobody, "what follows is what the last ones have reported")
	default:
		fmt.Fprintf(out, nobody, "which proxies are connected is not known")
	}
	for _, err := range f.Silent {
		fmt.Fprintf(out, "the proxies of xds-servers that report to this replica are missing: %v\n", err)
	}
}
