package cli

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/local/rundir"
)

func newProxy(t *target) *cobra.Command {
	return group("proxy", "Operate a proxy", newProxyRenew(t))
}

// renewal is what `proxy renew` prints.
type renewal struct {
	Proxy  string                  `json:"proxy"`
	Before *envoyadmin.Certificate `json:"before"`
	After  *envoyadmin.Certificate `json:"after"`
	// Milliseconds is the time until Envoy had the new certificate.
	Milliseconds float64 `json:"milliseconds"`
}

func newProxyRenew(t *target) *cobra.Command {
	f := newFormat("json", "yaml")
	var timeout time.Duration
	var namespace string
	cmd := &cobra.Command{
		Use:   "renew PROXY",
		Short: "Renew a proxy's certificate now",
		Args:  args(cobra.ExactArgs(1)),

		ValidArgsFunction: t.completeProxies(1),
		RunE: func(cmd *cobra.Command, a []string) error {
			r, err := renew(cmd.Context(), t, a[0], namespace, timeout)
			if err != nil {
				return err
			}
			if f.value != "" {
				return printTree(cmd.OutOrStdout(), f.value, r)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: renewed after %.0f ms\n  before: %s\n  after:  %s\n",
				r.Proxy, r.Milliseconds, certificateText(r.Before), certificateText(r.After))
			return nil
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 15*time.Second, "how long to wait for the new certificate")
	t.namespaceFlag(cmd, &namespace, "namespace of the proxy, if PROXY does not say")
	outputFlag(cmd, f)
	return cmd
}

func certificateText(c *envoyadmin.Certificate) string {
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("serial %s, expires %s", c.Serial, c.NotAfter.UTC().Format(time.RFC3339))
}

// renew asks the proxy's agent for a new certificate and waits until Envoy has it.
func renew(ctx context.Context, t *target, name, namespace string, timeout time.Duration) (*renewal, error) {
	state, err := t.state()
	if err != nil {
		return nil, err
	}
	pod, err := rundir.Proxy(state, name, namespace)
	if err != nil {
		return nil, err
	}
	if pod.Kind == proxyless {
		return nil, fmt.Errorf("%s is a gRPC program without an Envoy; its agent renews its certificate, `kill -USR1 %d` does it now", pod.ID(), pod.Agent.PID)
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
		case <-time.After(pollInterval):
		}
	}
}

// askRenewal sends the agent SIGUSR1, on which it renews its certificate.
func askRenewal(p runstate.Process) error {
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
