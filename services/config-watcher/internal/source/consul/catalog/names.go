package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fairlead.dev/pkg/clock"
)

const (
	// namesWait is how long the reading of the names may wait for changes. It also finds out that Consul is away, or
	// that a snapshot was restored just before it began.
	namesWait = 30 * time.Second
	// handAgain is after how long Handler.Names is called with names that are the same as before.
	handAgain = 20 * time.Second
	// agreeAfter is the time between two certain readings that must agree if their index is lower than one seen before,
	// as it is after a snapshot was restored.
	agreeAfter = 2 * time.Second
	// absentFor is long enough for the names to have been read meanwhile.
	absentFor = 4 * namesWait
)

// names is the state of the reading of the names. Catalog.mu guards it, except for bucket.
type names struct {
	bucket   bucket
	index    uint64
	read     bool
	filtered bool
	// kept are services that the last certain reading lacked, with the right that may be why.
	kept     map[string]string
	handed   []string
	handedAt time.Time
	// doubted is true until they are read since something has happened to the whole catalog (Handler.Whole).
	doubted bool
	// kicked asks for a certain reading at once; interrupt ends one that waits for changes.
	kicked    bool
	interrupt context.CancelFunc
}

// kick is called with Catalog.mu held.
func (n *names) kick() {
	n.kicked = true
	if n.interrupt != nil {
		n.interrupt()
	}
}

// followNames reads the names until ctx ends. While they cannot be read, nothing else is.
func (r *reader) followNames(ctx context.Context) {
	failures := 0
	for wait(ctx, r.clock, r.names.bucket.limiter) && wait(ctx, r.clock, r.all) {
		err := r.readNames(ctx, failures > 0)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failures = 0
			continue
		}
		failures++
		r.closed(err)
		r.pause(ctx, backoff(failures))
	}
}

// pause waits, and less if somebody asks for the names.
func (r *reader) pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.interruptible(cancel) {
		clock.Sleep(ctx, r.clock, d)
	}
	r.interruptible(nil)
}

// interruptible registers how the names' goroutine is interrupted; false if a kick has come already.
func (r *reader) interruptible(cancel context.CancelFunc) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names.interrupt = cancel
	return !r.names.kicked
}

// readNames reads the names once, and hands them over. A reading that waits for changes only adds: what it lacks is
// looked for in a certain one.
func (r *reader) readNames(ctx context.Context, certain bool) error {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	certain = !r.interruptible(cancel) || certain
	index := r.namesIndex()
	if certain || index == 0 {
		return r.readNamesCertainly(ctx, nil)
	}
	q, began := query{index: index, wait: namesWait}, r.clock.Now()
	list, m, err := r.client.names(within, q)
	if r.interruptible(nil) && err != nil {
		return err
	}
	var gone []string
	if err == nil {
		list = r.selected(list)
		if gone = r.lacking(list); m.index >= index && len(gone) == 0 && !q.early(m, r.clock.Now().Sub(began)) {
			r.adoptNames(ctx, list, nil, m)
			return nil
		}
	}
	return r.readNamesCertainly(ctx, gone)
}

func (r *reader) namesIndex() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.index
}

// errNothing is why an empty catalog is not believed. A server that cannot find out the rights of a token, since the
// primary datacenter is away and acl.down_policy is deny, shows nothing, and does not say that it leaves something out.
var errNothing = errors.New(`it shows no service at all, not even "consul", which every server registers`)

// readNamesCertainly reads the names from the leader, after a reading that lacks some, or none. Services are gone if a
// reading lacks them, then Consul says that the token may read them, and then a certain reading lacks them as well. If
// something was filtered of that, only those are of which a certain reading of their own has found no instance.
func (r *reader) readNamesCertainly(ctx context.Context, gone []string) error {
	r.mu.Lock()
	r.names.kicked, r.names.interrupt = false, nil
	index := r.names.index
	r.mu.Unlock()
	for again := false; ; again = true {
		asked := gone
		lacks, err := r.askRights(ctx, asked)
		if err != nil {
			return err
		}
		list, m, err := r.client.names(ctx, query{certain: true})
		if err != nil {
			return err
		}
		if len(list) == 0 && !m.filtered && !r.isAnonymous() {
			return errNothing
		}
		list = r.selected(list)
		gone = r.lacking(list)
		kept := map[string]string{}
		if m.filtered {
			var present []string
			present, gone = r.present(gone)
			for _, name := range present {
				kept[name] = "service:read or node:read"
			}
		}
		older := m.index < index && len(gone) > 0 && !again
		if !older && !slices.ContainsFunc(gone, func(name string) bool { return !contains(asked, name) }) {
			if lacks != "" {
				for _, name := range gone {
					kept[name] = lacks
				}
			}
			list = slices.AppendSeq(list, maps.Keys(kept))
			slices.Sort(list)
			r.adoptNames(ctx, list, kept, m)
			return nil
		}
		if older && !clock.Sleep(ctx, r.clock, agreeAfter) || !wait(ctx, r.clock, r.names.bucket.limiter) {
			return ctx.Err()
		}
	}
}

