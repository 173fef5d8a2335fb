package issuing

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fairlead.dev/tests/bench/internal/machine"
)

// Ask asks for one certificate over the connection that one client keeps.
type Ask func(ctx context.Context) error

// Sample is one measurement of a server.
type Sample struct {
	Issued int
	Rate   float64
	// CPU of the server for each certificate.
	CPU      time.Duration
	P50, P99 time.Duration
}

// Load asks by all clients at once, each of which sends its next request when the last is answered, for a time.
func Load(ctx context.Context, server *machine.Process, clients []Ask, during time.Duration) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, during+time.Minute)
	defer cancel()
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		took  []time.Duration
		errs  []error
		ended atomic.Bool
	)
	cpu, began := server.CPU(), time.Now()
	for _, ask := range clients {
		all.Go(func() {
			var own []time.Duration
			var err error
			for err == nil && !ended.Load() {
				start := time.Now()
				if err = ask(ctx); err == nil {
					own = append(own, time.Since(start))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			took, errs = append(took, own...), append(errs, err)
		})
	}
	timer := time.NewTimer(during)
	defer timer.Stop()
	<-timer.C
	ended.Store(true)
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return Sample{}, err
	}
	if len(took) == 0 {
		return Sample{}, errors.New("no client asked")
	}
	elapsed, n := time.Since(began), len(took)
	slices.Sort(took)
	return Sample{
		Issued: n, Rate: float64(n) / elapsed.Seconds(), CPU: (server.CPU() - cpu) / time.Duration(n), P50: took[n/2], P99: took[n*99/100],
	}, nil
}
