package proxy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/istioctl"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/objectfile"
	"fairlead.dev/services/installer/internal/proxyview"
)

func newProxyConfig(env command.Env, flags *meshflags.Flags) *cobra.Command {
	var r proxyview.Request
	var selector string
	out := output.New("json", "yaml")
	var about strings.Builder
	for _, s := range proxyview.Sections {
		fmt.Fprintf(&about, "  %-14s %s\n", s.Name, s.About)
	}
	cmd := &cobra.Command{
		Use:     "proxy-config SECTION PROXY",
		Aliases: []string{"pc"},
		Short:   "Show what a proxy holds, and change its log levels",
		Long: `Show what a proxy holds, as its Envoy says, or with --served what its xds-server has for it. SECTION and PROXY may come in either order. SECTION is

` + about.String() + `
or the name that istioctl has for it: cluster, c, listener, l, route, r, endpoint, ep, secret, s, bootstrap, b, ecds, ec, all, a, log, o.

PROXY is NAME.NAMESPACE, NAME, or a beginning of it that only one proxy has, pod/NAME, or deploy/NAME for the first of a Deployment's Pods.

Of a gRPC program without an Envoy, and of a proxy whose admin interface the run directory does not have, the control plane's view is shown, as with
--served; a line on standard error says so. In a cluster the agent of the Pod is asked, by kubectl exec's way. Private keys are never
shown.

Exit code 0, with a line on standard error, if nothing is there or nothing passes the filters; 1 if there is no such proxy.`,
		Example: `  fairlead proxy-config clusters reviews-v1-0.default
  fairlead pc c deploy/reviews-v1 --fqdn ratings --port 9080
  fairlead pc routes productpage-v1-0 --name reviews
  fairlead pc endpoints productpage-v1-0 --cluster 'outbound|9080|v2|reviews' --status HEALTHY
  fairlead pc log productpage-v1-0 --level http:debug,upstream:debug`,
		Args: func(cmd *cobra.Command, a []string) error {
			if len(a) > 0 && a[0] == "rootca-compare" { // istioctl's, with two Pods
				return process.Usagef("%s %s%s", cmd.CommandPath(), a[0], istioctl.Hint(a[:1]))
			}
			if cmd.Flags().Changed("filename") || cmd.Flags().Changed("selector") {
				return command.Args(cobra.ExactArgs(1))(cmd, a)
			}
			return command.Args(cobra.ExactArgs(2))(cmd, a)
		},
		ValidArgsFunction: completeConfig(flags),
		RunE: func(cmd *cobra.Command, a []string) error {
			r.Output, r.Out, r.Diagnostics = out.Value, cmd.OutOrStdout(), cmd.ErrOrStderr()
			switch {
			case r.DumpFile != "":
				return showDumpFile(env, r, a[0])
			case selector != "":
				if section, _ := proxyview.Find(a[0], false); section != proxyview.LogLevels {
					return process.Usage(errors.New("--selector is for `fairlead proxy-config log`; name one PROXY for the other sections"))
				}
				return r.ShowLogLevels(cmd.Context(), flags.Mesh(cmd), meshclient.Selection{Namespace: r.Namespace, Selector: selector})
			}
			var err error
			if r.Section, r.Proxy, err = proxyview.SectionAndProxy(a); err != nil {
				return process.Usage(err)
			}
			return r.Show(cmd.Context(), flags.Mesh(cmd))
		},
	}
	fs := cmd.Flags()
	flags.AddNamespace(cmd, &r.Namespace, "namespace of the proxy, if PROXY does not say")
	fs.StringVar(&r.Filter.Name, "name", "",
		"only resources whose name contains this text; of routes and virtual hosts, whose name or domain does")
	fs.StringVar(&r.Filter.FQDN, "fqdn", "", "only clusters, endpoints and routes of hosts that contain this text")
	fs.IntVar(&r.Filter.Port, "port", 0, "only clusters, listeners, routes or endpoints of this port")
	fs.StringVar(&r.Filter.Direction, "direction", "", "only clusters and endpoints of this direction: inbound or outbound")
	fs.StringVar(&r.Filter.Subset, "subset", "", "only clusters and endpoints of subsets that contain this text")
	fs.StringVar(&r.Filter.Cluster, "cluster", "", "only endpoints of clusters whose name contains this text")
	fs.StringVar(&r.Filter.Address, "address", "", "only listeners and endpoints whose address contains this text")
	fs.StringVar(&r.Filter.Type, "type", "", "only clusters of this type, as EDS, or listeners of this type: HTTP, TCP, HTTP+TCP")
	fs.StringVar(&r.Filter.Status, "status", "", "only endpoints of this status, as HEALTHY")
	fs.BoolVar(&r.Served, "served", false, "show what the xds-server has for the proxy")
	fs.StringVarP(&r.DumpFile, "filename", "f", "", "read Envoy's config dump from a file, - for standard input, instead of asking a proxy")
	fs.StringVar(&r.Level, "level", "", "set log levels: LEVEL for all loggers, LOGGER:LEVEL,... for some")
	fs.BoolVarP(&r.Reset, "reset", "r", false, "set the log levels that the proxy was started with")
	fs.StringVarP(&selector, "selector", "l", "", "for log, in the place of PROXY: all proxies whose Pods' labels match, as in app=web")
	cmd.MarkFlagsMutuallyExclusive("level", "reset")
	cmd.MarkFlagsMutuallyExclusive("served", "filename")
	output.Flag(cmd, out)
	flags.AddServers(fs)
	flags.AddCluster(cmd)
	complete.Flag(cmd, "direction", "inbound", "outbound")
	complete.Flag(cmd, "type", "EDS", "STATIC", "STRICT_DNS", "LOGICAL_DNS", "ORIGINAL_DST", "HTTP", "TCP", "HTTP+TCP")
	complete.Flag(cmd, "status", "HEALTHY", "UNHEALTHY", "DEGRADED", "DRAINING")
	complete.Flag(cmd, "level", envoyadmin.LogLevels...)
	return cmd
}

// showDumpFile shows a section of a config dump in a file, or on standard input.
func showDumpFile(env command.Env, r proxyview.Request, section string) error {
	var ok bool
	if r.Section, ok = proxyview.Find(section, false); !ok {
		return process.Usagef("%q is no section; choose one of %s", section, strings.Join(proxyview.SectionNames(), ", "))
	}
	if err := r.Check(); err != nil {
		return process.Usage(err)
	}
	var text []byte
	var err error
	if r.DumpFile == "-" {
		text, err = objectfile.Read("standard input", env.In)
	} else {
		text, err = objectfile.ReadAnyFile(r.DumpFile)
	}
	if err != nil {
		return err
	}
	return r.ShowDump(text)
}

// completeConfig completes the arguments of `proxy-config`: a section and a proxy, in either order.
func completeConfig(flags *meshflags.Flags) complete.Func {
	return complete.Names(func(cmd *cobra.Command, a []string) []string {
		switch {
		case len(a) == 0:
			return append(proxyview.SectionNames(), flags.ProxyNames(cmd)...)
		case len(a) > 1 || cmd.Flags().Changed("filename") || cmd.Flags().Changed("selector"):
			return nil
		case proxyview.IsSection(a[0]):
			return flags.ProxyNames(cmd)
		}
		return proxyview.SectionNames()
	})
}
