// Package proxyview shows what a proxy holds: as its Envoy says, as a file with Envoy's dump has it, or what its
// xds-server has for it; and sets the levels of its loggers. It is what `fairlead proxy-config` does.
package proxyview

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/proxyname"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

// Request says what is shown, of which proxy, and where to.
type Request struct {
	Section envoyadmin.Section
	// Proxy is its name, and Namespace that of -n.
	Proxy, Namespace string
	Filter           envoyadmin.Filter
	// Served shows what the xds-server has.
	Served bool
	// DumpFile names the file that ShowDump shows.
	DumpFile string
	// Level sets the levels of loggers, and Reset sets what the proxy was started with.
	Level string
	Reset bool
	// Output is "json", "yaml", or empty for tables.
	Output           string
	Out, Diagnostics io.Writer
}

// Check refuses flags that have no meaning for the section.
func (r Request) Check() error {
	switch {
	case r.Section == All:
	case r.Filter.Check(r.Section) != nil:
		return fmt.Errorf("%s: %w", Title(r.Section), r.Filter.Check(r.Section))
	}
	switch {
	case r.Section != LogLevels && (r.Level != "" || r.Reset):
		return fmt.Errorf("--level and --reset are for `fairlead proxy-config log`, not for %s", Title(r.Section))
	case r.Section == LogLevels && (r.Served || r.DumpFile != ""):
		return errors.New("log levels are a running Envoy's; leave --served and --filename out")
	case r.Section == NameTables && !r.Served:
		return errors.New("an Envoy has no nametables; add --served")
	case r.Served && r.Section != All && ServedTypes[r.Section] == "":
		return errors.New("an xds-server serves clusters, listeners, routes, virtualhosts, endpoints, ecds and nametables; leave --served out " +
			"for the others")
	}
	return nil
}

// Show shows a section of a proxy of the mesh.
func (r Request) Show(ctx context.Context, mesh *meshclient.Mesh) error {
	err := r.Check()
	if err == nil {
		_, err = proxyname.Parse(r.Proxy, r.Namespace)
	}
	if err != nil {
		return process.Usage(err)
	}
	if r.Served {
		return r.served(ctx, mesh)
	}
	controlPlane, err := mesh.ControlPlane(ctx)
	if err != nil {
		return err
	}
	if controlPlane != nil {
		p, err := mesh.Pod(ctx, r.Proxy, r.Namespace)
		if err != nil {
			return err
		}
		admin, err := p.Admin()
		if err != nil {
			return err
		}
		return r.showEnvoy(ctx, admin, p.Name+"."+p.Namespace)
	}
	state, err := mesh.State()
	if err != nil {
		return err
	}
	pod, err := rundir.Proxy(state, r.Proxy, r.Namespace)
	if missing := new(proxyname.NotFoundError); errors.As(err, &missing) {
		return r.showConnectedElsewhere(ctx, mesh, err)
	}
	if err != nil {
		return err
	}
	if pod.Kind == meshclient.Proxyless {
		return r.showProxyless(ctx, mesh, pod)
	}
	return r.showEnvoy(ctx, envoyadmin.New(pod.Agent.AdminSocket), pod.ID())
}

// served shows what the xds-server has for the proxy.
func (r Request) served(ctx context.Context, mesh *meshclient.Mesh) error {
	c, err := mesh.Proxy(ctx, r.Proxy, r.Namespace)
	if err != nil {
		return err
	}
	return r.showServed(ctx, c)
}

// showConnectedElsewhere shows what the xds-server has for a connected proxy that this run directory did not start.
// missing is the error to return if no such proxy is connected either.
func (r Request) showConnectedElsewhere(ctx context.Context, mesh *meshclient.Mesh, missing error) error {
	c, err := mesh.Proxy(ctx, r.Proxy, r.Namespace)
	if unknown := new(meshclient.NamespaceError); errors.As(err, &unknown) {
		return err
	}
	if err != nil {
		return missing
	}
	if r.Section != All && ServedTypes[r.Section] == "" {
		return fmt.Errorf("%s is connected, but was not started by this run directory's `fairlead up`, which is why its Envoy cannot be asked "+
			"for %s", c.Name(), Title(r.Section))
	}
	fmt.Fprintf(r.Diagnostics, "%s was not started by this run directory's `fairlead up`; this is what its xds-server has for it (--served)\n",
		c.Name())
	return r.showServed(ctx, c)
}

