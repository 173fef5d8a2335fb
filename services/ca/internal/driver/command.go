package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/signer/kinds"
)

const (
	// maxReason bounds the text that an operator gives with a command, maxAccepted how many holders may be accepted.
	maxReason   = 256
	maxAccepted = 1000
	// restAfterStop is how long no rotation begins by itself after an operator has stopped one.
	restAfterStop = 24 * time.Hour
)

// RefusedError is a command that the state does not allow now.
type RefusedError struct{ Err error }

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// Do carries a command out. It returns once the record has it; the steps follow. The error is a *RefusedError if the
// state does not allow it, another one if the command is wrong or the record cannot be written.
func (d *Driver) Do(ctx context.Context, c caapi.Command) error {
	if len(c.Reason) > maxReason {
		return fmt.Errorf("reason: it has %d bytes, more than %d", len(c.Reason), maxReason)
	}
	change, err := d.change(c)
	if err != nil {
		return err
	}
	err = d.update(ctx, func(doc document) (document, error) {
		next, err := change(doc, d.now())
		if err != nil {
			return doc, &RefusedError{err}
		}
		return next, nil
	})
	if err == nil {
		d.cfg.Log.Info("an operator has given an order", "action", c.Action, "reason", c.Reason, "holder", c.Holder)
	}
	return err
}

// change makes a change of the document of a command.
func (d *Driver) change(c caapi.Command) (func(document, time.Time) (document, error), error) {
	state := func(f func(rotation.State, time.Time) (rotation.State, error)) func(document, time.Time) (document, error) {
		return func(doc document, now time.Time) (document, error) {
			next, err := f(doc.State, now)
			doc.State = next
			return doc, err
		}
	}
	plain := func(f func(rotation.State) (rotation.State, error)) func(document, time.Time) (document, error) {
		return state(func(s rotation.State, _ time.Time) (rotation.State, error) { return f(s) })
	}
	stop := func(f func(rotation.State, time.Time) (rotation.State, error)) func(document, time.Time) (document, error) {
		return func(doc document, now time.Time) (document, error) {
			next, err := f(doc.State, now)
			doc.State, doc.NotBefore = next, now.Add(restAfterStop)
			return doc, err
		}
	}
	switch c.Action {
	case caapi.Rotate:
		return func(doc document, now time.Time) (document, error) { return rotate(doc, c, now) }, nil
	case caapi.Swap:
		spec, err := kinds.Parse([]byte(c.File))
		if err != nil {
			return nil, fmt.Errorf("file: %w", err)
		}
		raw, err := json.Marshal(spec)
		if err != nil {
			return nil, err
		}
		return func(doc document, now time.Time) (document, error) { return swap(doc, spec.Name, raw, c, now) }, nil
	case caapi.Pause:
		return plain(rotation.State.Pause), nil
	case caapi.Resume:
		return plain(rotation.State.Resume), nil
	case caapi.Abort:
		return stop(rotation.State.Abort), nil
	case caapi.Rollback:
		return stop(rotation.State.Rollback), nil
	case caapi.Compromised:
		return plain(rotation.State.Compromise), nil
	case caapi.Accept:
		return plain(func(s rotation.State) (rotation.State, error) { return d.accept(s, c.Holder) }), nil
	}
	return nil, fmt.Errorf("action: %q is unknown; use one of %s, %s, %s, %s, %s, %s, %s, %s", c.Action, caapi.Rotate, caapi.Swap,
		caapi.Pause, caapi.Resume, caapi.Abort, caapi.Rollback, caapi.Accept, caapi.Compromised)
}

func (d *Driver) accept(s rotation.State, holder string) (rotation.State, error) {
	d.mu.Lock()
	lagging := slices.Clone(s.Holders(d.last, d.now()))
	for _, name := range d.last.Replicas {
		lagging = append(lagging, replicaPrefix+name)
	}
	d.mu.Unlock()
	switch {
	case holder == "":
		return s, errors.New("holder: is required; `fairlead ca status` lists those that the step waits for")
	case len(s.Accepted) >= maxAccepted:
		return s, fmt.Errorf("%d holders are accepted already; roll back or abort, and find out why so many lag", maxAccepted)
	case s.Step != rotation.Idle && !slices.Contains(lagging, holder):
		return s, fmt.Errorf("the rotation does not wait for %q; `fairlead ca status` lists those that it waits for", holder)
	}
	return s.Accept(holder)
}

