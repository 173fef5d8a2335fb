package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/dashboard"
	"fairlead.dev/services/installer/internal/meshclient"
)

// dashboardFlags are the flags of `fairlead dashboard`.
type dashboardFlags struct {
	namespace, address, selector string
	port                         int
	browser                      bool
}

func newDashboard(flags *meshflags.Flags) *cobra.Command {
	var f dashboardFlags
	names := slices.Sorted(maps.Keys(dashboard.Addons))
	cmd := &cobra.Command{
		Use:     "dashboard NAME | [proxy] POD",
		Aliases: []string{"dash", "d"},
		Short:   "Show a page of the control plane, of a proxy or of a program beside the mesh in a browser",
		Long: `Show a page in a browser, through a port of this machine, until Ctrl-C. NAME is

  config-watcher, xds-server, ca   the pages under /debug of a service; controlz and istiod-debug, as of istioctl, are xds-server. A POD after it chooses a replica
  proxy POD, envoy POD, POD        the admin interface of a proxy's Envoy; POD is NAME.NAMESPACE, NAME or the beginning of one, or deploy/NAME
  ` + strings.Join(names, ", ") + `
                                   a program in the control plane's namespace, or in that of -n

The pages of services and proxies are for administrators: the URL that is printed holds a key of this run, without which the port answers nothing.`,
		Example: `  fairlead dashboard config-watcher
  fairlead dashboard proxy deploy/reviews-v1 -n default
  fairlead dashboard grafana --port 3000 --browser=false`,
		Args: command.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
			list := slices.Concat(names, slices.Collect(maps.Keys(dashboard.Programs)), []string{"proxy", "envoy"})
			if len(a) > 0 || begun != "" && len(complete.WithPrefix(list, begun)) == 0 {
				list = flags.ProxyNames(cmd)
			}
			return complete.WithPrefix(list, begun), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			return f.run(cmd, flags.Mesh(cmd), a)
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the Pod or program")
	fs.StringVarP(&f.selector, "selector", "l", "", "of a program, labels of its Pods in the place of the usual ones")
	fs.StringVar(&f.address, "address", "localhost", "address of this machine to listen on")
	fs.IntVarP(&f.port, "port", "p", 0, "port of this machine to listen on; 0 is any")
	fs.BoolVarP(&f.browser, "browser", "b", true, "open a browser")
	flags.AddCluster(cmd)
	return cmd
}

func (f dashboardFlags) run(cmd *cobra.Command, mesh *meshclient.Mesh, a []string) error {
	ctx := cmd.Context()
	if f.port < 0 || f.port > 65535 {
		return process.Usagef("--port %d: write 1 to 65535, or 0 for any", f.port)
	}
	name, rest := a[0], a[1:]
	program, isProgram := dashboard.Programs[name]
	beside, isAddon := dashboard.Addons[name]
	isProxy := name == "proxy" || name == "envoy"
	switch {
	case isProxy && len(rest) == 0:
		return process.Usagef("%s of which Pod? write `fairlead dashboard %s NAME.NAMESPACE`; `fairlead proxy-status` lists them", name, name)
	case isAddon && len(rest) > 0, !isProgram && !isAddon && !isProxy && len(rest) > 0:
		return process.Usagef("%q after %s: name one page", rest[0], name)
	case f.selector != "" && !isAddon:
		return process.Usage(errors.New("--selector is for " + strings.Join(slices.Sorted(maps.Keys(dashboard.Addons)), ", ")))
	}
	view := dashboard.View{
		Listen: net.JoinHostPort(f.address, strconv.Itoa(f.port)), Browser: f.browser, Out: cmd.OutOrStdout(), Diagnostics: cmd.ErrOrStderr(),
	}
	switch {
	case isAddon:
		beside.Selector = cmp.Or(f.selector, beside.Selector)
		return view.Forward(ctx, mesh, name, f.namespace, beside)
	case isProgram:
		ops, err := dashboard.OpsPage(ctx, mesh, program, append(rest, "")[0])
		if err != nil {
			return err
		}
		return view.Serve(ctx, ops, "/debug/")
	case isProxy:
		name = rest[0]
	}
	admin, err := dashboard.AdminPage(ctx, mesh, name, f.namespace)
	if err != nil {
		if near := nearest.Name(name, slices.Concat(slices.Collect(maps.Keys(dashboard.Addons)),
			slices.Collect(maps.Keys(dashboard.Programs)))); near != "" && !isProxy {
			err = fmt.Errorf("%w; did you mean `fairlead dashboard %s`?", err, near)
		}
		return err
	}
	return view.Serve(ctx, admin, "/")
}
