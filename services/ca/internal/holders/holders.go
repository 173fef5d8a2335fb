package holders

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/proto/fairlead/caapi"
)

const (
	// maxCertificates bounds what is known one by one: 10,000 cost about 5 MiB with their names.
	maxCertificates = 200_000
	// writeWithin is how long an answer waits for its record. The record outlives the process then, and the machine
	// syncEvery later.
	writeWithin = 20 * time.Millisecond
	syncEvery   = 50 * time.Millisecond
	// period is the time between two looks at what has expired and at a journal that could not be written.
	period = time.Second
	// flushes is how often one caller writes for others.
	flushes = 8
	// slowAfter is how long the disk may take before that is a problem.
	slowAfter = time.Second
	// jump is how far the clock may be set back or forward without consequences.
	jump = 30 * time.Second
	// sweepEvery is the time between two searches for what has expired.
	sweepEvery = 30 * time.Second
)

// Config of a Registry. Clock, Log and LongestTTL are required.
type Config struct {
	// Dir is a directory of the ca's own for the journal; "" keeps everything in memory.
	Dir string
	// IssuedBefore says that the ca has issued certificates before this start, so that a journal which is not there was
	// lost.
	IssuedBefore bool
	// Replicated says that other replicas will tell whether this one has issued certificates before: whoever asks them
	// calls Unasked and Asked. Without it a journal that is not there was lost.
	Replicated bool
	// LongestTTL is the longest lifetime of a certificate.
	LongestTTL time.Duration
	Clock      clock.Clock
	// Passed is the time since the registry was opened by a clock that nobody sets, by which a Clock that was set is
	// noticed; nil means the monotonic readings of Clock.
	Passed func() time.Duration
	Log    *slog.Logger
	// Registerer is for the metrics, and Current the bundle by which they count; nil for none.
	Registerer prometheus.Registerer
	Current    func() (epoch, generation uint64)
	// Boot names this run of the machine; "" asks the kernel.
	Boot string
	// MaxCertificates is for tests; 0 means the usual bound.
	MaxCertificates int
	// FS is the file system of the journal; the zero value is the operating system's.
	FS fileio.FS
}

// Registry knows the holders. It is safe for concurrent use. Open makes it, Run must follow.
type Registry struct {
	cfg     Config
	changed notify.Notifier
	// unwritten and unsynced wake the goroutines of Run.
	unwritten, unsynced chan struct{}

	mu      sync.Mutex
	table   *table
	journal journal
	// stopped says that Run has ended: what is issued still is written at once.
	stopped bool
	// unasked says that there was no journal, and that it is not known yet whether there ever was one.
	unasked bool
	// latest is the latest time that was seen, passed what had passed then since begun, and swept when the table was
	// last searched for what has expired.
	begun, latest, swept time.Time
	passed               time.Duration
}

// Open reads the journal. One that is lost, damaged or cannot be written is no error: certificates that nobody knows of
// are then among the holders until the last of them has expired, and Problem tells what must be mended.
func Open(cfg Config) (*Registry, error) {
	if cfg.LongestTTL <= 0 {
		return nil, errors.New("the longest lifetime of certificates must be known")
	}
	if cfg.MaxCertificates == 0 {
		cfg.MaxCertificates = maxCertificates
	}
	if cfg.Boot == "" {
		cfg.Boot = bootID()
	}
	r := &Registry{
		cfg: cfg, unwritten: make(chan struct{}, 1), unsynced: make(chan struct{}, 1), table: newTable(cfg.MaxCertificates),
		journal: journal{dir: cfg.Dir, boot: cfg.Boot, fs: cfg.FS, flushed: make(chan struct{})},
		latest:  cfg.Clock.Now(),
	}
	r.begun = r.latest
	r.load()
	if cfg.Dir != "" {
		err := r.journal.fs.MakeDir(cfg.Dir)
		if err == nil {
			err = r.rewrite()
		}
		if err != nil {
			r.mu.Lock()
			r.journal.fail(err)
			r.mu.Unlock()
			cfg.Log.Error("the journal of certificates cannot be written", "path", r.journal.path(), "error", err)
		}
	}
	r.register(cfg.Registerer)
	return r, nil
}

