package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/objectfile"
	"fairlead.dev/services/installer/internal/proxyname"
	"fairlead.dev/services/installer/internal/table"
)

// proxyless is rundir's kind of a Pod whose application is a proxyless gRPC client: it has an agent and no Envoy.
const proxyless = "proxyless"

// configFlags are the flags of `fairlead proxy-config`.
type configFlags struct {
	filter    envoyadmin.Filter
	namespace string
	served    bool
	file      string
	level     string
	reset     bool
	selector  string
	out       *format
}

func newProxyConfig(env Env, t *target) *cobra.Command {
	f := configFlags{out: newFormat("json", "yaml")}
	var about strings.Builder
	for _, s := range sections {
		fmt.Fprintf(&about, "  %-14s %s\n", s.name, s.about)
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
				return usage(fmt.Errorf("%s %s%s", cmd.CommandPath(), a[0], istioctlHint(a[:1])))
			}
			if cmd.Flags().Changed("filename") || cmd.Flags().Changed("selector") {
				return args(cobra.ExactArgs(1))(cmd, a)
			}
			return args(cobra.ExactArgs(2))(cmd, a)
		},
		ValidArgsFunction: t.completeConfig,
		RunE: func(cmd *cobra.Command, a []string) error {
			return proxyConfig(cmd.Context(), env, t, a, f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	t.namespaceFlag(cmd, &f.namespace, "namespace of the proxy, if PROXY does not say")
	fs.StringVar(&f.filter.Name, "name", "",
		"only resources whose name contains this text; of routes and virtual hosts, whose name or domain does")
	fs.StringVar(&f.filter.FQDN, "fqdn", "", "only clusters, endpoints and routes of hosts that contain this text")
	fs.IntVar(&f.filter.Port, "port", 0, "only clusters, listeners, routes or endpoints of this port")
	fs.StringVar(&f.filter.Direction, "direction", "", "only clusters and endpoints of this direction: inbound or outbound")
	fs.StringVar(&f.filter.Subset, "subset", "", "only clusters and endpoints of subsets that contain this text")
	fs.StringVar(&f.filter.Cluster, "cluster", "", "only endpoints of clusters whose name contains this text")
	fs.StringVar(&f.filter.Address, "address", "", "only listeners and endpoints whose address contains this text")
	fs.StringVar(&f.filter.Type, "type", "", "only clusters of this type, as EDS, or listeners of this type: HTTP, TCP, HTTP+TCP")
	fs.StringVar(&f.filter.Status, "status", "", "only endpoints of this status, as HEALTHY")
	fs.BoolVar(&f.served, "served", false, "show what the xds-server has for the proxy")
	fs.StringVarP(&f.file, "filename", "f", "", "read Envoy's config dump from a file, - for standard input, instead of asking a proxy")
	fs.StringVar(&f.level, "level", "", "set log levels: LEVEL for all loggers, LOGGER:LEVEL,... for some")
	fs.BoolVarP(&f.reset, "reset", "r", false, "set the log levels that the proxy was started with")
	fs.StringVarP(&f.selector, "selector", "l", "", "for log, in the place of PROXY: all proxies whose Pods' labels match, as in app=web")
	cmd.MarkFlagsMutuallyExclusive("level", "reset")
	cmd.MarkFlagsMutuallyExclusive("served", "filename")
	outputFlag(cmd, f.out)
	t.registerServers(fs)
	t.registerCluster(cmd)
	completeFlag(cmd, "direction", "inbound", "outbound")
	completeFlag(cmd, "type", "EDS", "STATIC", "STRICT_DNS", "LOGICAL_DNS", "ORIGINAL_DST", "HTTP", "TCP", "HTTP+TCP")
	completeFlag(cmd, "status", "HEALTHY", "UNHEALTHY", "DEGRADED", "DRAINING")
	completeFlag(cmd, "level", envoyadmin.LogLevels...)
	return cmd
}

// check refuses flags that have no meaning for the section.
func (f configFlags) check(sec envoyadmin.Section) error {
	switch {
	case sec == allSections:
	case f.filter.Check(sec) != nil:
		return fmt.Errorf("%s: %w", title(sec), f.filter.Check(sec))
	}
	switch {
	case sec != logLevels && (f.level != "" || f.reset):
		return fmt.Errorf("--level and --reset are for `fairlead proxy-config log`, not for %s", title(sec))
	case sec == logLevels && (f.served || f.file != ""):
		return errors.New("log levels are a running Envoy's; leave --served and --filename out")
	case sec == nameTables && !f.served:
		return errors.New("an Envoy has no nametables; add --served")
	case f.served && sec != allSections && servedTypes[sec] == "":
		return errors.New("an xds-server serves clusters, listeners, routes, virtualhosts, endpoints, ecds and nametables; leave --served out " +
			"for the others")
	}
	return nil
}

func proxyConfig(ctx context.Context, env Env, t *target, a []string, f configFlags, out, diagnostics io.Writer) error {
	switch {
	case f.file != "":
		return dumpFileConfig(env, a[0], f, out, diagnostics)
	case f.selector != "":
		return logLevelsBySelector(ctx, t, a[0], f, out, diagnostics)
	}
	sec, proxy, err := sectionAndProxy(a)
	if err == nil {
		err = f.check(sec)
	}
	if err == nil {
		_, err = proxyname.Parse(proxy, f.namespace)
	}
	if err != nil {
		return usage(err)
	}
	if f.served {
		return servedConfig(ctx, t, proxy, sec, f, out, diagnostics)
	}
	mesh, err := t.controlPlane(ctx)
	if err != nil {
		return err
	}
	if mesh != nil {
		return t.podConfig(ctx, mesh, proxy, sec, f, out, diagnostics)
	}
	state, err := t.state()
	if err != nil {
		return err
	}
	pod, err := rundir.Proxy(state, proxy, f.namespace)
	if missing := new(proxyname.NotFoundError); errors.As(err, &missing) {
		return showConnectedElsewhere(ctx, t, proxy, sec, f, err, out, diagnostics)
	}
	if err != nil {
		return err
	}
	if pod.Kind == proxyless {
		return proxylessConfig(ctx, t, pod, sec, f, out, diagnostics)
	}
	client := envoyadmin.New(pod.Agent.AdminSocket)
	if sec == logLevels {
		err = logLevelConfig(ctx, client, f, out)
	} else {
		err = envoyConfig(ctx, client, pod.ID(), sec, f, out, diagnostics)
	}
	if err != nil {
		return fmt.Errorf("proxy %s: %w", pod.ID(), err)
	}
	return nil
}

// showConnectedElsewhere shows what the xds-server has for a connected proxy that this run directory did not start.
// missing is the error to return if no such proxy is connected either.
func showConnectedElsewhere(ctx context.Context, t *target, proxy string, sec envoyadmin.Section, f configFlags, missing error, out,
	diagnostics io.Writer) error {
	c, err := t.findProxy(ctx, proxy, f.namespace)
	if unknown := new(namespaceError); errors.As(err, &unknown) {
		return err
	}
	if err != nil {
		return missing
	}
	if sec != allSections && servedTypes[sec] == "" {
		return fmt.Errorf("%s is connected, but was not started by this run directory's `fairlead up`, which is why its Envoy cannot be asked "+
			"for %s", proxyName(c.nodeID), title(sec))
	}
	fmt.Fprintf(diagnostics, "%s was not started by this run directory's `fairlead up`; this is what its xds-server has for it (--served)\n",
		proxyName(c.nodeID))
	return c.showServed(ctx, sec, f, out, diagnostics)
}

// proxylessConfig shows what the xds-server has for a proxyless gRPC client: it has no Envoy to ask.
func proxylessConfig(ctx context.Context, t *target, pod *runstate.Pod, sec envoyadmin.Section, f configFlags, out,
	diagnostics io.Writer) error {
	switch sec {
	case logLevels:
		return fmt.Errorf("%s is a gRPC program without an Envoy: set its log levels by its own means, as GRPC_GO_LOG_SEVERITY_LEVEL or "+
			"GRPC_VERBOSITY in its environment", pod.ID())
	case envoyadmin.Secrets:
		return fmt.Errorf("%s is a gRPC program without an Envoy: its agent keeps key, certificate and roots as files in %s", pod.ID(),
			pod.Agent.StateDir)
	case envoyadmin.Bootstrap:
		text, err := os.ReadFile(filepath.Join(pod.Agent.StateDir, "grpc-bootstrap.json"))
		if err != nil {
			return fmt.Errorf("bootstrap of gRPC program %s, which its agent writes when all that it needs is there: %w; see %s", pod.ID(), err,
				pod.Agent.Log)
		}
		return printJSONOr(out, text, f.out.value == "yaml")
	}
	fmt.Fprintf(diagnostics, "%s is a gRPC program without an Envoy; this is what its xds-server has for it (--served)\n", pod.ID())
	return servedConfig(ctx, t, pod.ID(), sec, f, out, diagnostics)
}

// dumpFileConfig shows a section of a config dump in a file.
func dumpFileConfig(env Env, section string, f configFlags, out, diagnostics io.Writer) error {
	sec, ok := findSection(section, false)
	if !ok {
		return usage(fmt.Errorf("%q is no section; choose one of %s", section, strings.Join(sectionNames(), ", ")))
	}
	if err := f.check(sec); err != nil {
		return usage(err)
	}
	var text []byte
	var err error
	if f.file == "-" {
		text, err = objectfile.Read("standard input", env.In)
	} else {
		text, err = readAnyFile(f.file)
	}
	if err != nil {
		return err
	}
	dump, err := envoyadmin.ParseDump(text)
	if err != nil {
		return refused(fmt.Errorf("%s: %w; write it with `fairlead proxy-config all PROXY -o json`, or from /config_dump?include_eds", f.file,
			err))
	}
	return showDump(dump, f.file, sec, f, dump.EndpointsTable, out, diagnostics)
}

// logLevelsBySelector shows, and sets if the flags say so, the log levels of all Envoys whose Pods -l selects.
func logLevelsBySelector(ctx context.Context, t *target, section string, f configFlags, out, diagnostics io.Writer) error {
	if sec, _ := findSection(section, false); sec != logLevels {
		return usage(errors.New("--selector is for `fairlead proxy-config log`; name one PROXY for the other sections"))
	}
	which := selection{namespace: f.namespace, selector: f.selector}
	selector, err := which.labels()
	if err != nil {
		return err
	}
	admins, err := t.admins(ctx, which, selector)
	if err != nil {
		return err
	}
	loggers := map[string][]envoyadmin.Logger{}
	for name, client := range admins {
		if loggers[name], err = setLoggers(ctx, client, f); err != nil {
			return fmt.Errorf("proxy %s: %w", name, err)
		}
	}
	names := slices.Sorted(maps.Keys(admins))
	if f.out.value != "" {
		return printTree(out, f.out.value, loggers)
	}
	if len(names) == 0 {
		return reportEmpty(diagnostics, "proxies", which)
	}
	tab := &table.Table{Header: []string{"PROXY", "LOGGER", "LEVEL"}}
	for _, name := range names {
		for _, l := range loggers[name] {
			tab.Add(name, l.Name, l.Level)
		}
	}
	return tab.Write(out)
}

// admins returns clients of the admin interfaces of all Envoys whose Pods a selector selects, by name.
func (t *target) admins(ctx context.Context, which selection, selector labels.Selector) (map[string]*envoyadmin.Client, error) {
	out := map[string]*envoyadmin.Client{}
	mesh, err := t.controlPlane(ctx)
	if err != nil {
		return nil, err
	}
	if mesh != nil {
		list, err := t.listProxies(ctx, which)
		if err != nil {
			return nil, err
		}
		for _, p := range list.GetProxies() {
			name := proxyName(p.GetNodeId())
			if _, known := out[name]; known || p.GetUnverified() || proxyType(p.GetNodeId()) == proxyless {
				continue
			}
			pod, err := t.findPod(ctx, mesh, podName(p), p.GetNamespace())
			if err != nil {
				return nil, err
			}
			if out[name], err = pod.admin(); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	state, err := t.state()
	if err != nil {
		return nil, err
	}
	for i := range state.Pods {
		pod := &state.Pods[i]
		if pod.Agent != nil && pod.Kind != proxyless && (which.namespace == "" || pod.Namespace == which.namespace) &&
			selector.Matches(labels.Set(pod.Labels)) {
			out[pod.ID()] = envoyadmin.New(pod.Agent.AdminSocket)
		}
	}
	return out, nil
}

// setLoggers sets the log levels that the flags ask for, and lists the loggers.
func setLoggers(ctx context.Context, client *envoyadmin.Client, f configFlags) ([]envoyadmin.Logger, error) {
	switch {
	case f.reset:
		return client.ResetLogLevels(ctx)
	case f.level != "":
		return client.SetLogLevels(ctx, f.level)
	}
	return client.Loggers(ctx)
}

func logLevelConfig(ctx context.Context, client *envoyadmin.Client, f configFlags, out io.Writer) error {
	list, err := setLoggers(ctx, client, f)
	if err != nil {
		return err
	}
	if f.out.value != "" {
		return printTree(out, f.out.value, list)
	}
	return envoyadmin.LoggersTable(list).Write(out)
}

// envoyConfig shows a section of what an Envoy holds.
func envoyConfig(ctx context.Context, client *envoyadmin.Client, name string, sec envoyadmin.Section, f configFlags, out,
	diagnostics io.Writer) error {
	dump, err := client.Dump(ctx)
	if err != nil {
		return err
	}
	endpoints := func() (*table.Table, error) {
		clusters, err := client.Clusters(ctx)
		if err != nil {
			return nil, err
		}
		return clusters.Only(f.filter).EndpointsTable(), nil
	}
	return showDump(dump, name, sec, f, endpoints, out, diagnostics)
}

// tableSections are the sections that `all` shows, in this order.
var tableSections = []envoyadmin.Section{
	envoyadmin.Clusters, envoyadmin.Listeners, envoyadmin.Routes, envoyadmin.Endpoints, envoyadmin.Secrets, envoyadmin.Extensions,
}

// showDump prints a section of a dump, or all of them. endpoints makes the table of endpoints; nil takes them from the
// dump.
func showDump(dump *envoyadmin.Dump, name string, sec envoyadmin.Section, f configFlags, endpoints func() (*table.Table, error), out,
	diagnostics io.Writer) error {
	wanted := []envoyadmin.Section{sec}
	if sec == allSections {
		wanted = tableSections
	}
	for _, s := range wanted {
		var err error
		if dump, err = dump.Only(s, f.filter); err != nil {
			return err
		}
	}
	if endpoints == nil {
		endpoints = dump.EndpointsTable
	}
	if f.out.value != "" || sec == envoyadmin.Bootstrap {
		text, err := dump.JSON(sec)
		if sec == allSections {
			text, err = dump.AllJSON()
		}
		if err != nil {
			return err
		}
		return printJSONOr(out, text, f.out.value == "yaml")
	}
	shown := 0
	for _, s := range wanted {
		tab, err := sectionTable(dump, s, endpoints)
		if err != nil {
			return err
		}
		if len(tab.Rows) == 0 && sec == allSections {
			continue
		}
		if shown > 0 {
			fmt.Fprintln(out)
		}
		if err := tab.Write(out); err != nil {
			return err
		}
		shown += len(tab.Rows)
	}
	if shown == 0 {
		what := title(sec)
		if sec == allSections {
			what = "resources"
		}
		fmt.Fprintf(diagnostics, "%s has no %s, or the filters leave none\n", name, what)
	}
	return nil
}

func sectionTable(dump *envoyadmin.Dump, sec envoyadmin.Section, endpoints func() (*table.Table, error)) (*table.Table, error) {
	switch sec {
	case envoyadmin.Clusters:
		return dump.ClustersTable()
	case envoyadmin.Listeners:
		return dump.ListenersTable()
	case envoyadmin.Routes:
		return dump.RoutesTable()
	case envoyadmin.VirtualHosts:
		return dump.VirtualHostsTable()
	case envoyadmin.Secrets:
		return dump.SecretsTable(time.Now())
	case envoyadmin.Extensions:
		return dump.ExtensionsTable()
	case envoyadmin.Endpoints:
		return endpoints()
	}
	return nil, fmt.Errorf("%s has no table; add -o json", title(sec))
}