// askRights asks which right the token lacks to read services. Without a token it also finds out whether that matters.
func (r *reader) askRights(ctx context.Context, services []string) (lacks string, err error) {
	tokenless := r.client.token() == ""
	if !tokenless && len(services) == 0 {
		r.setAnonymous(false)
		return "", nil
	}
	lacks, err = r.client.mayRead(ctx, services, r.nodesOf(services))
	r.setAnonymous(tokenless && lacks != "")
	if len(services) == 0 {
		return "", nil
	}
	return lacks, err
}

// contains looks for a name in a sorted list.
func contains(list []string, name string) bool {
	_, there := slices.BinarySearch(list, name)
	return there
}

func (r *reader) selected(list []string) []string {
	if r.filter == nil {
		return list
	}
	return slices.DeleteFunc(list, func(name string) bool { return !r.filter(name) })
}

// lacking returns the services that are known and that a sorted reading lacks, sorted. Those that the filter selects no
// more are no loss.
func (r *reader) lacking(list []string) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.services {
		if !contains(list, name) && (r.filter == nil || r.filter(name)) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// present divides services into those that may have instances, and those of which certain readings have found none for
// absentFor, while the names could be read.
func (r *reader) present(list []string) (present, absent []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range list {
		if s := r.services[name]; s != nil && !s.absent.IsZero() && r.clock.Now().Sub(s.absent) >= absentFor {
			absent = append(absent, name)
		} else {
			present = append(present, name)
		}
	}
	return present, absent
}

// nodesOf returns nodes of services, as far as these have been read.
func (r *reader) nodesOf(services []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, name := range sample(services, maxRights) {
		if s := r.services[name]; s != nil {
			out = append(out, s.nodes...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// adoptNames takes over a reading: it calls the handler, ends the watches of what is gone and begins those of what is
// new. Of the list, kept are those that the reading lacks.
func (r *reader) adoptNames(ctx context.Context, list []string, kept map[string]string, m meta) {
	r.delivering.Lock()
	defer r.delivering.Unlock()
	now := r.clock.Now()
	r.names.bucket.sized(m.size, now)
	r.mu.Lock()
	n := &r.names
	if m.index < n.index {
		r.counts.IndexResets++
		r.rewind()
	}
	hand := !n.read || now.Sub(n.handedAt) >= handAgain || !slices.Equal(n.handed, list)
	n.index, n.filtered, n.read, n.kept = m.index, m.filtered, true, kept
	for name, s := range r.services {
		if !contains(list, name) {
			r.drop(s)
		}
	}
	for _, name := range list {
		if r.services[name] == nil {
			r.services[name] = newService(name, nil)
			r.unread[name] = struct{}{}
		}
	}
	if hand {
		n.handed, n.handedAt = list, now
	}
	reopened := r.failure != nil
	r.failure = nil
	r.settle()
	r.mu.Unlock()
	if hand && (len(list) > 0 || !m.filtered && !r.isAnonymous()) {
		r.handler.Names(slices.Clone(list))
	}
	r.mu.Lock()
	n.doubted = false
	r.mu.Unlock()
	r.whole()
	if reopened {
		r.log.Info("Consul can be read again", "address", r.client.base.String(), "services", len(list))
		r.opened.Notify()
	}
	r.verdicts.Notify()
	r.assign(ctx, list)
}

// whole tells the handler if what it has been handed is of one state. It is called with delivering held.
func (r *reader) whole() {
	r.mu.Lock()
	whole := r.names.read && !r.names.doubted && len(r.doubted) == 0
	certain := !r.names.filtered && !r.anonymous && len(r.names.kept)+len(r.hidden)+len(r.failing) == 0
	r.mu.Unlock()
	if whole {
		r.handler.Whole(certain)
	}
}

// closed takes over that the names cannot be read.
func (r *reader) closed(err error) {
	r.mu.Lock()
	before := r.failure
	r.failure = err
	for _, s := range r.services {
		s.absent = time.Time{}
	}
	r.settle()
	r.mu.Unlock()
	if before == nil || before.Error() != err.Error() {
		r.log.Warn("Consul cannot be read, what was known last stays", "address", r.client.base.String(), "error", err)
	}
}

func (r *reader) isAnonymous() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.anonymous
}

func (r *reader) setAnonymous(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.anonymous = on
}

func tooMany(bytes int64) error {
	return fmt.Errorf("the catalog is larger than %d MiB in all: leave services out by rules", bytes>>20)
}
