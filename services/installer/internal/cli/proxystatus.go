package cli

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

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/proxyname"
	"fairlead.dev/services/installer/internal/table"
)

// statusFlags are the flags of `fairlead proxy-status`.
type statusFlags struct {
	selection
	verbose bool
	out     *format
}

func newProxyStatus(t *target) *cobra.Command {
	f := statusFlags{out: newFormat("wide", "json", "yaml")}
	cmd := &cobra.Command{
		Use:     "proxy-status [PROXY]",
		Aliases: []string{"ps"},
		Short:   "Show what each proxy was sent, has acknowledged and has rejected",
		Long: `Show what each proxy was sent, has acknowledged and has rejected: a row for each proxy and a column for each xDS type.

  SYNCED    the proxy holds what it should: it has acknowledged all it was sent, and nothing waits
  STALE     a response was sent and not answered yet, or resources wait to be sent
  NOT SENT  the proxy is connected and has nothing of the type
  ERROR     the proxy has rejected a response, or xds-server could not build what it is to have; the proxy keeps what it has
  -         the proxy has not asked for the type

VERSION is Envoy's, AGENT that of the agent beside it, and REVISION the control plane's that injected the proxy: who has earlier ones than the control
plane starts again. While no xds-server reports, the rows are what was last reported, which standard error says.

With PROXY or -v it is a row for each proxy and type, with the revisions sent, acknowledged and rejected, the bytes sent on this connection, and
what waits; reasons of rejections follow the table, and after them the streams that an xds-server has refused in the last ten minutes because
their identity uses more than it may. PROXY is NAME.NAMESPACE, NAME, or a beginning of it, pod/NAME or deploy/NAME.

A revision numbers a state of the mesh's configuration: what a proxy has acknowledged does not go backwards, also over restarts.

Exit code 0, with a line on standard error, if the namespace or the selector has no proxies; 1 if there is no such namespace or proxy.`,
		Example: `  fairlead proxy-status
  fairlead proxy-status reviews-v1-0.default
  fairlead proxy-status deploy/reviews-v1 -n default
  fairlead proxy-status -l app=reviews -o wide`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: t.completeProxies(1),
		RunE: func(cmd *cobra.Command, a []string) error {
			name := ""
			if len(a) > 0 {
				name = a[0]
			}
			return proxyStatus(cmd.Context(), t, name, f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.register(cmd, t, "of the proxies (default: all)")
	f.registerSelector(cmd, "workload's labels")
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "a row for each proxy and type")
	outputFlag(cmd, f.out)
	t.registerServers(cmd.Flags())
	t.registerCluster(cmd)
	return cmd
}

func proxyStatus(ctx context.Context, t *target, name string, f statusFlags, out, diagnostics io.Writer) error {
	var wanted proxyname.Wanted
	if name != "" {
		var err error
		if wanted, err = proxyname.Parse(name, f.namespace); err != nil {
			return usage(err)
		}
	}
	res, err := t.listProxies(ctx, f.selection)
	if err != nil {
		return err
	}
	res.reportSilent(diagnostics)
	if name != "" {
		res.Refusals = slices.DeleteFunc(res.GetRefusals(),
			func(r *configv1.Refusal) bool { return !strings.HasPrefix(proxyName(r.GetNodeId()), name) })
		kept, err := matchProxies(res.GetProxies(), wanted)
		if err != nil && len(res.GetRefusals()) == 0 {
			return err
		}
		for i, p := range kept {
			kept[i] = t.liveStatus(ctx, p)
			if acked := kept[i].GetAcked(); acked.GetEpoch() == res.GetRevision().GetEpoch() &&
				acked.GetSequence() > res.GetRevision().GetSequence() {
				res.Revision = acked // it came between the two answers
			}
		}
		res.Proxies = kept
	}
	if len(res.GetProxies()) == 0 {
		if err := reportEmpty(diagnostics, "connected proxies", f.selection); err != nil {
			return err
		}
	}
	if f.out.value == "json" || f.out.value == "yaml" {
		return printMessage(out, f.out.value, res.ListProxiesResponse)
	}
	fmt.Fprintf(out, "newest revision: %s\n", cmp.Or(res.newest(), "- (config-watcher has not read its sources yet)"))
	if name == "" && !f.verbose {
		if err := statusTable(res.ListProxiesResponse, f.out.value == "wide", time.Now()).Write(out); err != nil {
			return err
		}
		return printRefusals(out, res.ListProxiesResponse)
	}
	if err := detailTable(res.ListProxiesResponse, time.Now()).Write(out); err != nil {
		return err
	}
	if err := printRejections(out, res.ListProxiesResponse); err != nil {
		return err
	}
	return printRefusals(out, res.ListProxiesResponse)
}

// liveStatus asks the xds-server itself for a proxy's status, because reports to config-watcher lag behind. It returns
// reported if the xds-server does not answer.
func (t *target) liveStatus(ctx context.Context, reported *configv1.ProxyStatus) *configv1.ProxyStatus {
	servers, err := t.xdsServers(ctx, serverName(reported))
	if err != nil {
		return reported
	}
	var answer struct {
		Proxies []json.RawMessage `json:"proxies"`
	}
	c := &connectedProxy{reported.GetNodeId(), servers}
	if c.ask(ctx, "/debug/proxies", url.Values{}, &answer) != nil || len(answer.Proxies) != 1 {
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
			if s := shortType(ty.GetTypeUrl()); !slices.Contains(columns, s) {
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
		row = append(row, revisionOf(p.GetAcked()), p.GetXdsServer(), p.GetProxyVersion(), p.GetAgentVersion(), p.GetRevision())
		if wide {
			row = append(row, proxyType(p.GetNodeId()), connectedFor(p, now), p.GetIdentity(), p.GetClass(), p.GetNodeId())
		}
		tab.Add(row...)
	}
	return tab
}

// proxyType is the first part of a node id, "sidecar" or "router"; "proxyless" for a proxyless gRPC client, which
// xds-server marks with "#".
func proxyType(nodeID string) string {
	if strings.Contains(nodeID, "#") {
		return "proxyless"
	}
	kind, _, _ := strings.Cut(nodeID, "~")
	return kind
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
		if shortType(ty.GetTypeUrl()) == column {
			return typeStatus(ty)
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
			tab.Add(shownName(p), shortType(ty.GetTypeUrl()), typeStatus(ty), revisionOf(ty.GetSent()), revisionOf(ty.GetAcked()),
				revisionOf(ty.GetRejection().GetRevision()), fmt.Sprint(ty.GetResources()), fmt.Sprint(ty.GetBytesSent()), waiting(ty, now),
				p.GetXdsServer())
		}
		if len(p.GetTypes()) == 0 {
			tab.Add(shownName(p), "", "NOT SENT", "", "", "", "", "", "", p.GetXdsServer())
		}
	}
	return tab
}

// typeStatus is the state of an xDS type in istioctl's words.
func typeStatus(t *configv1.ProxyTypeStatus) string {
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

// waiting says what a type waits for: the proxy's answer to a response, and resources that are to be sent after it.
func waiting(t *configv1.ProxyTypeStatus, now time.Time) string {
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
	var errs []error
	for _, p := range res.GetProxies() {
		for _, ty := range p.GetTypes() {
			r := ty.GetRejection()
			if r == nil {
				continue
			}
			_, err := fmt.Fprintf(out, "\n%s, %s, revision %s: %s\n", shownName(p), shortType(ty.GetTypeUrl()),
				cmp.Or(revisionOf(r.GetRevision()), "-"), strings.Join(strings.Fields(r.GetMessage()), " "))
			errs = append(errs, err)
			for _, name := range r.GetResourceNames() {
				_, err := fmt.Fprintf(out, "  %s\n", name)
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// printRefusals prints the streams that xds-servers have refused because their identity exceeds its budget.
func printRefusals(out io.Writer, res *configv1.ListProxiesResponse) error {
	var errs []error
	for _, r := range res.GetRefusals() {
		_, err := fmt.Fprintf(out, "\nREFUSED %s by %s, %d times, last at %s, for %s: %s\n",
			cmp.Or(proxyName(r.GetNodeId()), "a proxy that has not said its name"),
			r.GetXdsServer(), r.GetCount(), r.GetAt().AsTime().Format(time.RFC3339), r.GetBudget(), r.GetReason())
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func revisionOf(r *configv1.Revision) string {
	if r == nil {
		return ""
	}
	return fmt.Sprint(r.GetSequence())
}

// shownName is the proxy's name in a table, marked if no workload of the mesh has its identity.
func shownName(p *configv1.ProxyStatus) string {
	if p.GetUnverified() {
		return proxyName(p.GetNodeId()) + " (unverified)"
	}
	return proxyName(p.GetNodeId())
}

// proxyName is the part "<pod>.<namespace>" of a node id.
func proxyName(nodeID string) string {
	parts := strings.Split(nodeID, "~")
	if len(parts) != 4 {
		return nodeID
	}
	return parts[2]
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

func shortType(url string) string {
	name := url[strings.LastIndexByte(url, '/')+1:]
	if s, ok := typeNames[name]; ok {
		return s
	}
	return name
}
