package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/tests/bench/internal/contender"
	"fairlead.dev/tests/bench/internal/kube"
	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/internal/wait"
)

// HTTPRoutes of the Gateway that all contenders serve.
const (
	Routes = 3000
	// Burst are created at once.
	Burst = 1000
	// Churned are there while routes change.
	Churned = 5000
	// ChurnPerSecond routes change, while loadPerSecond requests are sent.
	ChurnPerSecond = 20
	loadPerSecond  = 200
	// ofHosts is how many routes apart those are that are changed one after another, so that few are of one hostname.
	ofHosts = 7
	// countedWithin is how long the status of the Gateway may take.
	countedWithin = 5 * time.Minute
	// After the last of several changes a contender has so long for what it does about them; idle use of as much time
	// is subtracted.
	afterChanges = 3 * time.Second
	idleFor      = 3 * time.Second
	// warmup is how many changes pass before they count.
	warmup = 3
)

// Bench is a Gateway in a Kubernetes API server that contenders serve, one after the other, with a real Envoy.
type Bench struct {
	API *kube.API
	// Envoy is the binary, Clients where it runs, and client the one that asks it.
	Envoy   string
	Clients *unix.CPUSet
	client  *Client
	// Repeat is how many routes are added and removed one at a time; Lasts is how long routes change.
	Repeat int
	Lasts  time.Duration
	Log    io.Writer
	// Profiler keeps profiles; nil for none.
	Profiler contender.Profiler
	// Heap keeps profiles of what is live, if there are any.
	Heap contender.Profiler
}

// Change is what changes of a kind have cost.
type Change struct {
	Delays []time.Duration
	CPU    time.Duration
}

// Figures are what was measured of one contender.
type Figures struct {
	Ready, ReadyCPU time.Duration
	Configured      time.Duration
	Memory, Churned machine.Memory
	Added, Removed  *Change
	// AddedAlone and RemovedAlone are what Envoy takes without the contender, with Envoy's CPU; nil if not measured.
	AddedAlone, RemovedAlone *Change
	Counted                  time.Duration
	PerChurn                 time.Duration
	EnvoyPerChurn            time.Duration
	BytesPerChurn            int64
	Sent, Failed             int64
	Changes                  int

	held recorded
}

// Load creates the Gateway with its routes, and starts the application until ctx ends. The definitions are directories
// of CustomResourceDefinitions.
func (b *Bench) Load(ctx context.Context, definitions ...string) error {
	free, err := machine.FreePorts(2)
	if err != nil {
		return err
	}
	var e kube.Edge
	for i, port := range []*int{&e.Port, &e.Backend} {
		_, text, err := net.SplitHostPort(free[i])
		if err != nil {
			return err
		}
		if *port, err = strconv.Atoi(text); err != nil {
			return err
		}
	}
	b.client = NewClient(free[0])
	if err := Serve(ctx, free[1]); err != nil {
		return err
	}
	if err := b.API.LoadEdge(ctx, e, definitions...); err != nil {
		return err
	}
	return b.API.CreateHTTPRoutes(ctx, 0, Routes)
}

