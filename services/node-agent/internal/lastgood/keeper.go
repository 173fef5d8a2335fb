// Package lastgood keeps the configuration that Envoy has accepted last, so that a proxy that starts again serves
// traffic while no xds-server answers. A Recorder follows Envoy's stream, the Keeper writes what it has recorded to a
// file, sealed with a key that only the holder of the workload's private key can derive, and a Session answers a stream
// from it.
//
// Package app makes the Keeper where the workload's key survives a restart, and runs it. Package relay calls Stream for
// each stream of Envoy, and Last when no xds-server answers.
package lastgood

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
)

const (
	// quiet is how long Envoy must have accepted nothing before the file is written, and every is the least time
	// between two writes: in a large mesh endpoints change all the time.
	quiet = 3 * time.Second
	every = 30 * time.Second
	// DefaultMaxBytes bounds what is kept, in memory and in the file.
	DefaultMaxBytes = 64 << 20
)

// Config of a Keeper. All but MaxBytes, Clock and FS is required.
type Config struct {
	// Path of the sealed file.
	Path string
	// Source has the workload's key, and its roots. They must be the same after a restart, so those that are fetched or
	// pushed are none of them.
	Source tlsconf.Source
	// Identity and Node are those of the Binding.
	Identity, Node string
	// MaxAge is the age from which on a sealed file is not used.
	MaxAge     time.Duration
	MaxBytes   int
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
	FS         fileio.FS
}

// Keeper keeps configuration. It is safe for concurrent use.
type Keeper struct {
	cfg     Config
	metrics *metrics
	changed chan struct{}

	mu sync.Mutex
	// current is what the running Envoy holds, of which settled are the types that it has received; previous is what
	// the last one held, until current has clusters and listeners.
	current, previous contents
	settled           map[string]bool
	// size is that of current; full says that it was too large, and nothing is kept until the next Envoy.
	size int
	full bool
	// dirty says that current has changed since it was written, last when that was.
	dirty bool
	last  time.Time
	// live counts the streams of Envoy that an xds-server serves. While there is one, what Envoy holds is up to date;
	// confirmed is when it last was.
	live      int
	confirmed time.Time
	// refused says that the file was read and cannot be used.
	refused bool
}

// New makes a Keeper. It reads no file before Last is called.
func New(c Config) *Keeper {
	c.Clock, c.MaxBytes = clock.Or(c.Clock), cmp.Or(c.MaxBytes, DefaultMaxBytes)
	return &Keeper{cfg: c, metrics: newMetrics(c.Registerer), changed: make(chan struct{}, 1), current: contents{}, settled: map[string]bool{}}
}

// begin drops what the last Envoy held, because a new one holds nothing; until that is complete, previous has it. The
// caller holds the lock.
func (k *Keeper) begin() {
	if k.complete() {
		k.previous = k.view()
	}
	maps.DeleteFunc(k.current, func(_ string, kept *kept) bool { return !kept.own })
	k.size, k.settled, k.full = k.current.size(), map[string]bool{}, false
}

// Live says that an xds-server serves Envoy, until the caller calls end. As long as it does the file does not grow old.
func (k *Keeper) Live() (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.live++
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.live--
		k.confirmed = k.cfg.Clock.Now()
	}
}

// complete reports whether current has what an Envoy needs. The caller holds the lock.
func (k *Keeper) complete() bool { return k.settled[clusterType] && k.settled[listenerType] && !k.full }

// Complete reports whether the Envoy that runs has received its clusters and listeners.
func (k *Keeper) Complete() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.complete()
}

func (k *Keeper) set(to *kept, name string, resource []byte) {
	k.remove(to, name)
	to.resources[name] = resource
	k.size += len(name) + len(resource)
}

func (k *Keeper) remove(from *kept, name string) {
	if old, ok := from.resources[name]; ok {
		k.size -= len(name) + len(old)
		delete(from.resources, name)
	}
}

// retain drops the resources of a type that Envoy does not hold in the version that is kept.
func (k *Keeper) retain(url string, held map[string]string) {
	kept := k.current[url]
	if kept == nil {
		return
	}
	for name, resource := range kept.resources {
		if version, ok := held[name]; !ok || version != string(field(resource, resourceVersion)) {
			k.remove(kept, name)
		}
	}
}

// touch notes that current has changed. The caller holds the lock.
func (k *Keeper) touch() {
	if k.size > k.cfg.MaxBytes {
		k.cfg.Log.Warn("configuration is too large to be kept for the next start", "bytes", k.size, "limit", k.cfg.MaxBytes)
		k.current, k.previous, k.size, k.full, k.dirty = contents{}, nil, 0, true, false
		return
	}
	k.dirty = true
	notify.Wake(k.changed)
}

// Keep records the one resource of a type that the agent itself has asked for and taken.
func (k *Keeper) Keep(url, name, version string, body []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.full {
		return
	}
	to := k.current.of(url)
	to.own = true
	for other := range to.resources {
		k.remove(to, other)
	}
	k.set(to, name, named(name, version, body))
	k.touch()
}

// view is a copy of current, whose maps do not change any more. The caller holds the lock.
func (k *Keeper) view() contents {
	c := contents{}
	for url, from := range k.current {
		c[url] = &kept{version: from.version, own: from.own, resources: maps.Clone(from.resources)}
	}
	return c
}