// load fills the table from the journal.
func (r *Registry) load() {
	now := r.latest
	lost := ""
	if r.cfg.Dir == "" {
		if r.unasked = r.cfg.IssuedBefore && r.cfg.Replicated; r.cfg.IssuedBefore && !r.unasked {
			r.table.doubt(now.Add(r.cfg.LongestTTL).Unix(), "there is no journal")
		}
		return
	}
	found, err := r.journal.read(func(e *event) {
		switch e.kind {
		case kindIssued:
			r.table.issued(&e.cert, now)
		case kindFolded:
			if e.fold.until > now.Unix() {
				r.table.addFolded(e.key, e.fold)
			}
		case kindUnknown:
			if e.until > now.Unix() {
				r.table.doubt(e.until, e.text)
			}
		case kindUnasked:
			r.unasked = true
		case kindAsked:
			r.unasked = false
		}
	})
	r.table.rewind(now)
	switch {
	case err != nil:
		lost = err.Error()
	case found.none && r.cfg.IssuedBefore && r.cfg.Replicated:
		r.unasked = true
	case found.none && r.cfg.IssuedBefore:
		lost = "there is no journal"
	case found.lost != "":
		lost = found.lost
	}
	if found.torn > 0 {
		r.cfg.Log.Warn("the journal of certificates ends within a record, which is left out", "path", r.journal.path(), "bytes", found.torn)
	}
	if begun := time.Unix(found.begun, 0); begun.After(now.Add(jump)) {
		r.table.doubt(found.begun, "the clock was set back")
		r.cfg.Log.Warn("the clock is behind that of the last start", "then", begun, "now", now)
	}
	if lost != "" {
		r.table.doubt(now.Add(r.cfg.LongestTTL).Unix(), lost)
		r.cfg.Log.Error("certificates may be in use that the ca does not know of", "path", r.journal.path(), "reason", lost,
			"until", now.Add(r.cfg.LongestTTL))
	}
}

// Issued records a certificate, and returns once the record outlives the process, or after writeWithin. The ca calls it
// before the answer leaves.
func (r *Registry) Issued(c Certificate) {
	written, stopped := r.issued(&c)
	if stopped {
		r.finish()
		return
	}
	if written == nil {
		r.wake()
		return
	}
	// Whoever comes first writes for those who come meanwhile, too; Run's goroutine writes the rest.
	if r.journal.io.TryLock() {
		for more := flushes; more > 0 && r.flushHeld(); more-- {
		}
		r.journal.io.Unlock()
		r.wake()
		return
	}
	// Whoever writes now may have looked for more already.
	r.wake()
	late := time.NewTimer(writeWithin)
	defer late.Stop()
	select {
	case <-written:
	case <-late.C:
		r.mu.Lock()
		defer r.mu.Unlock()
		select {
		case <-written:
		default:
			if !r.journal.slow {
				r.journal.slow, r.journal.slowSince = true, r.cfg.Clock.Now()
			}
		}
	}
}

// wake has the journal written.
func (r *Registry) wake() { notify.Wake(r.unwritten) }

// trim cuts what is longer than anybody's.
func trim(c *Certificate) {
	c.Pod, c.PodUID = cut(c.Pod), cut(c.PodUID)
	c.Serial, c.AuthorityKeyID = c.Serial[:min(len(c.Serial), 2*maxSerial)], c.AuthorityKeyID[:min(len(c.AuthorityKeyID), maxKeyID)]
}