// Measure starts a contender, measures it with an Envoy whose files are in dir, and stops it. With alone, it then
// measures Envoy by itself, with what the contender had for it.
func (b *Bench) Measure(ctx context.Context, dir string, alone bool, start func() (*contender.Contender, error)) (*Figures, error) {
	f := &Figures{}
	began := time.Now()
	c, err := start()
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	f.Ready, f.ReadyCPU = time.Since(began), c.CPU()
	began = time.Now()
	envoy, err := StartEnvoy(b.Envoy, dir, c.Address, b.Clients)
	if err != nil {
		return nil, err
	}
	defer envoy.Stop()
	for _, i := range []int{0, Routes - 1} {
		if err := b.client.Until(ctx, i, http.StatusOK); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, envoy.LogTail())
		}
	}
	f.Configured = time.Since(began)
	// A contender is at rest when it has written the status of each route, too.
	if err := errors.Join(b.API.Attached(ctx, Routes, countedWithin), b.API.Judged(ctx, countedWithin), c.Settle(ctx)); err != nil {
		return nil, err
	}
	if f.Memory, err = c.Memory(); err != nil {
		return nil, err
	}
	if alone {
		if f.held, err = record(ctx, c.Address); err != nil {
			return nil, fmt.Errorf("what %s has for Envoy: %w", c.Name, err)
		}
	}
	if err := <-c.Profiles(ctx, b.Heap, "gateway-heap-", "start"); err != nil {
		return nil, err
	}
	fmt.Fprintf(b.Log, "# %s: ready after %s with %s of CPU, Envoy has its routes %s later, then %s\n", c.Name, short(f.Ready),
		short(f.ReadyCPU), short(f.Configured), c.Held())
	for _, step := range []func(context.Context, *contender.Contender, *Envoy, *Figures) error{b.single, b.burst, b.churn} {
		if err := step(ctx, c, envoy, f); err != nil {
			return nil, err
		}
	}
	if n, err := envoy.Rejected(ctx); err != nil || n > 0 {
		return nil, fmt.Errorf("Envoy has rejected %d updates, %w\n%s", n, err, envoy.LogTail())
	}
	c.Stop()
	if alone {
		envoy.Stop() // both would answer: their listeners share a port
		if f.AddedAlone, f.RemovedAlone, err = b.alone(ctx, dir, f.held); err != nil {
			return nil, err
		}
	}
	return f, b.API.DeleteHTTPRoutes(ctx, Routes, Churned+f.Changes)
}

// single adds and removes routes, one after another: of five of them four are of a hostname that
// another has, too.
func (b *Bench) single(ctx context.Context, c *contender.Contender, _ *Envoy, f *Figures) (err error) {
	number := func(i int) int { return Routes + i }
	add := func(i int) error { return b.API.CreateHTTPRoute(ctx, number(i)) }
	remove := func(i int) error { return b.API.DeleteHTTPRoute(ctx, number(i)) }
	for i := range warmup { // they are removed with the others
		if err := errors.Join(add(b.Repeat+i), b.client.Until(ctx, number(b.Repeat+i), http.StatusOK)); err != nil {
			return err
		}
	}
	if f.Added, err = b.changes(ctx, c, "added", http.StatusOK, number, add); err != nil {
		return err
	}
	if f.Removed, err = b.changes(ctx, c, "removed", http.StatusNotFound, number, remove); err != nil {
		return err
	}
	return b.API.DeleteHTTPRoutes(ctx, number(b.Repeat), number(b.Repeat+warmup))
}

// changes makes changes, each of which begins when a request for the route has been answered as the one before wants.
func (b *Bench) changes(ctx context.Context, c *contender.Contender, what string, status int, number func(int) int,
	change func(int) error,
) (*Change, error) {
	rest, err := b.atRest(ctx, c)
	if err != nil {
		return nil, err
	}
	done := c.Profiles(ctx, b.Profiler, "gateway-", what)
	s := &Change{}
	began, used := time.Now(), c.CPU()
	for i := range b.Repeat {
		at := time.Now()
		if err := errors.Join(change(i), b.client.Until(ctx, number(i), status)); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		s.Delays = append(s.Delays, time.Since(at))
	}
	if err := wait.Pause(ctx, afterChanges); err != nil {
		return nil, err
	}
	s.CPU = max(0, c.CPU()-used-time.Duration(rest*time.Since(began).Seconds())) / time.Duration(b.Repeat)
	fmt.Fprintf(b.Log, "# %s: %s: CPU %s, p50 %s, p99 %s\n", c.Name, what, short(s.CPU), short(Percentile(s.Delays, 0.5)),
		short(Percentile(s.Delays, 0.99)))
	return s, <-done
}

// atRest waits until a contender has rested, and returns the part of a processor that it uses then.
func (b *Bench) atRest(ctx context.Context, c *contender.Contender) (float64, error) {
	// Statuses that are still being written would count as rest.
	if err := errors.Join(b.API.Judged(ctx, countedWithin), c.Settle(ctx)); err != nil {
		return 0, err
	}
	used := c.CPU()
	err := wait.Pause(ctx, idleFor)
	return float64(c.CPU()-used) / float64(idleFor), err
}

