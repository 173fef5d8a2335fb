// Package renewal has a proxy's agent renew its certificate, and waits until the Envoy has the new one.
package renewal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/meshclient"
)

// maxAnswer bounds what is read of an agent's answer.
const maxAnswer = 1 << 10

// pollInterval is how often the Envoy is asked for its certificates.
const pollInterval = 50 * time.Millisecond

// Renewal is what `proxy renew` prints.
type Renewal struct {
	Proxy  string                  `json:"proxy"`
	Before *envoyadmin.Certificate `json:"before"`
	After  *envoyadmin.Certificate `json:"after"`
	// Milliseconds is the time until Envoy had the new certificate.
	Milliseconds float64 `json:"milliseconds"`
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

// Renew asks the proxy's agent for a new certificate and waits until Envoy has it.
func Renew(ctx context.Context, mesh *meshclient.Mesh, name, namespace string, timeout time.Duration) (*Renewal, error) {
	controlPlane, err := mesh.ControlPlane(ctx)
	if err != nil {
		return nil, err
	}
	find := ofMachine
	if controlPlane != nil {
		find = ofPod
	}
	p, err := find(ctx, mesh, name, namespace)
	if err != nil {
		return nil, err
	}
	return p.renew(ctx, timeout)
}

// ofMachine is a proxy of the run directory.
func ofMachine(_ context.Context, mesh *meshclient.Mesh, name, namespace string) (*renewable, error) {
	state, err := mesh.State()
	if err != nil {
		return nil, err
	}
	pod, err := rundir.Proxy(state, name, namespace)
	if err != nil {
		return nil, err
	}
	if pod.Kind == meshclient.Proxyless {
		return nil, fmt.Errorf("%s is a gRPC program without an Envoy; its agent renews its certificate, `kill -USR1 %d` does it now", pod.ID(),
			pod.Agent.PID)
	}
	return &renewable{pod.ID(), envoyadmin.New(pod.Agent.AdminSocket), func(context.Context) error { return askRenewal(pod.Agent.Process) },
		pod.Agent.Log}, nil
}

// ofPod is the proxy of a Pod of the cluster. Its agent takes the order from within the Pod alone.
func ofPod(ctx context.Context, mesh *meshclient.Mesh, name, namespace string) (*renewable, error) {
	p, err := mesh.Pod(ctx, name, namespace)
	if err != nil {
		return nil, err
	}
	admin, err := p.Admin()
	if err != nil {
		return nil, err
	}
	if p.IsProxyless() {
		return nil, fmt.Errorf("%s.%s is a gRPC program without an Envoy; its agent renews its certificate after half of its life", p.Name,
			p.Namespace)
	}
	c := p.Container()
	port, err := p.StatusPort()
	if err != nil {
		return nil, err
	}
	command := []string{"pilot-agent", "request", fmt.Sprintf("--debug-port=%d", port), "POST", "renew"}
	ask := func(ctx context.Context) error {
		return renewalAnswer(p.ControlPlane.Pod(p.Namespace, p.Name).Run(ctx, c.Name, command, maxAnswer))
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
func (p *renewable) renew(ctx context.Context, timeout time.Duration) (*Renewal, error) {
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
			return &Renewal{p.name, first(before), fresh, float64(time.Since(began).Microseconds()) / 1000}, nil
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
