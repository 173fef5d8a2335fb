package suite

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"fairlead.dev/tests/bench/internal/edge"
	"fairlead.dev/tests/bench/internal/kube"
	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/internal/wait"
)

// HTTPRoutes of the Gateway that both serve.
const (
	edgeRoutes = 3000
	// edgeBurst are created at once.
	edgeBurst = 1000
	// edgeChurned are there while routes change.
	edgeChurned = 5000
	// churnPerSecond routes change, while loadPerSecond requests are sent.
	churnPerSecond = 20
	loadPerSecond  = 200
	// ofHosts is how many routes apart those are that are changed one after another, so that few are of one hostname.
	ofHosts = 7
	// countedWithin is how long the status of the Gateway may take.
	countedWithin = 5 * time.Minute
)

// istiodForStockEnvoy leaves out filters that only Istio's own build of Envoy has.
var istiodForStockEnvoy = []string{"PILOT_ENABLE_ALPN_FILTER=false", "PILOT_ENABLE_METADATA_EXCHANGE=false"}

// edgeBench is a Gateway in a Kubernetes API server that Fairlead and istiod serve, one after the other, with a real
// Envoy.
type edgeBench struct {
	*lab
	edge   kube.Edge
	api    *kube.API
	client *edge.Client
	// repeat is how many routes are added and removed one at a time; lasts is how long routes change.
	repeat int
	lasts  time.Duration
}

// edgeFigures are what was measured of one contender.
type edgeFigures struct {
	ready, readyCPU  time.Duration
	configured       time.Duration
	memory, churned  machine.Memory
	added, removed   *sample
	counted          time.Duration
	perChurn         time.Duration
	envoyPerChurn    time.Duration
	bytesPerChurn    int64
	sent, failed     int64
	changed, changes int
}

// gateway measures a Gateway with many HTTPRoutes, with Fairlead and beside it with istiod.
func (l *lab) gateway(ctx context.Context, t *table) error {
	istio := os.Getenv("ISTIO_BIN")
	if istio == "" {
		return errors.New("ISTIO_BIN names no directory with Istio's pilot-discovery: run `make bench-gateway`")
	}
	b := &edgeBench{lab: l, repeat: 30, lasts: 15 * time.Second}
	if l.Full {
		b.repeat, b.lasts = 200, time.Minute
	}
	dir := filepath.Join(l.dir, "gateway")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := b.start(ctx, dir); err != nil {
		return err
	}
	defer b.api.Stop()
	ours, err := b.measure(ctx, "fairlead", dir, func() (*contender, error) { return l.fairlead(ctx, b.api) })
	if err != nil {
		return fmt.Errorf("fairlead: %w", err)
	}
	theirs, err := b.measure(ctx, "istiod", dir, func() (*contender, error) {
		i, err := b.api.StartIstiod(ctx, istio, dir, &l.cores.Server, istiodForStockEnvoy...)
		if err != nil {
			return nil, err
		}
		return &contender{processes: []*machine.Process{i.Process}, address: i.GRPC}, nil
	})
	if err != nil {
		return fmt.Errorf("istiod: %w", err)
	}
	b.lines(t, ours, theirs)
	return nil
}

// start starts the API server with the Gateway and its routes, and the application.
func (b *edgeBench) start(ctx context.Context, dir string) error {
	free, err := machine.FreePorts(2)
	if err != nil {
		return err
	}
	for i, port := range []*int{&b.edge.Port, &b.edge.Backend} {
		_, text, err := net.SplitHostPort(free[i])
		if err != nil {
			return err
		}
		if *port, err = strconv.Atoi(text); err != nil {
			return err
		}
	}
	b.client = edge.NewClient(free[0])
	if err := edge.Serve(ctx, free[1]); err != nil {
		return err
	}
	if b.api, err = kube.StartAPI(ctx, dir, &b.cores.Clients); err != nil {
		return err
	}
	channel := filepath.Join(filepath.Dir(b.Definitions), "gateway-api", "standard")
	if err := b.api.LoadEdge(ctx, b.edge, b.Definitions, channel); err != nil {
		return errors.Join(err, b.stopAPI())
	}
	if err := b.api.CreateHTTPRoutes(ctx, 0, edgeRoutes); err != nil {
		return errors.Join(err, b.stopAPI())
	}
	return nil
}