// burst creates many routes at once, and waits until the status of the Gateway counts all.
func (b *Bench) burst(ctx context.Context, c *contender.Contender, _ *Envoy, f *Figures) error {
	if err := errors.Join(b.API.Attached(ctx, Routes, countedWithin), c.Settle(ctx)); err != nil {
		return err
	}
	done := c.Profiles(ctx, b.Profiler, "gateway-", "burst")
	if err := b.API.CreateHTTPRoutes(ctx, Routes, Routes+Burst); err != nil {
		return err
	}
	at := time.Now()
	if err := b.API.Attached(ctx, Routes+Burst, countedWithin); err != nil {
		return err
	}
	f.Counted = time.Since(at)
	fmt.Fprintf(b.Log, "# %s: %d routes are counted %s after the last\n", c.Name, Burst, short(f.Counted))
	return <-done
}

// churn changes routes while requests are sent: one of four changes creates a route, one removes such a route, two
// change a route that requests are sent for.
func (b *Bench) churn(ctx context.Context, c *contender.Contender, envoy *Envoy, f *Figures) error {
	if err := b.API.CreateHTTPRoutes(ctx, Routes+Burst, Churned); err != nil {
		return err
	}
	err := errors.Join(b.API.Attached(ctx, Churned, countedWithin), b.client.Until(ctx, Churned-1, http.StatusOK))
	if err != nil {
		return err
	}
	rest, err := b.atRest(ctx, c)
	if err != nil {
		return err
	}
	done := c.Profiles(ctx, b.Profiler, "gateway-", "churn")
	f.Changes = int(b.Lasts.Seconds() * ChurnPerSecond)
	changed := func(n int) int { return n * ofHosts % Churned }
	load := b.client.Load(ctx, loadPerSecond, func(n int) int {
		if n%2 == 0 {
			return changed(n * f.Changes / max(1, int(b.Lasts.Seconds()*loadPerSecond))) // about to change, or just changed
		}
		return n * (ofHosts + 4) % Churned
	})
	defer load.Stop()
	received, err := envoy.Received(ctx)
	if err != nil {
		return err
	}
	began, used, envoyUsed := time.Now(), c.CPU(), envoy.CPU()
	for n := range f.Changes {
		if err := wait.Pause(ctx, time.Until(began.Add(time.Duration(n)*time.Second/ChurnPerSecond))); err != nil {
			return err
		}
		switch n % 4 {
		case 0:
			err = b.API.CreateHTTPRoute(ctx, Churned+n)
		case 2:
			err = b.API.DeleteHTTPRoute(ctx, Churned+n-2)
		default:
			err = b.API.ChangeHTTPRoute(ctx, changed(n), fmt.Sprint(n))
		}
		if err != nil {
			return err
		}
	}
	took := time.Since(began)
	if err := wait.Pause(ctx, afterChanges); err != nil {
		return err
	}
	idle := rest * time.Since(began).Seconds()
	f.PerChurn = max(0, c.CPU()-used-time.Duration(idle*float64(time.Second))) / time.Duration(f.Changes)
	f.EnvoyPerChurn = (envoy.CPU() - envoyUsed) / time.Duration(f.Changes)
	all, err := envoy.Received(ctx)
	if err != nil {
		return err
	}
	f.BytesPerChurn = (all - received) / int64(f.Changes)
	var example string
	f.Sent, f.Failed, example = load.Stop()
	if f.Churned, err = c.Memory(); err != nil {
		return err
	}
	fmt.Fprintf(b.Log, "# %s: %d changes in %s: CPU %s each, Envoy's %s, %s; %d of %d requests failed %s; then %s\n", c.Name, f.Changes,
		short(took), short(f.PerChurn), short(f.EnvoyPerChurn), fmt.Sprintf("%d B", f.BytesPerChurn), f.Failed, f.Sent, example, c.Held())
	return <-done
}

// Percentile of durations; 0 without any.
func Percentile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[min(len(d)-1, int(q*float64(len(d))))]
}

func short(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }
