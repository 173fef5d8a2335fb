// Package inuse keeps the signer that is in use: Open opens what the signer file names, finds again what that signer
// has made, and hands it to the Authority; Keeper.Run renews its intermediates. The record, rotation.State, is written
// before anything is issued with what it has.
package inuse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kinds"
)

const (
	// openWithin is how long Open waits for a signer that cannot be reached. Kubernetes then starts the ca again.
	openWithin = 30 * time.Second
	// period is the time between two looks at what is due.
	period = 10 * time.Second
	// maxFileBytes bounds the signer file.
	maxFileBytes = 64 << 10
)

// Config of a Keeper. All fields are required.
type Config struct {
	// File is the signer file, Record where the state is kept.
	File      string
	Record    *record.File
	Env       kinds.Env
	Authority *authority.Authority
	Log       *slog.Logger
}

// Keeper keeps the signer in use.
type Keeper struct {
	cfg    Config
	opened *kinds.Opened
	// stop ends what follows the signer, done is closed then.
	stop context.CancelFunc
	done chan struct{}
	// ended is why nothing follows the signer any more, once done is closed; nil if Close has ended it.
	ended error

	mu      sync.Mutex
	state   rotation.State
	version string
	problem error
}

// Open reads the signer file and makes its signer the one in use. It returns when a certificate of that signer has
// passed every check, so that a ca which serves can issue. Close ends what it has begun.
func Open(ctx context.Context, cfg Config) (_ *Keeper, err error) {
	spec, raw, err := readSpec(cfg.File)
	if err != nil {
		return nil, err
	}
	k := &Keeper{cfg: cfg, done: make(chan struct{})}
	if err := k.load(spec, raw); err != nil {
		return nil, err
	}
	if k.opened, err = kinds.Open(spec, k.state.Current.ID, cfg.Env); err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.File, err)
	}
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	k.stop = stop
	go func() {
		defer close(k.done)
		if err := k.opened.Run(following); err != nil {
			k.ended = fmt.Errorf("signer %s is followed no longer: %w", spec.Name, err)
			k.cfg.Log.Error("something about the signer must be mended", "error", k.ended)
		}
	}()
	if err := k.take(ctx); err != nil {
		k.Close()
		return nil, fmt.Errorf("signer %s of %s: %w", spec.Name, cfg.File, err)
	}
	return k, nil
}

// readSpec returns the signer file, also as it is compared with the record.
func readSpec(file string) (*kinds.Spec, json.RawMessage, error) {
	text, err := fileio.Read(file, maxFileBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("--signer-file: %w", err)
	}
	spec, err := kinds.Parse(text)
	if err != nil {
		return nil, nil, fmt.Errorf("--signer-file: %s: %w", file, err)
	}
	raw, err := json.Marshal(spec)
	return spec, raw, err
}

// load reads the state, or begins one.
func (k *Keeper) load(spec *kinds.Spec, raw json.RawMessage) error {
	r, err := k.cfg.Record.Load()
	if errors.Is(err, record.ErrNone) {
		k.state = rotation.First(rotation.Signer{ID: 1, Name: spec.Name, Spec: raw}, k.now())
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(r.Data, &k.state); err != nil || k.state.Current.ID == 0 {
		return fmt.Errorf("the ca's state is not what a ca wrote (%w); restore it from a backup", err)
	}
	k.version = r.Version
	if !bytes.Equal(k.state.Current.Spec, raw) {
		return fmt.Errorf("--signer-file: %s has signer %s, and certificates of signer %s are in use: the ca cannot move from one to the other "+
			"while it runs yet; restore the file, or, for a mesh without workloads, move the ca's state away", k.cfg.File, spec.Name,
			k.state.Current.Name)
	}
	return nil
}

func (k *Keeper) now() time.Time { return k.cfg.Env.Clock.Now() }

// take prepares the signer, tries it, writes the record and makes it the one in use.
func (k *Keeper) take(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, openWithin, fmt.Errorf("not ready within %s", openWithin))
	defer cancel()
	kept := k.state.Current.Kept
	if len(kept) == 0 {
		var err error
		if kept, err = k.opened.Prepare(ctx, nil); err != nil {
			return err
		}
	}
	if err := k.opened.Adopt(ctx, kept); err != nil {
		return err
	}
	authorities, err := k.known(ctx)
	if err != nil {
		return err
	}
	probe := signer.Probe{Identity: k.cfg.Env.Identity, DNSNames: k.cfg.Env.DNSNames, TTL: k.cfg.Env.LeafTTL}
	if err := probe.Try(ctx, k.opened.Guard.Signer(), k.now()); err != nil {
		return err
	}
	if err := trusted(k.state.Current.Roots, roots(authorities)); err != nil {
		return err
	}
	next := k.state
	next.Current.Kept, next.Current.Roots = kept, roots(authorities)
	if err := k.save(next); err != nil {
		return err
	}
	k.cfg.Authority.Use(next.Current.ID, k.opened.Guard)
	k.cfg.Log.Info("signer in use", "signer", next.Current.Name, "id", next.Current.ID, "roots", len(next.Current.Roots),
		"not_after", authorities.NotAfter)
	return nil
}

// known waits until the signer's roots are known.
func (k *Keeper) known(ctx context.Context) (*signer.Authorities, error) {
	for {
		authorities, changed := k.opened.Guard.Authorities()
		if authorities != nil {
			return authorities, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("its roots are not known: %w", errors.Join(k.opened.Problem(), context.Cause(ctx)))
		case <-k.done:
			return nil, k.ended
		case <-changed:
		}
	}
}

// trusted refuses a signer that comes back with other roots than the mesh verifies with.
func trusted(before, now []string) error {
	if len(before) == 0 || slices.ContainsFunc(now, func(root string) bool { return slices.Contains(before, root) }) {
		return nil
	}
	return errors.New("its roots are others than when the ca was last in use, and no workload verifies with them; restore its files or " +
		"address, or put old and new roots into them together first")
}

func roots(a *signer.Authorities) []string {
	var out []string
	for _, c := range a.Roots {
		out = append(out, tlsconf.EncodeCertificate(c))
	}
	return slices.Sorted(slices.Values(out))
}

// save writes the state, if it differs from what is written.
func (k *Keeper) save(next rotation.State) error {
	before, err := json.Marshal(k.state)
	if err != nil {
		return err
	}
	data, err := json.Marshal(next)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.version == "" || !bytes.Equal(before, data) {
		r, err := k.cfg.Record.Save(data, k.version)
		if err != nil {
			return err
		}
		k.version = r.Version
	}
	k.state = next
	return nil
}

// Roots returns those of the signer in use in PEM, and a channel that is closed when they change.
func (k *Keeper) Roots() ([]string, <-chan struct{}, error) {
	authorities, changed := k.opened.Guard.Authorities()
	if authorities == nil {
		return nil, changed, errors.New("not known yet")
	}
	return roots(authorities), changed, nil
}

// State is the state that was written last.
func (k *Keeper) State() rotation.State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

// Problem is what keeps the signer from being renewed or used; nil if nothing does.
func (k *Keeper) Problem() error {
	var ended error
	select {
	case <-k.done:
		ended = k.ended
	default:
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Join(ended, k.problem, k.opened.Problem())
}

// report remembers a problem, and logs it if it is new.
func (k *Keeper) report(err error) {
	k.mu.Lock()
	before := k.problem
	k.problem = err
	k.mu.Unlock()
	if err != nil && (before == nil || before.Error() != err.Error()) {
		k.cfg.Log.Error("something about the signer must be mended", "error", err)
	}
}

// Run renews what ends, and says when the signer file is no longer that of the signer in use, until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	defer k.Close()
	for clock.Sleep(ctx, k.cfg.Env.Clock, period) {
		err := k.renew(ctx)
		if err == nil {
			err = k.compare()
		}
		if ctx.Err() == nil {
			k.report(err)
		}
	}
	return nil
}

func (k *Keeper) renew(ctx context.Context) error {
	due := k.opened.Due()
	if due.IsZero() || k.now().Before(due) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	state := k.State()
	kept, err := k.opened.Prepare(ctx, state.Current.Kept)
	if err != nil {
		return fmt.Errorf("renew the intermediate of signer %s: %w", state.Current.Name, err)
	}
	state.Current.Kept = kept
	if err := k.save(state); err != nil {
		return fmt.Errorf("renew the intermediate of signer %s: %w", state.Current.Name, err)
	}
	if err := k.opened.Adopt(ctx, kept); err != nil {
		return fmt.Errorf("renew the intermediate of signer %s: %w", state.Current.Name, err)
	}
	k.cfg.Log.Info("intermediate renewed", "signer", state.Current.Name)
	return nil
}

// compare looks whether the file has another signer now.
func (k *Keeper) compare() error {
	spec, raw, err := readSpec(k.cfg.File)
	if err != nil {
		return err
	}
	if state := k.State(); !bytes.Equal(state.Current.Spec, raw) {
		return fmt.Errorf("--signer-file: %s has been changed to signer %s; signer %s goes on issuing: the ca cannot move from one to the other "+
			"while it runs yet, restore the file", k.cfg.File, spec.Name, state.Current.Name)
	}
	return nil
}

// Close ends what follows the signer.
func (k *Keeper) Close() {
	k.stop()
	<-k.done
}
