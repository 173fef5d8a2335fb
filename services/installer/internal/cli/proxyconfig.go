package cli

import (
	"context"
	"fmt"
	"io"
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
}

const sectionNames = "clusters, listeners, routes, endpoints, secrets, bootstrap"

// singular spellings are accepted, as istioctl has them.
func section(name string) (envoyadmin.Section, error) {
	for _, s := range []string{name, name + "s"} {
		if sec, ok := sections[s]; ok {
			return sec, nil
		}
	}
	return "", fmt.Errorf("%q cannot be shown; choose one of %s", name, sectionNames)
}

func newProxyConfig(t *target) *cobra.Command {
	f := newFormat("json", "yaml")
	cmd := &cobra.Command{
		Use:     "proxy-config PROXY {clusters|listeners|routes|endpoints|secrets|bootstrap}",
		Aliases: []string{"pc"},
		Short:   "Show what a proxy holds",
		Long: `Show what a proxy holds, as its Envoy says. PROXY is <pod>.<namespace>, or a beginning of it that only one proxy has.

Private keys are never shown.`,
		Example: "  fairlead proxy-config reviews-v1-0.default clusters",
		Args:    args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			proxy, what := a[0], a[1]
			if _, err := section(proxy); err == nil {
				proxy, what = what, proxy // istioctl's order
			}
			sec, err := section(what)
			if err != nil {
				return usage(err)
			}
			return proxyConfig(cmd.Context(), t, proxy, sec, f.value, cmd.OutOrStdout())
		},
	}
	cmd.Flags().VarP(f, "output", "o", "output format")
	return cmd
}

func proxyConfig(ctx context.Context, t *target, name string, sec envoyadmin.Section, as string, out io.Writer) error {
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
	if err != nil {
		return fmt.Errorf("proxy %s: %w", pod.ID(), err)
	}
	if as != "" || sec == envoyadmin.Bootstrap {
		text, err := dump.JSON(sec)
		if err != nil {
			return err
		}
		return printJSONOr(out, text, as == "yaml")
	}
	var tab *table.Table
	switch sec {
	case envoyadmin.Clusters:
		tab, err = dump.ClustersTable()
	case envoyadmin.Listeners:
		tab, err = dump.ListenersTable()
	case envoyadmin.Routes:
		tab, err = dump.RoutesTable()
	case envoyadmin.Secrets:
		tab, err = dump.SecretsTable(time.Now())
	case envoyadmin.Endpoints:
		var clusters *envoyadmin.ClusterStatuses
		if clusters, err = client.Clusters(ctx); err == nil {
			tab = clusters.EndpointsTable()
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
