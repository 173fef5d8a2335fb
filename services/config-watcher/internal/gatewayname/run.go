package gatewayname

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/normalise"
)

// idle is the longest time between two rounds.
const idle = time.Hour

// Run looks names up when it is time, until ctx ends.
func (t *Table) Run(ctx context.Context) error {
	var lookups sync.WaitGroup
	defer lookups.Wait()
	clock.Rounds(ctx, t.cfg.Clock, t.wake, func() time.Time { return t.round(ctx, &lookups) })
	return nil
}

// round starts the look-ups that are due, and returns when it is to be called again.
func (t *Table) round(ctx context.Context, lookups *sync.WaitGroup) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.cfg.Clock.Now()
	next := now.Add(idle)
	for name, e := range t.entries {
		switch {
		case e.running:
		case !e.next.After(now):
			e.running = true
			lookups.Go(func() { t.look(ctx, name, e) })
		case e.next.Before(next):
			next = e.next
		}
	}
	return next
}

// look looks a name up and passes on what has changed. The last good answer stays while there is no other.
func (t *Table) look(ctx context.Context, name string, e *entry) {
	select {
	case t.places <- struct{}{}:
		defer func() { <-t.places }()
	case <-ctx.Done():
		return
	}
	asked, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// The dot keeps the search domains of the Pod out.
	found, err := t.cfg.Resolver.LookupNetIP(asked, "ip", name+".")
	addresses, useErr := usable(found)
	if err == nil {
		err = useErr
	}
	if ctx.Err() != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e.running = false
	first := !e.tried || (e.err == nil) != (err == nil)
	e.tried, e.err = true, err
	now := t.cfg.Clock.Now()
	if err != nil {
		e.next = now.Add(min(t.cfg.Every, firstPause<<min(e.failures, 16)))
		e.failures++
		if first {
			t.cfg.Log.Warn("the host name of a gateway cannot be looked up; the last good addresses stay", "name", name, "addresses", e.addresses,
				"error", err)
		}
	} else {
		e.failures, e.next = 0, now.Add(t.cfg.Every)
		if t.entries[name] == e && (!e.told || !slices.Equal(e.addresses, addresses)) {
			t.cfg.Log.Info("a gateway's host name has other addresses", "name", name, "addresses", addresses, "before", e.addresses)
			e.addresses = addresses
			t.cfg.Next(ctx, []normalise.Change{e.change(name)})
			t.save()
		}
	}
	notify.Wake(t.wake)
}

// usable are the addresses of an answer that a proxy on another machine may connect to, sorted. Whoever answers for the
// name need not be who runs the mesh, so what package fetch forbids is left out: proxies would reach themselves, or a
// cloud's metadata service. Private addresses are as good as others.
func usable(found []netip.Addr) ([]string, error) {
	var out []string
	var errs []error
	for _, ip := range found {
		ip = ip.Unmap()
		if err := (fetch.Addresses{}).Check(ip); err != nil || ip.Zone() != "" {
			errs = append(errs, fmt.Errorf("no proxy may connect to %s: %w", ip, err))
			continue
		}
		out = append(out, ip.String())
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if len(out) == 0 {
		return nil, errors.Join(append(errs, errors.New("no address"))...)
	}
	return out[:min(len(out), maxAddresses)], nil
}

// save keeps the last good answers.
func (t *Table) save() {
	if t.cfg.Saved == nil {
		return
	}
	// Answers for names that nobody has asked for since the restart stay, since a source may not have been read yet.
	if len(t.saved) > 2*maxNames {
		t.saved = map[string][]string{}
	}
	for name, e := range t.entries {
		if len(e.addresses) > 0 {
			t.saved[name] = e.addresses
		}
	}
	raw, err := json.Marshal(t.saved)
	if err != nil {
		t.cfg.Log.Warn("addresses of gateways cannot be kept", "error", err)
		return
	}
	t.cfg.Saved.Put(savedFile, raw)
}