func (b *edgeBench) stopAPI() error {
	b.api.Stop()
	return nil
}

// measure starts a contender, measures it and stops it.
func (b *edgeBench) measure(ctx context.Context, name, dir string, start func() (*contender, error)) (*edgeFigures, error) {
	f := &edgeFigures{}
	began := time.Now()
	c, err := start()
	if err != nil {
		return nil, err
	}
	c.name = name
	defer func() { c.stop() }()
	f.ready, f.readyCPU = time.Since(began), c.CPU()
	began = time.Now()
	envoy, err := edge.StartEnvoy(b.Envoy, dir, c.address, &b.cores.Clients)
	if err != nil {
		return nil, err
	}
	defer envoy.Stop()
	for _, i := range []int{0, edgeRoutes - 1} {
		if err := b.client.Until(ctx, i, http.StatusOK); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, envoy.LogTail())
		}
	}
	f.configured = time.Since(began)
	if err := errors.Join(b.api.Attached(ctx, edgeRoutes, countedWithin), c.settle(ctx)); err != nil {
		return nil, err
	}
	if f.memory, err = c.memory(); err != nil {
		return nil, err
	}
	fmt.Fprintf(b.log, "# %s: ready after %s with %s of CPU, Envoy has its routes %s later, then %s\n", name, ms(f.ready), ms(f.readyCPU),
		ms(f.configured), c.held())
	for _, step := range []func(context.Context, *contender, *edge.Envoy, *edgeFigures) error{b.single, b.burst, b.churn} {
		if err := step(ctx, c, envoy, f); err != nil {
			return nil, err
		}
	}
	if n, err := envoy.Rejected(ctx); err != nil || n > 0 {
		return nil, fmt.Errorf("Envoy has rejected %d updates, %w\n%s", n, err, envoy.LogTail())
	}
	for process, ops := range c.ops {
		if err := b.heap(ctx, ops, "gateway-"+process+"-heap"); err != nil {
			return nil, err
		}
	}
	c.stop()
	return f, b.api.DeleteHTTPRoutes(ctx, edgeRoutes, edgeChurned+f.changes)
}

// single adds and removes routes, one after another: of five of them four are of a hostname that
// another has, too.
func (b *edgeBench) single(ctx context.Context, c *contender, _ *edge.Envoy, f *edgeFigures) (err error) {
	number := func(i int) int { return edgeRoutes + i }
	add := func(i int) error { return b.api.CreateHTTPRoute(ctx, number(i)) }
	remove := func(i int) error { return b.api.DeleteHTTPRoute(ctx, number(i)) }
	for i := range warmup { // they are removed with the others
		if err := errors.Join(add(b.repeat+i), b.client.Until(ctx, number(b.repeat+i), http.StatusOK)); err != nil {
			return err
		}
	}
	if f.added, err = b.changes(ctx, c, "added", http.StatusOK, number, add); err != nil {
		return err
	}
	if f.removed, err = b.changes(ctx, c, "removed", http.StatusNotFound, number, remove); err != nil {
		return err
	}
	return b.api.DeleteHTTPRoutes(ctx, number(b.repeat), number(b.repeat+warmup))
}

// changes makes changes, each of which begins when a request for the route has been answered as the one before wants.
func (b *edgeBench) changes(ctx context.Context, c *contender, what string, status int, number func(int) int,
	change func(int) error,
) (*sample, error) {
	rest, err := b.atRest(ctx, c)
	if err != nil {
		return nil, err
	}
	done := b.profiles(ctx, c, "gateway-"+what)
	s := &sample{}
	began, used := time.Now(), c.CPU()
	for i := range b.repeat {
		at := time.Now()
		if err := errors.Join(change(i), b.client.Until(ctx, number(i), status)); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		s.Delays = append(s.Delays, time.Since(at))
	}
	if err := wait.Pause(ctx, afterChanges); err != nil {
		return nil, err
	}
	s.CPU = max(0, c.CPU()-used-time.Duration(rest*time.Since(began).Seconds())) / time.Duration(b.repeat)
	fmt.Fprintf(b.log, "# %s: %s: CPU %s, p50 %s, p99 %s\n", c.name, what, ms(s.CPU), ms(percentile(s.Delays, 0.5)), ms(s.P99()))
	return s, <-done
}