// rotate begins a rotation to new keys of the signer in use.
func rotate(doc document, c caapi.Command, now time.Time) (document, error) {
	spec, err := kinds.Parse(doc.Current.Spec)
	if err != nil {
		return doc, err
	}
	if !spec.Renewable() {
		return doc, fmt.Errorf("the keys of signer %s (%s) are not the ca's: rotate them there, and the ca follows; "+
			"or swap to another signer with --to", spec.Name, spec.Is())
	}
	return begin(doc, rotation.Signer{Name: doc.Current.Name, Spec: doc.Current.Spec}, c, now)
}

// swap begins a rotation to another signer.
func swap(doc document, name string, raw json.RawMessage, c caapi.Command, now time.Time) (document, error) {
	if bytes.Equal(doc.Current.Spec, raw) && doc.Step == rotation.Idle {
		return doc, fmt.Errorf("signer %s of this file is in use; `fairlead ca rotate` gives it new keys", name)
	}
	return begin(doc, rotation.Signer{Name: name, Spec: raw}, c, now)
}

func begin(doc document, to rotation.Signer, c caapi.Command, now time.Time) (document, error) {
	next, err := doc.Swap(to.Name, to.Spec, c.Reason, now)
	if err != nil {
		return doc, err
	}
	next.Compromised = c.Compromised
	doc.State = next
	return doc, nil
}

// followFile begins a swap when the signer file has another signer than it had. What it says of a file that is not
// followed is for an operator.
func (d *Driver) followFile(ctx context.Context) error {
	spec, err := d.cfg.Spec()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	var problem error
	err = d.update(ctx, func(doc document) (document, error) {
		problem = nil
		switch {
		case bytes.Equal(doc.File, raw):
			if doc.Step == rotation.Idle && !bytes.Equal(doc.Current.Spec, raw) {
				problem = fmt.Errorf("the signer file has signer %s, and %s is in use since an order of an operator; write the file anew, so that "+
					"a new installation has it too, or swap back with `fairlead ca swap --to FILE`", spec.Name, doc.Current.Name)
			}
			return doc, nil
		case bytes.Equal(doc.Current.Spec, raw):
			doc.File = raw
			return doc, nil
		case doc.Step != rotation.Idle:
			problem = fmt.Errorf("the signer file has signer %s now; a rotation is under way (step %s), and the swap to it begins when that "+
				"has ended", spec.Name, doc.Step)
			return doc, nil
		}
		next, err := begin(doc, rotation.Signer{Name: spec.Name, Spec: raw}, caapi.Command{Reason: "the signer file has changed"}, d.now())
		next.File = raw
		return next, err
	})
	return errors.Join(problem, err)
}

// renewInTime begins a rotation before a root of the ca's own ends.
func (d *Driver) renewInTime(doc document) document {
	now := d.now()
	if doc.Step != rotation.Idle || now.Before(doc.NotBefore) {
		return doc
	}
	w := d.worker(doc.Current.ID)
	if w == nil || !w.spec.Expires() {
		return doc
	}
	authorities, _ := w.opened.Guard.Authorities()
	if authorities == nil {
		return doc
	}
	for _, root := range authorities.Roots {
		life := root.NotAfter.Sub(root.NotBefore)
		early := min(max(life/10, 3*d.cfg.Env.LeafTTL), life/2)
		if now.Before(root.NotAfter.Add(-early)) {
			continue
		}
		next, err := rotate(doc, caapi.Command{Reason: "the root ends at " + root.NotAfter.UTC().Format(time.RFC3339)}, now)
		if err == nil {
			return next
		}
	}
	return doc
}