// Last returns the configuration to answer Envoy from: what the last Envoy of this agent held, else that of the sealed
// file. It is nil if there is none, or the file cannot be opened, yet or at all, which is logged.
func (k *Keeper) Last() *View {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.complete():
		return &View{contents: k.view()}
	case k.previous != nil:
		return &View{contents: k.previous}
	case k.refused:
		return nil
	}
	v, err := k.open()
	switch {
	case err == nil:
		return v
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, tlsconf.ErrNoCertificate):
	default:
		k.refused = true
		k.metrics.refusals.WithLabelValues(reasonOf(err)).Inc()
		k.cfg.Log.Warn("sealed configuration is not used", "file", k.cfg.Path, "error", err)
	}
	return nil
}

// Adopt makes v the configuration of the running Envoy, which a Session has answered from it.
func (k *Keeper) Adopt(v *View) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.current
	k.current = v.contents
	k.current = k.view()
	for url, kept := range old {
		if kept.own {
			k.current[url] = kept // it is at least as new
		}
	}
	k.size, k.full, k.previous = k.current.size(), false, nil
	if !v.Sealed.IsZero() {
		k.confirmed = v.Sealed // so that another start does not make it younger
	}
	for url := range k.current {
		k.settled[url] = true
	}
}

func (k *Keeper) binding(m *tlsconf.Material) Binding {
	return Binding{Identity: k.cfg.Identity, Node: k.cfg.Node, Roots: m.RootsPEM}
}

func (k *Keeper) open() (*View, error) {
	m, err := k.cfg.Source.Current()
	if err != nil {
		return nil, errors.Join(tlsconf.ErrNoCertificate, err)
	}
	secret, err := Secret(m)
	if err != nil {
		return nil, err
	}
	file, err := fileio.ReadRegular(k.cfg.Path, 2*int64(k.cfg.MaxBytes)+1<<20)
	if err != nil {
		return nil, err
	}
	text, sealed, err := Open(secret, k.binding(m), k.cfg.Clock.Now(), k.cfg.MaxAge, file)
	if err != nil {
		return nil, err
	}
	c, err := decode(text)
	if err != nil {
		return nil, err
	}
	return &View{Sealed: sealed, contents: c}, nil
}

// Run writes the file when Envoy has accepted something, when the workload's key or roots change, and before it grows
// old while an xds-server serves Envoy, until ctx ends; then it writes what is left to write. A write that fails is
// tried again with the next change, or after a while.
func (k *Keeper) Run(ctx context.Context) error {
	var due <-chan time.Time
	var first time.Time // of the changes that are to be written
	refresh := k.cfg.Clock.After(k.cfg.MaxAge / 4)
	for {
		renewed := k.cfg.Source.Changed()
		select {
		case <-ctx.Done():
			k.write()
			return nil
		case <-renewed:
			k.mu.Lock()
			k.dirty = k.dirty || !k.last.IsZero()
			k.last = time.Time{}
			k.mu.Unlock()
			due = k.cfg.Clock.After(quiet)
		case <-k.changed:
			if due == nil {
				first = k.cfg.Clock.Now()
			}
			due = k.cfg.Clock.After(k.pause(first))
		case <-refresh:
			refresh = k.cfg.Clock.After(k.cfg.MaxAge / 4)
			k.mu.Lock()
			k.dirty = k.dirty || k.live > 0
			k.mu.Unlock()
			due = k.cfg.Clock.After(quiet)
		case <-due:
			due = nil
			if !k.write() {
				due = k.cfg.Clock.After(every)
			}
		}
	}
}

// pause is how long to wait for more changes, of which the first came at first.
func (k *Keeper) pause(first time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.cfg.Clock.Now()
	wait := quiet
	if !k.last.IsZero() {
		wait = max(wait, every-now.Sub(k.last))
	}
	return max(0, min(wait, every-now.Sub(first)))
}

// write seals what Envoy holds, if that is whole and has changed. It reports whether nothing is left to write.
func (k *Keeper) write() bool {
	k.mu.Lock()
	if !k.dirty || !k.complete() {
		k.mu.Unlock()
		return true
	}
	if k.live > 0 {
		k.confirmed = k.cfg.Clock.Now()
	}
	text, was, at := k.current.encode(), k.last, k.confirmed
	k.dirty, k.previous, k.last = false, nil, k.cfg.Clock.Now()
	k.mu.Unlock()
	size, err := k.seal(text, at)
	if err != nil {
		k.mu.Lock()
		k.dirty, k.last = true, was
		k.mu.Unlock()
		k.metrics.failures.Inc()
		if k.metrics.failing.Swap(true) {
			return false
		}
		k.cfg.Log.Warn("configuration is not kept for the next start, will retry", "file", k.cfg.Path, "error", err, "retry_in", every.String())
		return false
	}
	k.metrics.failing.Store(false)
	k.metrics.bytes.Set(float64(size))
	k.metrics.sealed.Set(float64(k.cfg.Clock.Now().Unix()))
	return true
}

// seal writes the file; at is when its contents were up to date.
func (k *Keeper) seal(text []byte, at time.Time) (int, error) {
	m, err := k.cfg.Source.Current()
	if err != nil {
		return 0, err
	}
	secret, err := Secret(m)
	if err != nil {
		return 0, err
	}
	file, err := Seal(secret, k.binding(m), at, text)
	if err != nil {
		return 0, err
	}
	return len(file), k.cfg.FS.Replace(k.cfg.Path, file)
}