// atRest waits until a contender has rested, and returns the part of a processor that it uses then.
func (b *edgeBench) atRest(ctx context.Context, c *contender) (float64, error) {
	if err := c.settle(ctx); err != nil {
		return 0, err
	}
	used := c.CPU()
	err := wait.Pause(ctx, idleFor)
	return float64(c.CPU()-used) / float64(idleFor), err
}

// burst creates many routes at once, and waits until the status of the Gateway counts all.
func (b *edgeBench) burst(ctx context.Context, c *contender, _ *edge.Envoy, f *edgeFigures) error {
	if err := errors.Join(b.api.Attached(ctx, edgeRoutes, countedWithin), c.settle(ctx)); err != nil {
		return err
	}
	done := b.profiles(ctx, c, "gateway-burst")
	if err := b.api.CreateHTTPRoutes(ctx, edgeRoutes, edgeRoutes+edgeBurst); err != nil {
		return err
	}
	at := time.Now()
	if err := b.api.Attached(ctx, edgeRoutes+edgeBurst, countedWithin); err != nil {
		return err
	}
	f.counted = time.Since(at)
	fmt.Fprintf(b.log, "# %s: %d routes are counted %s after the last\n", c.name, edgeBurst, ms(f.counted))
	return <-done
}

// churn changes routes while requests are sent: one of four changes creates a route, one removes such a route, two
// change a route that requests are sent for.
func (b *edgeBench) churn(ctx context.Context, c *contender, envoy *edge.Envoy, f *edgeFigures) error {
	if err := b.api.CreateHTTPRoutes(ctx, edgeRoutes+edgeBurst, edgeChurned); err != nil {
		return err
	}
	err := errors.Join(b.api.Attached(ctx, edgeChurned, countedWithin), b.client.Until(ctx, edgeChurned-1, http.StatusOK))
	if err != nil {
		return err
	}
	rest, err := b.atRest(ctx, c)
	if err != nil {
		return err
	}
	done := b.profiles(ctx, c, "gateway-churn")
	f.changes = int(b.lasts.Seconds() * churnPerSecond)
	changed := func(n int) int { return n * ofHosts % edgeChurned }
	load := b.client.Load(ctx, loadPerSecond, func(n int) int {
		if n%2 == 0 {
			return changed(n * f.changes / max(1, int(b.lasts.Seconds()*loadPerSecond))) // about to change, or just changed
		}
		return n * (ofHosts + 4) % edgeChurned
	})
	defer load.Stop()
	received, err := envoy.Received(ctx)
	if err != nil {
		return err
	}
	began, used, envoyUsed := time.Now(), c.CPU(), envoy.CPU()
	for n := range f.changes {
		if err := wait.Pause(ctx, time.Until(began.Add(time.Duration(n)*time.Second/churnPerSecond))); err != nil {
			return err
		}
		switch n % 4 {
		case 0:
			err = b.api.CreateHTTPRoute(ctx, edgeChurned+n)
		case 2:
			err = b.api.DeleteHTTPRoute(ctx, edgeChurned+n-2)
		default:
			err = b.api.ChangeHTTPRoute(ctx, changed(n), fmt.Sprint(n))
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
	f.perChurn = max(0, c.CPU()-used-time.Duration(idle*float64(time.Second))) / time.Duration(f.changes)
	f.envoyPerChurn = (envoy.CPU() - envoyUsed) / time.Duration(f.changes)
	all, err := envoy.Received(ctx)
	if err != nil {
		return err
	}
	f.bytesPerChurn = (all - received) / int64(f.changes)
	var example string
	f.sent, f.failed, example = load.Stop()
	if f.churned, err = c.memory(); err != nil {
		return err
	}
	fmt.Fprintf(b.log, "# %s: %d changes in %s: CPU %s each, Envoy's %s, %s; %d of %d requests failed %s; then %s\n", c.name, f.changes,
		ms(took), ms(f.perChurn), ms(f.envoyPerChurn), size(float64(f.bytesPerChurn)), f.failed, f.sent, example, c.held())
	return <-done
}
