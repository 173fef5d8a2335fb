package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/nearest"

	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/kube/podconn"
)

// addon is a program beside the mesh that `fairlead dashboard` forwards to.
type addon struct {
	// selector of its Pods, port and the path of its page, as in the samples that Istio publishes.
	selector, path string
	port           int
}

var addons = map[string]addon{
	"prometheus": {"app.kubernetes.io/name=prometheus", "", 9090}, "grafana": {"app.kubernetes.io/name=grafana", "", 3000},
	"kiali":  {"app=kiali", "/kiali", 20001},
	"jaeger": {"app=jaeger", "", 16686}, "zipkin": {"app=zipkin", "/zipkin", 9411}, "skywalking": {"app=skywalking-ui", "", 8080},
}

// dashboardPrograms are the services whose pages `fairlead dashboard` shows; controlz and istiod-debug are
// istioctl's names.
var dashboardPrograms = map[string]string{
	controlplane.ConfigWatcher: controlplane.ConfigWatcher, controlplane.XDSServer: controlplane.XDSServer, controlplane.CA: controlplane.CA,
	"controlz": controlplane.XDSServer, "istiod-debug": controlplane.XDSServer,
}

// dashboardFlags are the flags of `fairlead dashboard`.
type dashboardFlags struct {
	namespace, address, selector string
	port                         int
	browser                      bool
}

func newDashboard(t *target) *cobra.Command {
	var f dashboardFlags
	names := slices.Sorted(maps.Keys(addons))
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
		Args: args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
			list := slices.Concat(names, slices.Collect(maps.Keys(dashboardPrograms)), []string{"proxy", "envoy"})
			if len(a) > 0 || begun != "" && len(withPrefix(list, begun)) == 0 {
				list = t.proxyNames(cmd)
			}
			return withPrefix(list, begun), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			return dashboard(cmd.Context(), t, a, f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the Pod or program")
	fs.StringVarP(&f.selector, "selector", "l", "", "of a program, labels of its Pods in the place of the usual ones")
	fs.StringVar(&f.address, "address", "localhost", "address of this machine to listen on")
	fs.IntVarP(&f.port, "port", "p", 0, "port of this machine to listen on; 0 is any")
	fs.BoolVarP(&f.browser, "browser", "b", true, "open a browser")
	t.registerCluster(cmd)
	return cmd
}

func dashboard(ctx context.Context, t *target, a []string, f dashboardFlags, out, diagnostics io.Writer) error {
	if f.port < 0 || f.port > 65535 {
		return usage(fmt.Errorf("--port %d: write 1 to 65535, or 0 for any", f.port))
	}
	name, rest := a[0], a[1:]
	program, isProgram := dashboardPrograms[name]
	beside, isAddon := addons[name]
	isProxy := name == "proxy" || name == "envoy"
	switch {
	case isProxy && len(rest) == 0:
		return usage(fmt.Errorf("%s of which Pod? write `fairlead dashboard %s NAME.NAMESPACE`; `fairlead proxy-status` lists them", name, name))
	case isAddon && len(rest) > 0, !isProgram && !isAddon && !isProxy && len(rest) > 0:
		return usage(fmt.Errorf("%q after %s: name one page", rest[0], name))
	case f.selector != "" && !isAddon:
		return usage(errors.New("--selector is for " + strings.Join(slices.Sorted(maps.Keys(addons)), ", ")))
	}
	listen := net.JoinHostPort(f.address, strconv.Itoa(f.port))
	switch {
	case isAddon:
		return t.addonPage(ctx, name, beside, listen, f, out, diagnostics)
	case isProgram:
		ops, err := t.opsPage(ctx, program, append(rest, "")[0])
		if err != nil {
			return err
		}
		return servePages(ctx, listen, ops, "/debug/", f.browser, out, diagnostics)
	case isProxy:
		name = rest[0]
	}
	admin, err := t.adminPage(ctx, name, f.namespace)
	if err != nil {
		if near := nearest.Name(name, slices.Concat(slices.Collect(maps.Keys(addons)),
			slices.Collect(maps.Keys(dashboardPrograms)))); near != "" && !isProxy {
			err = fmt.Errorf("%w; did you mean `fairlead dashboard %s`?", err, near)
		}
		return err
	}
	return servePages(ctx, listen, admin, "/", f.browser, out, diagnostics)
}

// addonPage forwards a port to a program's Pod until ctx ends.
func (t *target) addonPage(ctx context.Context, name string, a addon, listen string, f dashboardFlags, out, diagnostics io.Writer) error {
	mesh, err := t.controlPlane(ctx)
	if err != nil {
		return err
	}
	if mesh == nil {
		return fmt.Errorf("`fairlead up` runs no %s: its services have metrics at http://<operations port>/metrics; name a cluster that runs "+
			"it with --kubeconfig or --context", name)
	}
	namespace := f.namespace
	if namespace == "" {
		namespace = mesh.Namespace
	}
	if f.selector != "" {
		a.selector = f.selector
	}
	api, err := t.cluster.client()
	if err != nil {
		return err
	}
	pods, err := api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: a.selector, Limit: kube.Page})
	if err != nil {
		return kube.Explain(err)
	}
	i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil })
	if i < 0 {
		return fmt.Errorf("no Pod of %s (%s) runs in namespace %s; install it, or name its namespace with -n and its labels with -l", name,
			a.selector, namespace)
	}
	pod := mesh.Pod(namespace, pods.Items[i].Name)
	dial := func(ctx context.Context) (net.Conn, error) { return pod.Dial(ctx, a.port) }
	first, err := dial(ctx) // what is wrong is told before a browser opens
	if err != nil {
		return err
	}
	_ = first.Close()
	forward, err := podconn.Listen(listen, dial, toldOnce(diagnostics))
	if err != nil {
		return err
	}
	page := url.URL{Scheme: "http", Host: shownAddress(listen, forward.Address()), Path: a.path}
	announce(ctx, page.String(), page.String(), f.browser, out, diagnostics)
	return forward.Serve(ctx)
}

// toldOnce prints each text once.
func toldOnce(out io.Writer) func(error) {
	var mu sync.Mutex
	last := ""
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if text := err.Error(); text != last {
			last = text
			fmt.Fprintln(out, text)
		}
	}
}

// shownAddress is the address for a URL: the host that was asked for, with the port that was bound.
func shownAddress(asked, bound string) string {
	host, _, err := net.SplitHostPort(asked)
	if ip := net.ParseIP(host); err != nil || host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	_, port, err := net.SplitHostPort(bound)
	if err != nil {
		return bound
	}
	return net.JoinHostPort(host, port)
}

// announce prints the URL and opens a browser with another one, which other users of the machine may see.
func announce(ctx context.Context, printed, page string, browser bool, out, diagnostics io.Writer) {
	fmt.Fprintln(out, printed)
	if !browser {
		return
	}
	opener := map[string][]string{"darwin": {"open"}, "windows": {"rundll32", "url.dll,FileProtocolHandler"}}[runtime.GOOS]
	if opener == nil {
		opener = []string{"xdg-open"}
	}
	if err := exec.CommandContext(ctx, opener[0], append(opener[1:], page)...).Start(); err != nil { //nolint:gosec // a URL of our own
		fmt.Fprintln(diagnostics, "no browser was opened: open the address yourself; Ctrl-C ends it")
	}
}
