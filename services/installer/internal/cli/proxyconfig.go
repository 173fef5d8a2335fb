package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/rundir"
	"fairlead.dev/services/installer/internal/table"
)

// sections are what of a proxy can be shown.
var sections = map[string]envoyadmin.Section{
	"clusters": envoyadmin.Clusters, "listeners": envoyadmin.Listeners, "routes": envoyadmin.Routes,
	"endpoints": envoyadmin.Endpoints, "secrets": envoyadmin.Secrets, "bootstrap": envoyadmin.Bootstrap,
	"virtualhosts": envoyadmin.VirtualHosts, "nametables": nameTables,
}

const sectionNames = "clusters, listeners, routes, virtualhosts, endpoints, nametables, secrets, bootstrap"

// nameTables are what agents answer DNS queries from: only an xds-server knows them.
const nameTables envoyadmin.Section = "NameTables"

// singular spellings are accepted, as istioctl has them.
func section(name string) (envoyadmin.Section, error) {
	for _, s := range []string{name, name + "s"} {
		if sec, ok := sections[s]; ok {
			return sec, nil
		}
	}
	return "", fmt.Errorf("%q cannot be shown; choose one of %s", name, sectionNames)
}

// configFlags are the flags of `fairlead proxy-config`.
type configFlags struct {
	name   string
	served bool
	out    *format
}

func newProxyConfig(t *target) *cobra.Command {
	f := configFlags{out: newFormat("json", "yaml")}
	cmd := &cobra.Command{
		Use:     "proxy-config PROXY {clusters|listeners|routes|virtualhosts|endpoints|nametables|secrets|bootstrap}",
		Aliases: []string{"pc"},
		Short:   "Show what a proxy holds",
		Long: `Show what a proxy holds, as its Envoy says, or with --served what its xds-server has for it. PROXY is <pod>.<namespace>, or a beginning of it
that only one proxy has. Without a run directory there is only --served. A name table is for the agent beside the Envoy, and only --served shows it.

Private keys are never shown.`,
		Example: `  fairlead proxy-config reviews-v1-0.default clusters
  fairlead proxy-config productpage-v1-0 virtualhosts --name reviews
  fairlead proxy-config productpage-v1-0 clusters --name 'outbound|9080|v2|reviews' -o yaml`,
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			proxy, what := a[0], a[1]
			if _, err := section(proxy); err == nil {
				proxy, what = what, proxy // istioctl's order
			}
			sec, err := section(what)
			if err != nil {
				return usage(err)
			}
			if sec == nameTables && !f.served {
				return usage(errors.New("an Envoy has no nametables; add --served"))
			}
			if f.served {
				return servedConfig(cmd.Context(), t, proxy, sec, f, cmd.OutOrStdout())
			}
			return proxyConfig(cmd.Context(), t, proxy, sec, f, cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.name, "name", "", "only resources whose name contains this text; of virtual hosts, whose name or domain does")
	fs.BoolVar(&f.served, "served", false, "show what the xds-server has for the proxy")
	fs.VarP(f.out, "output", "o", "output format")
	t.registerServers(fs)
	return cmd
}

// servedTypes are what an xds-server can be asked for, in its own words.
var servedTypes = map[envoyadmin.Section]string{
	envoyadmin.Clusters: "clusters", envoyadmin.Listeners: "listeners", envoyadmin.Routes: "routes", envoyadmin.Endpoints: "endpoints",
	envoyadmin.VirtualHosts: "virtualhosts", nameTables: "nametables",
}

// servedResource is a resource as /debug/resources shows it.
type servedResource struct {
	Name     string          `json:"name"`
	Version  string          `json:"version"`
	Resource json.RawMessage `json:"resource"`
}

// servedConfig shows what the xds-server has for the proxy.
func servedConfig(ctx context.Context, t *target, name string, sec envoyadmin.Section, f configFlags, out io.Writer) error {
	kind, ok := servedTypes[sec]
	if !ok {
		return usage(errors.New("an xds-server serves clusters, listeners, routes, virtualhosts, endpoints and nametables; leave --served out for the others"))
	}
	c, err := t.connect(ctx, name)
	if err != nil {
		return err
	}
	byType := map[string][]servedResource{}
	if err := c.ask(ctx, "/debug/resources", url.Values{"type": {kind}}, &byType); err != nil {
		return err
	}
	list := []servedResource{}
	for _, found := range byType {
		for _, r := range found {
			if strings.Contains(r.Name, f.name) {
				list = append(list, r)
			}
		}
	}
	if f.out.value != "" {
		text, err := json.MarshalIndent(list, "", "  ")
		if err != nil {
			return err
		}
		return printJSONOr(out, text, f.out.value == "yaml")
	}
	tab := &table.Table{Header: []string{"NAME", "VERSION"}}
	for _, r := range list {
		tab.Add(r.Name, r.Version)
	}
	return tab.Write(out)
}

func proxyConfig(ctx context.Context, t *target, name string, sec envoyadmin.Section, f configFlags, out io.Writer) error {
	state, err := t.state()
	if err != nil {
		return err
	}
	pod, err := state.Proxy(name)
	if err != nil {
		return err
	}
	client := envoyadmin.New(pod.Agent.AdminSocket)
	dump, err := client.Dump(ctx)
	if err == nil {
		dump, err = dump.Named(sec, f.name)
	}
	if err != nil {
		return fmt.Errorf("proxy %s: %w", pod.ID(), err)
	}
	if f.out.value != "" || sec == envoyadmin.Bootstrap {
		text, err := dump.JSON(sec)
		if err != nil {
			return err
		}
		return printJSONOr(out, text, f.out.value == "yaml")
	}
	var tab *table.Table
	switch sec {
	case envoyadmin.Clusters:
		tab, err = dump.ClustersTable()
	case envoyadmin.Listeners:
		tab, err = dump.ListenersTable()
	case envoyadmin.Routes:
		tab, err = dump.RoutesTable()
	case envoyadmin.VirtualHosts:
		tab, err = dump.VirtualHostsTable()
	case envoyadmin.Secrets:
		tab, err = dump.SecretsTable(time.Now())
	case envoyadmin.Endpoints:
		var clusters *envoyadmin.ClusterStatuses
		if clusters, err = client.Clusters(ctx); err == nil {
			tab = clusters.Named(f.name).EndpointsTable()
		}
	}
	if err != nil {
		return fmt.Errorf("proxy %s: %w", pod.ID(), err)
	}
	return tab.Write(out)
}

func newProxy(t *target) *cobra.Command {
	return group("proxy", "Operate a proxy", newProxyRenew(t))
}

// renewal is what `proxy renew` tells.
type renewal struct {
	Proxy  string                  `json:"proxy"`
	Before *envoyadmin.Certificate `json:"before"`
	After  *envoyadmin.Certificate `json:"after"`
	// Milliseconds until Envoy served with the new certificate.
	Milliseconds float64 `json:"milliseconds"`
}

func newProxyRenew(t *target) *cobra.Command {
	f := newFormat("json")
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "renew PROXY",
		Short: "Renew a proxy's certificate now",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			r, err := renew(cmd.Context(), t, a[0], timeout)
			if err != nil {
				return err
			}
			if f.value == "json" {
				return printJSON(cmd.OutOrStdout(), r)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: renewed after %.0f ms\n  before: %s\n  after:  %s\n",
				r.Proxy, r.Milliseconds, describe(r.Before), describe(r.After))
			return nil
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 15*time.Second, "how long to wait for the new certificate")
	cmd.Flags().VarP(f, "output", "o", "output format")
	return cmd
}

