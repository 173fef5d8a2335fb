package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/controlplane"
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
		Long: `Renew a proxy's certificate now, and wait until its Envoy has the new one.

PROXY is NAME.NAMESPACE, NAME, or a beginning of it that only one proxy has, pod/NAME, or deploy/NAME for the first of a Deployment's Pods. An agent
takes one such order a second.`,
		Args: args(cobra.ExactArgs(1)),

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
	t.registerCluster(cmd)
	return cmd
}

func certificateText(c *envoyadmin.Certificate) string {
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("serial %s, expires %s", c.Serial, c.NotAfter.UTC().Format(time.RFC3339))
}

// renewable is a proxy whose certificate can be renewed.
type renewable struct {
	name  string
	admin *envoyadmin.Client
	// ask asks the agent for a new certificate, and does not wait for it.
	ask func(ctx context.Context) error
	// log is where the agent says why there is none.
	log string
}

// renew asks the proxy's agent for a new certificate and waits until Envoy has it.
func renew(ctx context.Context, t *target, name, namespace string, timeout time.Duration) (*renewal, error) {
	mesh, err := t.controlPlane(ctx)
	if err != nil {
		return nil, err
	}
	find := t.renewableHere
	if mesh != nil {
		find = func(name, namespace string) (*renewable, error) { return t.renewablePod(ctx, mesh, name, namespace) }
	}
	p, err := find(name, namespace)
	if err != nil {
		return nil, err
	}
	return p.renew(ctx, timeout)
}

// renewableHere is a proxy of the run directory.
func (t *target) renewableHere(name, namespace string) (*renewable, error) {
	state, err := t.state()
	if err != nil {
		return nil, err
	}
	pod, err := rundir.Proxy(state, name, namespace)
	if err != nil {
		return nil, err
	}
	if pod.Kind == proxyless {
		return nil, fmt.Errorf("%s is a gRPC program without an Envoy; its agent renews its certificate, `kill -USR1 %d` does it now", pod.ID(),
			pod.Agent.PID)
	}
	return &renewable{pod.ID(), envoyadmin.New(pod.Agent.AdminSocket), func(context.Context) error { return askRenewal(pod.Agent.Process) },
		pod.Agent.Log}, nil
}

// renewablePod is the proxy of a Pod of the cluster. Its agent takes the order from within the Pod alone.
func (t *target) renewablePod(ctx context.Context, mesh *controlplane.Mesh, name, namespace string) (*renewable, error) {
	p, err := t.findPod(ctx, mesh, name, namespace)
	if err != nil {
		return nil, err
	}
	admin, err := p.admin()
	if err != nil {
		return nil, err
	}
	c := p.container()
	for _, e := range c.Env {
		if e.Name == "ISTIO_META_GENERATOR" && e.Value == "grpc" {
			return nil, fmt.Errorf("%s.%s is a gRPC program without an Envoy; its agent renews its certificate after half of its life", p.Name,
				p.Namespace)
		}
	}
	port, err := p.statusPort()
	if err != nil {
		return nil, err
	}
	command := []string{"pilot-agent", "request", fmt.Sprintf("--debug-port=%d", port), "POST", "renew"}
	ask := func(ctx context.Context) error {
		return renewalAnswer(mesh.Pod(p.Namespace, p.Name).Run(ctx, c.Name, command, maxAnswer))
	}
	return &renewable{p.Name + "." + p.Namespace, admin, ask, fmt.Sprintf("`kubectl logs -n %s %s -c %s`", p.Namespace, p.Name, c.Name)}, nil
}

// renewalAnswer reads what the agent's command has printed. That of Istio prints the page 404 as if all were well.
func renewalAnswer(out []byte, err error) error {
	if err == nil && len(out) > 0 || err != nil && strings.Contains(err.Error(), "404 Not Found") {
		return errors.New("its agent knows no such order, as Istio's does not: restart the Pod to renew its certificate, or wait until half of " +
			"its life is over")
	}
	return err
}

// renew asks the agent for a new certificate and waits until Envoy has it.
func (p *renewable) renew(ctx context.Context, timeout time.Duration) (*renewal, error) {
	before, err := p.admin.Certificates(ctx)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", p.name, err)
	}
	began := time.Now()
	if err := p.ask(ctx); err != nil {
		return nil, fmt.Errorf("proxy %s: %w", p.name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		after, err := p.admin.Certificates(ctx)
		if fresh := envoyadmin.Fresh(after, before); err == nil && fresh != nil {
			return &renewal{p.name, first(before), fresh, float64(time.Since(began).Microseconds()) / 1000}, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("proxy %s has no new certificate after %s; see %s", p.name, timeout, p.log)
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
