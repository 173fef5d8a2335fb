package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/table"
)

func newProxyStatus(t *target) *cobra.Command {
	f := newFormat("json")
	var namespace string
	cmd := &cobra.Command{
		Use:     "proxy-status [PROXY]",
		Aliases: []string{"ps"},
		Short:   "Show what each proxy was sent, has acknowledged and has rejected",
		Args:    args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			name := ""
			if len(a) > 0 {
				name = a[0]
			}
			return proxyStatus(cmd.Context(), t, name, namespace, f.value, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the proxies (default: all)")
	cmd.Flags().VarP(f, "output", "o", "output format")
	t.register(cmd.Flags())
	return cmd
}

func proxyStatus(ctx context.Context, t *target, name, namespace, as string, out io.Writer) error {
	client, err := t.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := client.ListProxies(ctx, &configv1.ListProxiesRequest{Namespace: namespace})
	if err != nil {
		return exit(client.Explain(err))
	}
	if name != "" {
		kept, err := choose(res.GetProxies(), name)
		if err != nil {
			return err
		}
		res.Proxies = kept
	}
	if as == "json" {
		text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(res)
		if err != nil {
			return err
		}
		// protojson varies its blanks on purpose; these are for comparing.
		var tree any
		if err := json.Unmarshal(text, &tree); err != nil {
			return err
		}
		return printJSON(out, tree)
	}
	fmt.Fprintf(out, "newest revision: %d\n", res.GetRevision().GetSequence())
	return statusTable(res).Write(out)
}

// choose keeps the proxies of a name, or of a prefix of it.
func choose(all []*configv1.ProxyStatus, name string) ([]*configv1.ProxyStatus, error) {
	var kept []*configv1.ProxyStatus
	for _, p := range all {
		if proxyName(p.GetNodeId()) == name {
			return []*configv1.ProxyStatus{p}, nil
		}
		if strings.HasPrefix(proxyName(p.GetNodeId()), name) {
			kept = append(kept, p)
		}
	}
	if len(kept) == 0 {
		var names []string
		for _, p := range all {
			names = append(names, proxyName(p.GetNodeId()))
		}
		return nil, fmt.Errorf("no connected proxy is named %q; there are %s", name, strings.Join(names, ", "))
	}
	return kept, nil
}

func statusTable(res *configv1.ListProxiesResponse) *table.Table {
	tab := &table.Table{Header: []string{"PROXY", "TYPE", "STATUS", "REVISION", "RESOURCES", "BYTES SENT", "XDS-SERVER"}}
	for _, p := range res.GetProxies() {
		for _, ty := range p.GetTypes() {
			tab.Add(proxyName(p.GetNodeId()), shortType(ty.GetTypeUrl()), typeStatus(ty), revisionOf(ty.GetAcked()),
				fmt.Sprint(ty.GetResources()), fmt.Sprint(ty.GetBytesSent()), p.GetXdsServer())
		}
		if len(p.GetTypes()) == 0 {
			tab.Add(proxyName(p.GetNodeId()), "", "NOT SENT", "", "", "", p.GetXdsServer())
		}
	}
	return tab
}

// typeStatus is the state of one xDS type in istioctl's words, with the reason of a rejection.
func typeStatus(t *configv1.ProxyTypeStatus) string {
	switch {
	case t.GetRejection() != nil:
		return "REJECTED: " + t.GetRejection().GetMessage()
	case t.GetSent() == nil:
		return "NOT SENT"
	case t.GetAwaiting():
		return "STALE"
	}
	return "SYNCED"
}

func revisionOf(r *configv1.Revision) string {
	if r == nil {
		return ""
	}
	return fmt.Sprint(r.GetSequence())
}

// proxyName takes "<pod>.<namespace>" out of a node id.
func proxyName(nodeID string) string {
	parts := strings.Split(nodeID, "~")
	if len(parts) != 4 {
		return nodeID
	}
	return parts[2]
}

// typeNames are the usual names of xDS types.
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