// showProxyless shows what the xds-server has for a proxyless gRPC client: it has no Envoy to ask.
func (r Request) showProxyless(ctx context.Context, mesh *meshclient.Mesh, pod *runstate.Pod) error {
	switch r.Section {
	case LogLevels:
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
		return structured.PrintText(r.Out, text, r.Output == "yaml")
	}
	fmt.Fprintf(r.Diagnostics, "%s is a gRPC program without an Envoy; this is what its xds-server has for it (--served)\n", pod.ID())
	r.Proxy = pod.ID()
	return r.served(ctx, mesh)
}

// ShowDump shows a section of Envoy's config dump, the text of DumpFile. The request was checked.
func (r Request) ShowDump(text []byte) error {
	dump, err := envoyadmin.ParseDump(text)
	if err != nil {
		return process.Refusedf("%s: %w; write it with `fairlead proxy-config all PROXY -o json`, or from /config_dump?include_eds",
			r.DumpFile, err)
	}
	return r.showDump(dump, r.DumpFile, dump.EndpointsTable)
}

// showEnvoy shows a section of what the Envoy of a proxy holds.
func (r Request) showEnvoy(ctx context.Context, client *envoyadmin.Client, name string) error {
	show := r.showHeld
	if r.Section == LogLevels {
		show = r.showLoggers
	}
	if err := show(ctx, client, name); err != nil {
		return fmt.Errorf("proxy %s: %w", name, err)
	}
	return nil
}

func (r Request) showHeld(ctx context.Context, client *envoyadmin.Client, name string) error {
	dump, err := client.Dump(ctx)
	if err != nil {
		return err
	}
	return r.showDump(dump, name, func() (*table.Table, error) {
		clusters, err := client.Clusters(ctx)
		if err != nil {
			return nil, err
		}
		return clusters.Only(r.Filter).EndpointsTable(), nil
	})
}

// tableSections are the sections that `all` shows, in this order.
var tableSections = []envoyadmin.Section{
	envoyadmin.Clusters, envoyadmin.Listeners, envoyadmin.Routes, envoyadmin.Endpoints, envoyadmin.Secrets, envoyadmin.Extensions,
}

// showDump prints a section of a dump of a proxy, or all of them. endpoints makes the table of endpoints; nil
// takes them from the dump.
func (r Request) showDump(dump *envoyadmin.Dump, name string, endpoints func() (*table.Table, error)) error {
	wanted := []envoyadmin.Section{r.Section}
	if r.Section == All {
		wanted = tableSections
	}
	for _, s := range wanted {
		var err error
		if dump, err = dump.Only(s, r.Filter); err != nil {
			return err
		}
	}
	if endpoints == nil {
		endpoints = dump.EndpointsTable
	}
	if r.Output != "" || r.Section == envoyadmin.Bootstrap {
		text, err := dump.JSON(r.Section)
		if r.Section == All {
			text, err = dump.AllJSON()
		}
		if err != nil {
			return err
		}
		return structured.PrintText(r.Out, text, r.Output == "yaml")
	}
	shown := 0
	for _, s := range wanted {
		tab, err := sectionTable(dump, s, endpoints)
		if err != nil {
			return err
		}
		if len(tab.Rows) == 0 && r.Section == All {
			continue
		}
		if shown > 0 {
			fmt.Fprintln(r.Out)
		}
		if err := tab.Write(r.Out); err != nil {
			return err
		}
		shown += len(tab.Rows)
	}
	if shown == 0 {
		what := Title(r.Section)
		if r.Section == All {
			what = "resources"
		}
		fmt.Fprintf(r.Diagnostics, "%s has no %s, or the filters leave none\n", name, what)
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
	return nil, fmt.Errorf("%s has no table; add -o json", Title(sec))
}
