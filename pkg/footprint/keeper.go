package footprint

import (
	"context"
	"log/slog"
	"math"
	"runtime/metrics"
	"time"

	"fairlead.dev/pkg/clock"
)

// When a process trims itself. Under load the collector is left alone, so that work costs what it does without this package.
const (
	// lookEvery is how often the heap is looked at.
	lookEvery = time.Second
	// restsAfter is how many times in a row nothing must have happened: what comes soon after a trim pays for getting the memory anew.
	restsAfter = 6
	// quietBytes, or quietPart of the live heap, may be allocated from one look to the next by a process that rests.
	quietBytes = 1 << 20
	quietPart  = 64
	// worthBytes, or worthPart of the live heap, must have been allocated since the last time. How much of it is garbage nobody knows before
	// it has been collected: what was allocated while the last collection ran counts as live.
	worthBytes = 8 << 20
	worthPart  = 4
	// costPart bounds what trimming takes of a core: a fiftieth.
	costPart = 50
)

// Keeper trims the process each time it has come to rest after work that left garbage behind.
//
// It sets nothing: GOGC and GOMEMLIMIT hold as ever, and with GOGC=off, which says that garbage is not to be collected, it does nothing.
type Keeper struct {
	clock clock.Clock
	log   *slog.Logger
	read  func() usage
	trim  func() error
	// allocated as of the last look and as of the last trim.
	allocated, trimmed uint64
	// rests counts looks at which nothing had happened.
	rests     int
	notBefore time.Time
}

// NewKeeper returns a keeper of this process; log may be nil.
func NewKeeper(c clock.Clock, log *slog.Logger) *Keeper {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{clock: clock.Or(c), log: log, read: newReader(), trim: Trim}
}

// Run looks after the process until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	timer := k.clock.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C():
		}
		k.look()
		timer.Reset(lookEvery)
	}
}

// look trims if it is time to.
func (k *Keeper) look() {
	u := k.read()
	fresh := u.allocated - k.allocated
	k.allocated = u.allocated
	if u.off || fresh > max(quietBytes, u.live/quietPart) {
		k.rests = 0
		return
	}
	k.rests++
	start := k.clock.Now()
	if k.rests < restsAfter || u.allocated-k.trimmed < max(worthBytes, u.live/worthPart) || start.Before(k.notBefore) {
		return
	}
	if err := k.trim(); err != nil {
		// The heap has been given back; only the binary's pages have not.
		k.log.Debug("pages of the program were kept", "error", err)
	}
	took := k.clock.Now().Sub(start)
	k.notBefore = start.Add(costPart * took)
	u = k.read()
	k.allocated, k.trimmed = u.allocated, u.allocated
	k.log.Debug("memory given back", "live_bytes", u.live, "took", took)
}

// usage is what the runtime says of the heap.
type usage struct {
	// allocated counts bytes since the start, live is what the last collection found in use.
	allocated, live uint64
	// off is true if garbage is not collected.
	off bool
}

// newReader returns a function that reads the usage of this process.
func newReader() func() usage {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/gc/gogc:percent"},
	}
	return func() usage {
		metrics.Read(samples)
		return usage{
			allocated: samples[0].Value.Uint64(), live: samples[1].Value.Uint64(), off: samples[2].Value.Uint64() == math.MaxUint64,
		}
	}
}
