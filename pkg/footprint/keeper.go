package footprint

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"runtime/metrics"
	"time"

	"fairlead.dev/pkg/clock"
)

// When a Keeper trims. It does not under load, when trimming would cost time.
const (
	// lookEvery is how often a Keeper looks at the heap.
	lookEvery = time.Second
	// restsAfter is after how many idle looks in a row the process counts as idle: work that comes soon after a trim
	// must allocate the memory anew.
	restsAfter = 6
	// quietBytes, or quietPart of the live heap, is how much an idle process may allocate between two looks.
	quietBytes = 1 << 20
	quietPart  = 64
	// worthBytes, or worthPart of the live heap, is how much must have been allocated since the last trim. The amount
	// of garbage is not known before a collection: allocations during the last one count as live.
	worthBytes = 8 << 20
	worthPart  = 4
	// costPart bounds the time for trimming to a fiftieth of a core.
	costPart = 50
)

// Keeper trims the process when it has become idle after work that may have left garbage. It changes neither GOGC nor
// GOMEMLIMIT, and does nothing with GOGC=off, which means that garbage is to stay.
type Keeper struct {
	clock clock.Clock
	log   *slog.Logger
	read  func() usage
	trim  func() error
	// allocated is the bytes allocated up to the last look, trimmed those up to the last trim.
	allocated, trimmed uint64
	// rests counts the idle looks in a row.
	rests     int
	notBefore time.Time
	worth     uint64
}

// NewKeeper returns a keeper of this process; log may be nil.
func NewKeeper(c clock.Clock, log *slog.Logger) *Keeper {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Keeper{clock: clock.Or(c), log: log, read: newReader(), trim: Trim, worth: worthBytes}
}

// Worth makes bytes, in place of 8 MiB, the least that must have been allocated since the last trim; for a small
// process, of which there are many.
func (k *Keeper) Worth(bytes uint64) *Keeper {
	k.worth = bytes
	return k
}

// Run looks at the heap every lookEvery, until ctx ends.
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

// look trims if the process is idle and trimming is worth it.
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
	if k.rests < restsAfter || u.allocated-k.trimmed < max(k.worth, u.live/worthPart) || start.Before(k.notBefore) {
		return
	}
	if err := k.trim(); err != nil {
		// The heap has been given back; only the binary's pages have not.
		k.log.Debug("pages of the binary were not dropped", "error", err)
	}
	took := k.clock.Now().Sub(start)
	k.notBefore = start.Add(costPart * took)
	u = k.read()
	k.allocated, k.trimmed = u.allocated, u.allocated
	k.log.Debug("memory given back", "live_bytes", u.live, "took", took)
}

// usage is the runtime's account of the heap.
type usage struct {
	// allocated is the bytes allocated since the start; live is what the last collection found in use.
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
