package driver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/guard"
	"fairlead.dev/services/ca/internal/signer/kinds"
)

const (
	// retry is the time between two attempts to make a signer ready.
	retry = 5 * time.Second
	// period is the time between two looks at what is due.
	period = 10 * time.Second
	// readyWithin bounds one attempt, and how long Open waits for a signer that cannot be reached. Kubernetes then
	// starts the ca again.
	readyWithin = 30 * time.Second
	// tryAgain is how often a signer is tried while the mesh waits to get certificates from it. One that was not tried
	// successfully within freshWithin does not get them.
	tryAgain    = 30 * time.Second
	freshWithin = time.Minute
)

// worker keeps one signer: it prepares it, tries it, follows it and renews what it has made. It runs in a goroutine of
// its own, so that a slow signer delays nobody else.
type worker struct {
	id     uint64
	spec   *kinds.Spec
	driver *Driver
	opened *kinds.Opened
	// own signs beside a signer that cannot sign the names of services; nil for others. ownRoots are its roots.
	own      *guard.Guard
	ownRoots []string

	wake   chan struct{}
	cancel context.CancelFunc
	ended  sync.WaitGroup

	// Only the goroutine uses these.
	adopted json.RawMessage

	mu sync.Mutex
	// roots are known once the signer is ready: a certificate of it has passed every check.
	roots   []string
	problem error
	// told is true once problem is known.
	told bool
	// stopped is why nothing follows the signer any more.
	stopped error
	// tried is when the signer was tried last with success, failed why it did not work at a later time.
	tried  time.Time
	failed error
}

// start opens a signer and begins to make it ready.
func (d *Driver) start(ctx context.Context, s rotation.Signer) (*worker, error) {
	spec, err := kinds.Parse(s.Spec)
	if err != nil {
		return nil, fmt.Errorf("signer %s: %w", s.Name, err)
	}
	w := &worker{id: s.ID, spec: spec, driver: d, wake: make(chan struct{}, 1)}
	if w.opened, err = kinds.Open(spec, s.ID, d.cfg.Env); err != nil {
		return nil, fmt.Errorf("signer %s: %w", s.Name, err)
	}
	if can := w.opened.Guard.Capabilities(); can.IDsOnly || !can.NamesBesideCSR {
		if w.own, w.ownRoots, err = d.cfg.Own(ctx); err != nil {
			return nil, err
		}
	}
	ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	w.ended.Go(func() {
		err := w.opened.Run(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		if err != nil {
			w.stopped = fmt.Errorf("signer %s is followed no longer: %w", spec.Name, err)
		}
	})
	w.ended.Go(func() { w.work(ctx) })
	return w, nil
}

// close ends what follows the signer.
func (w *worker) close() {
	w.cancel()
	w.ended.Wait()
}

// work makes the signer ready, and keeps it so, until ctx ends.
func (w *worker) work(ctx context.Context) {
	for ctx.Err() == nil {
		_, changed := w.opened.Guard.Authorities()
		err := w.step(ctx)
		if ctx.Err() != nil {
			return
		}
		w.report(err)
		wait := cmp.Or(w.driver.cfg.Idle, period)
		switch {
		case err != nil:
			wait = retry
		case w.awaited():
			wait = min(wait, period)
		}
		timer := w.driver.cfg.Env.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-changed:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// report remembers a problem, and logs it if it is new.
func (w *worker) report(err error) {
	w.mu.Lock()
	before, known := w.problem, w.told
	w.problem, w.told = err, true
	w.mu.Unlock()
	if !known || (err == nil) != (before == nil) {
		notify.Wake(w.driver.wake)
	}
	if err != nil && (before == nil || before.Error() != err.Error()) {
		w.driver.cfg.Log.Error("something about the signer must be mended", "signer", w.spec.Name, "error", err)
	}
}

// step does what is due.
func (w *worker) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not ready within %s", readyWithin))
	defer cancel()
	if err := w.keep(ctx); err != nil {
		return err
	}
	authorities, err := w.known(ctx)
	if err != nil {
		return err
	}
	if err := w.try(ctx); err != nil {
		return err
	}
	now := slices.Concat(pems(authorities), w.ownRoots)
	slices.Sort(now)
	now = slices.Compact(now)
	if before := w.driver.rootsOf(w.id); len(before) > 0 &&
		!slices.ContainsFunc(now, func(r string) bool { return slices.Contains(before, r) }) {
		return errors.New("its roots are others than when the ca was last in use, and no workload verifies with them; restore its files or " +
			"address, or put old and new roots into them together first")
	}
	w.mu.Lock()
	changed := !slices.Equal(w.roots, now)
	w.roots = now
	w.mu.Unlock()
	if changed {
		notify.Wake(w.driver.wake)
	}
	return nil
}

// keep makes what the signer needs, or renews it, in the replica that takes steps; all replicas use what was written
// down.
func (w *worker) keep(ctx context.Context) error {
	if !w.opened.Keeps() {
		return nil
	}
	kept, known := w.driver.kept(w.id)
	if !known {
		return errors.New("no rotation needs it any more")
	}
	due := w.opened.Due()
	switch {
	case len(kept) == 0 && !w.driver.leads():
		return signer.Errorf(signer.Away, "the replica that takes steps has not made its keys yet")
	case len(kept) == 0, len(w.adopted) > 0 && bytes.Equal(kept, w.adopted) && w.driver.leads() && !w.driver.now().Before(due):
		next, err := w.opened.Prepare(ctx, kept)
		if err != nil {
			return err
		}
		if err := w.driver.setKept(ctx, w.id, kept, next); err != nil {
			return err
		}
		if len(kept) > 0 {
			w.driver.cfg.Log.Info("intermediate renewed", "signer", w.spec.Name)
		}
		kept = next
	}
	if bytes.Equal(kept, w.adopted) {
		return nil
	}
	if err := w.opened.Adopt(ctx, kept); err != nil {
		return err
	}
	w.adopted = kept
	return nil
}

// known waits until the signer's roots are known.
func (w *worker) known(ctx context.Context) (*signer.Authorities, error) {
	for {
		authorities, changed := w.opened.Guard.Authorities()
		if authorities != nil {
			return authorities, nil
		}
		timer := w.driver.cfg.Env.Clock.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("its roots are not known: %w", errors.Join(w.opened.Problem(), context.Cause(ctx)))
		case <-timer.C():
			if err := w.followed(); err != nil {
				return nil, err
			}
		case <-changed:
			timer.Stop()
		}
	}
}

func (w *worker) followed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stopped
}

