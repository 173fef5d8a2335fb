// Package contender is what benchmarks compare: Fairlead's config-watcher and xds-server, and istiod, each of which
// reads a Kubernetes API server and serves proxies.
package contender

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/tests/bench/internal/kube"
	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/bench/internal/services"
	"fairlead.dev/tests/internal/wait"
)

// Contender is a running control plane.
type Contender struct {
	Name      string
	processes []*machine.Process
	// Address of the plaintext xDS port.
	Address string
	// Ops are the ports with profiles, by process; none of istiod's are asked.
	Ops map[string]string
}

// Fairlead starts a config-watcher that reads the API server of a kubeconfig, and an xds-server.
func Fairlead(ctx context.Context, s *services.Services, kubeconfig string) (*Contender, error) {
	ports, err := machine.FreePorts(1)
	if err != nil {
		return nil, err
	}
	watcher, xds, err := s.Both(ctx, []string{"--kubernetes", "--kubeconfig", kubeconfig},
		[]string{"--max-connection-age=-1s", "--plaintext-address", ports[0]})
	if err != nil {
		return nil, err
	}
	return &Contender{Name: "fairlead", processes: []*machine.Process{watcher.Process, xds.Process}, Address: ports[0],
		Ops: map[string]string{"config-watcher": watcher.Ops, "xds-server": xds.Ops}}, nil
}

// Istiod starts the istiod of a directory, on the given processors, with more variables in its environment.
func Istiod(ctx context.Context, api *kube.API, bin, dir string, on *unix.CPUSet, env ...string) (*Contender, error) {
	i, err := api.StartIstiod(ctx, bin, dir, on, env...)
	if err != nil {
		return nil, err
	}
	return &Contender{Name: "istiod", processes: []*machine.Process{i.Process}, Address: i.GRPC}, nil
}

// Stop ends all processes.
func (c *Contender) Stop() {
	for _, p := range c.processes {
		p.Stop()
	}
}

// CPU is that of all processes.
func (c *Contender) CPU() (sum time.Duration) {
	for _, p := range c.processes {
		sum += p.CPU()
	}
	return sum
}

// Memory is that of all processes.
func (c *Contender) Memory() (sum machine.Memory, err error) {
	for _, p := range c.processes {
		m, err := p.Memory()
		if err != nil {
			return sum, err
		}
		sum.Resident, sum.Peak, sum.Anonymous = sum.Resident+m.Resident, sum.Peak+m.Peak, sum.Anonymous+m.Anonymous
	}
	return sum, nil
}

// Held tells what each process holds, for the log.
func (c *Contender) Held() string {
	var each []string
	for _, p := range c.processes {
		m, err := p.Memory()
		if err != nil {
			return err.Error()
		}
		each = append(each, fmt.Sprintf("%s %.1f MiB", p.Name, float64(m.Resident)/(1<<20)))
	}
	return strings.Join(each, ", ")
}

// Settle waits until the processes have rested for some seconds; what a burst took is given back then.
func (c *Contender) Settle(ctx context.Context) error {
	const window, most, enough = time.Second, 100 * time.Millisecond, 8
	for calm, tries := 0, 0; calm < enough; tries++ {
		if tries > 180 {
			return fmt.Errorf("%s does not come to rest", c.Name)
		}
		used := c.CPU()
		if err := wait.Pause(ctx, window); err != nil {
			return err
		}
		for _, p := range c.processes {
			if err := p.Died(); err != nil {
				return fmt.Errorf("%s: %w\n%s", p.Name, err, p.LogTail())
			}
		}
		calm++
		if c.CPU()-used > most {
			calm = 0
		}
	}
	return nil
}

// Profiler keeps a CPU profile of the process with this port, under a name.
type Profiler func(ctx context.Context, ops, name string) error

// Profiles takes profiles of the processes, none if keep is nil; done says when they are there. Their names begin with
// the prefix and the process.
func (c *Contender) Profiles(ctx context.Context, keep Profiler, prefix, name string) (done <-chan error) {
	out := make(chan error, 1)
	go func() {
		all := make(chan error, len(c.Ops))
		running := 0
		for process, ops := range c.Ops {
			if keep != nil {
				running++
				go func() { all <- keep(ctx, ops, prefix+process+"-"+name) }()
			}
		}
		var err error
		for range running {
			err = errors.Join(err, <-all)
		}
		out <- err
	}()
	return out
}