// issued returns what to wait for, nil for nothing, and whether Run has ended.
func (r *Registry) issued(c *Certificate) (written <-chan struct{}, stopped bool) {
	trim(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.see()
	if c.At.IsZero() {
		c.At = now
	}
	r.table.issued(c, now)
	// The record names the Pod of the predecessor, which expires first.
	c.Pod, c.PodUID = r.table.podOfCertificate(c)
	r.journal.append(&event{kind: kindIssued, cert: *c})
	r.changed.Notify()
	if r.journal.dir == "" || r.journal.err != nil || r.journal.slow || r.stopped {
		return nil, r.stopped
	}
	return r.journal.flushed, false
}

// see returns the time, and compares it with what was seen before. If the clock was set back, certificates were
// forgotten that are valid again; if it was set forward, certificates have not expired for others. The caller holds
// r.mu.
func (r *Registry) see() time.Time {
	read := r.cfg.Clock.Now()
	passed := r.passedAt(read)
	now := read.Round(0) // without its monotonic reading
	ahead := now.Sub(r.latest.Round(0)) - (passed - r.passed)
	switch {
	case r.latest.Round(0).Sub(now) > jump || -ahead > jump:
		r.doubt(r.latest, "the clock was set back")
		r.table.rewind(now)
	case ahead > jump:
		r.doubt(now.Add(r.cfg.LongestTTL), "the clock was set forward")
	case !now.After(r.latest):
		return read
	}
	r.latest, r.passed = now, passed
	return read
}

// passedAt is the time that had passed at now, whatever was done to the clock.
func (r *Registry) passedAt(now time.Time) time.Duration {
	if r.cfg.Passed != nil {
		return r.cfg.Passed()
	}
	return now.Sub(r.begun) // by the monotonic clock
}

// doubt says that certificates may be in use that are not known. The caller holds r.mu.
func (r *Registry) doubt(until time.Time, why string) {
	r.table.doubt(until.Unix(), why)
	r.journal.append(&event{kind: kindUnknown, until: until.Unix(), text: why})
	r.cfg.Log.Error("certificates may be in use that the ca does not know of", "reason", why, "until", until)
}

// Acked records that the holders of these certificates, and the Pods with these UIDs, verify with a generation of the
// bundle or with a later one. An acknowledgement never goes back; a greater epoch is later than every generation
// before.
func (r *Registry) Acked(epoch, generation uint64, certificates []Fingerprint, podUIDs []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.table.seq
	r.table.ackedBy(epoch, generation, certificates)
	r.table.ackedIn(epoch, generation, podUIDs)
	if r.table.seq != before {
		r.changed.Notify()
	}
}

// Behind returns the holders that have not acknowledged the generation or a later one, sorted by name, and what stands
// for certificates that are not known one by one.
func (r *Registry) Behind(epoch, generation uint64) []caapi.Holder {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.see()
	return r.table.behind(epoch, generation, now)
}

// Of returns the holders whose certificates one of these signers issued, as Behind does.
func (r *Registry) Of(signers ...uint64) []caapi.Holder {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.see()
	return r.table.of(signers, now)
}

// KeyIDs returns the authority key IDs of unexpired certificates of these signers.
func (r *Registry) KeyIDs(signers ...uint64) [][]byte {
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.authorityKeyIDs(signers, now)
}

// Counts counts the holders, and those of them that have acknowledged the generation.
func (r *Registry) Counts(epoch, generation uint64) caapi.Holders {
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.counts(epoch, generation, now)
}

// Problem is why the holders would not be known after a restart; nil if they would.
func (r *Registry) Problem() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.journal.problem(r.cfg.Clock.Now()); err != nil {
		return fmt.Errorf("the journal of certificates: %w", err)
	}
	return nil
}

// Run writes the journal until ctx ends, and then the rest of it.
func (r *Registry) Run(ctx context.Context) error {
	var writing sync.WaitGroup
	writing.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-r.unwritten:
			}
			r.flush()
			notify.Wake(r.unsynced)
		}
	})
	tick := r.cfg.Clock.NewTimer(period)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-r.unsynced:
			clock.Sleep(ctx, r.cfg.Clock, syncEvery)
			r.syncNow()
		case <-tick.C():
			r.tend()
			tick.Reset(period)
		}
	}
	writing.Wait()
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.finish()
	return nil
}

// tend forgets what has expired, and writes the journal anew if it must be.
func (r *Registry) tend() {
	r.mu.Lock()
	now := r.see()
	if now.Sub(r.swept) >= sweepEvery {
		r.swept = now
		r.table.sweep(now)
	}
	j := &r.journal
	failed, due := j.err, j.size > max(2*j.base, compactFrom)
	r.mu.Unlock()
	if j.dir == "" || failed == nil && !due {
		return
	}
	err := r.rewrite()
	switch {
	case err != nil && (failed == nil || failed.Error() != err.Error()):
		r.cfg.Log.Error("the journal of certificates cannot be written", "path", j.path(), "error", err)
	case err == nil && failed != nil:
		r.cfg.Log.Info("the journal of certificates is complete again", "path", j.path())
	}
}

// finish writes the rest, and that it is the rest.
func (r *Registry) finish() {
	r.mu.Lock()
	if r.journal.dir == "" || r.journal.err != nil {
		r.mu.Unlock()
		return
	}
	r.journal.append(&event{kind: kindClosed})
	r.mu.Unlock()
	r.flush()
	r.syncNow()
}
