package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	contend "fairlead.dev/tests/bench/internal/contender"
	"fairlead.dev/tests/bench/internal/edge"
	"fairlead.dev/tests/bench/internal/kube"
)

// istiodForStockEnvoy leaves out filters that only Istio's own build of Envoy has.
var istiodForStockEnvoy = []string{"PILOT_ENABLE_ALPN_FILTER=false", "PILOT_ENABLE_METADATA_EXCHANGE=false"}

// gateway measures a Gateway with many HTTPRoutes, with Fairlead and beside it with istiod.
func (l *lab) gateway(ctx context.Context, t *table) error {
	istio := os.Getenv("ISTIO_BIN")
	if istio == "" {
		return errors.New("ISTIO_BIN names no directory with Istio's pilot-discovery: run `make bench-gateway`")
	}
	b := &edge.Bench{Envoy: l.Envoy, Clients: &l.cores.Clients, Repeat: 30, Lasts: 15 * time.Second, Log: l.log, Profiler: l.profiler(),
		Heap: l.heap}
	if l.Full {
		b.Repeat, b.Lasts = 200, time.Minute
	}
	dir := filepath.Join(l.dir, "gateway")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var err error
	if b.API, err = kube.StartAPI(ctx, dir, &l.cores.Clients); err != nil {
		return err
	}
	defer b.API.Stop()
	if err := b.Load(ctx, l.Definitions, filepath.Join(filepath.Dir(l.Definitions), "gateway-api", "standard")); err != nil {
		return err
	}
	ours, err := b.Measure(ctx, dir, true, func() (*contend.Contender, error) { return contend.Fairlead(ctx, l.services, b.API.Kubeconfig) })
	if err != nil {
		return fmt.Errorf("fairlead: %w", err)
	}
	theirs, err := b.Measure(ctx, dir, false, func() (*contend.Contender, error) {
		return contend.Istiod(ctx, b.API, istio, dir, &l.cores.Server, istiodForStockEnvoy...)
	})
	if err != nil {
		return fmt.Errorf("istiod: %w", err)
	}
	gatewayLines(t, b.Lasts, ours, theirs)
	aloneLine(t, "added", ours.AddedAlone)
	aloneLine(t, "removed", ours.RemovedAlone)
	return nil
}