// try has the signer sign a certificate that nobody uses: at first, and now and then while the mesh waits to get
// certificates from it.
func (w *worker) try(ctx context.Context) error {
	env := w.driver.cfg.Env
	w.mu.Lock()
	last, failed := w.tried, w.failed
	w.mu.Unlock()
	if !last.IsZero() && (!w.awaited() || failed == nil && w.driver.now().Sub(last).Abs() < tryAgain) {
		return nil
	}
	probe := signer.Probe{Identity: env.Identity, DNSNames: env.DNSNames, TTL: env.LeafTTL}
	err := probe.Try(ctx, w.opened.Guard.Signer(), w.driver.now())
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed = err; err == nil {
		w.tried = w.driver.now()
	}
	return err
}

// awaited reports whether this replica is about to have the mesh get certificates from the signer.
func (w *worker) awaited() bool {
	doc := w.driver.document()
	return doc.Step == rotation.Gate && doc.Next != nil && doc.Next.ID == w.id && w.driver.leads()
}

// fresh is why it is not known that the signer issues now; nil if it has lately.
func (w *worker) fresh() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.failed != nil:
		return w.failed
	case w.driver.now().Sub(w.tried).Abs() > freshWithin:
		return cmp.Or(w.problem, errors.New("it was not tried within the last minute"))
	}
	return nil
}

// hopeless is why waiting does not make the signer ready; nil if it may, because an upstream is away.
func (w *worker) hopeless() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.problem == nil {
		return w.stopped
	}
	if e, ok := errors.AsType[*signer.Error](w.problem); ok && (e.Fault == signer.Away || e.Fault == signer.Busy) {
		return nil
	}
	return w.problem
}

// ready returns the signer's roots once it can be used, and what somebody must mend.
func (w *worker) ready() (roots []string, problem error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.roots, errors.Join(w.stopped, w.problem, w.opened.Problem())
}

// trouble is what somebody must mend: what ready says, and that the signer does not answer requests.
func (w *worker) trouble() error {
	_, err := w.ready()
	if s := w.opened.Guard.State(); s.Failures > 0 {
		err = errors.Join(err, fmt.Errorf("it was away for the last request: %w", s.Last))
	}
	return err
}

// pems are the roots of a signer in PEM, sorted.
func pems(a *signer.Authorities) []string {
	var out []string
	for _, c := range a.Roots {
		out = append(out, tlsconf.EncodeCertificate(c))
	}
	return slices.Sorted(slices.Values(out))
}