func describe(c *envoyadmin.Certificate) string {
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("serial %s, expires %s", c.Serial, c.NotAfter.UTC().Format(time.RFC3339))
}

// renew asks the proxy's agent for a new certificate and waits until Envoy has it.
func renew(ctx context.Context, t *target, name string, timeout time.Duration) (*renewal, error) {
	state, err := t.state()
	if err != nil {
		return nil, err
	}
	pod, err := state.Proxy(name)
	if err != nil {
		return nil, err
	}
	client := envoyadmin.New(pod.Agent.AdminSocket)
	before, err := client.Certificates(ctx)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", pod.ID(), err)
	}
	began := time.Now()
	if err := askRenewal(pod.Agent.Process); err != nil {
		return nil, fmt.Errorf("proxy %s: %w", pod.ID(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		after, err := client.Certificates(ctx)
		if fresh := envoyadmin.Fresh(after, before); err == nil && fresh != nil {
			return &renewal{pod.ID(), first(before), fresh, float64(time.Since(began).Microseconds()) / 1000}, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("proxy %s has no new certificate after %s; see %s", pod.ID(), timeout, pod.Agent.Log)
		case <-time.After(poll):
		}
	}
}

// askRenewal sends the agent the signal on which it renews.
func askRenewal(p rundir.Process) error {
	if p.PID == 0 || rundir.Birth(p.PID) != p.Birth {
		return fmt.Errorf("its agent does not run; see %s", p.Log)
	}
	return syscall.Kill(p.PID, syscall.SIGUSR1)
}

func first(list []envoyadmin.Certificate) *envoyadmin.Certificate {
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}
