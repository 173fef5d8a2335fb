package issuing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/tests/bench/internal/machine"
)

const (
	// stormAgents ask at once, each of a workload of its own, over a connection of its own, which it closes after the
	// answer, as Fairlead's agents do.
	stormAgents = 5000
	stormGoal   = 4 * time.Second
	// stormWithin is when the benchmark gives up.
	stormWithin = time.Minute
	// agentTimeout is how long an agent waits for its certificate before it asks again.
	agentTimeout = 10 * time.Second
)

// stormed is how a storm of agents went.
type stormed struct {
	took time.Duration
	// cpu is what the ca needed for that, clients what the agents did.
	cpu, clients time.Duration
	// refused attempts were made again.
	refused int64
	// health is what a prober saw meanwhile.
	health probed
	// missing agents have no certificate when the benchmark gives up.
	missing int64
	// first is an error of an agent.
	first error
}

// storm lets all agents ask at once, until each has its certificate.
func (s *IstioAPI) storm(ctx context.Context, keys *Tokens, clientCores *unix.CPUSet) (stormed, error) {
	server, err := s.serverCertificate(ctx)
	if err != nil {
		return stormed{}, err
	}
	agents := make([]*agent, stormAgents)
	for n := range agents {
		w, err := NewWorkload(n)
		if err != nil {
			return stormed{}, err
		}
		token, err := keys.Of(w)
		if err != nil {
			return stormed{}, err
		}
		from := net.IPv4(127, 77, byte(n>>8), byte(n)) //nolint:gosec // below 1<<16
		if agents[n], err = s.newAgent(from, w, token, server); err != nil {
			return stormed{}, err
		}
	}
	var (
		all     sync.WaitGroup
		failed  atomic.Pointer[error]
		out     stormed
		refused atomic.Int64
		missing atomic.Int64
	)
	ctx, cancel := context.WithTimeout(ctx, stormWithin)
	defer cancel()
	prober, err := startProber("http://"+s.ops+"/readyz", filepath.Join(s.authority.Dir, "prober.log"), clientCores)
	if err != nil {
		return stormed{}, err
	}
	// Agents have machines of their own: what one process of thousands of them spends on garbage is none of theirs.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(2 << 30))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var ready sync.WaitGroup
	ready.Add(len(agents))
	begin := make(chan struct{})
	for _, a := range agents {
		all.Go(func() {
			before := func() {
				ready.Done()
				<-begin
			}
			for {
				err := a.ask(ctx, s.address, before)
				before = func() {}
				if err == nil {
					return
				}
				refused.Add(1)
				failed.Store(&err)
				select {
				case <-ctx.Done():
					missing.Add(1)
					return
				case <-time.After(time.Duration((0.5 + rand.Float64()) * float64(500*time.Millisecond))): //nolint:gosec // spreads retries
				}
			}
		})
	}
	ready.Wait()
	began, cpu, clients := time.Now(), s.CPU(), machine.OwnCPU()
	close(begin)
	all.Wait()
	out.took, out.refused, out.cpu, out.clients = time.Since(began), refused.Load(), s.CPU()-cpu, machine.OwnCPU()-clients
	out.missing = missing.Load()
	if last := failed.Load(); last != nil {
		out.first = *last
	}
	if out.health, err = prober.end(); err != nil {
		return out, err
	}
	if out.missing > 0 {
		out.first = fmt.Errorf("%d agents have none after %s: %w", out.missing, stormWithin, out.first)
	}
	return out, nil
}
