package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/proto/fairlead/cabackup"
	"fairlead.dev/services/ca/internal/private"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/signer/keys"
)

// lockTimeout bounds the wait for a ca that opens its root.
const lockTimeout = 10 * time.Second

// Target is where a ca is to come back. The ca must not run. Dir and TrustDomain are required.
type Target struct {
	// Dir is --ca-dir. It is made if it is missing; its parent must exist.
	Dir         string
	TrustDomain string
	// KeyDirs are directories outside of Dir into which keys may be written. An archive alone does not say so: whoever
	// knows the public key of a recipient can make one.
	KeyDirs []string
	// Force replaces a ca that is there.
	Force bool

	fs fileio.FS
}

// Restore writes the files of an archive, and the record unless it belongs into a Secret. It checks everything first.
// When it is interrupted, the ca refuses to start, and Restore with Force goes on.
func Restore(ctx context.Context, a *cabackup.Archive, t Target) error {
	if err := t.check(a); err != nil {
		return err
	}
	if err := private.EnsureDir(t.Dir); err != nil {
		return err
	}
	release, err := private.Hold(t.Dir)
	if err != nil {
		return err
	}
	defer release()
	unlock, err := private.Lock(ctx, filepath.Join(t.Dir, "lock"), lockTimeout)
	if err != nil {
		return err
	}
	defer unlock()
	state := record.NewFile(filepath.Join(t.Dir, StateFile), nil)
	existing, version, err := t.existing(ctx, state)
	if err != nil {
		return err
	}
	restored, err := a.Restored(existing)
	if err != nil {
		return fmt.Errorf("%s: %w", t.Dir, err)
	}
	if err := t.writable(a); err != nil {
		return err
	}
	// The journal says who has a certificate of which signer, by numbers that stand for others in the archive's record.
	// Without one, everybody may have one.
	if err := t.removeJournal(); err != nil {
		return err
	}
	// A ca refuses to start that finds the key of a root without its certificate, or a record without the keys that it
	// names. So the certificates of roots are removed first and written last, and other keys follow the record.
	for _, f := range a.Files {
		if isRoot(f.Path) {
			if err := t.fs.Remove(t.path(f.Path)); err != nil {
				return err
			}
		}
	}
	if err := t.write(a, func(path string) bool { return inRoot(path) && !isRoot(path) }); err != nil {
		return err
	}
	if a.In == (cabackup.Place{}) {
		if _, err := state.Save(ctx, restored, version); err != nil {
			return err
		}
	}
	if err := t.write(a, func(path string) bool { return !inRoot(path) }); err != nil {
		return err
	}
	return t.write(a, isRoot)
}

const (
	// StateFile is the record's file in --ca-dir.
	StateFile = "state.json"
	// HoldersFolder is the folder in --ca-dir of the journal of certificates.
	HoldersFolder = "holders"
)

// removeJournal removes the journal of certificates that is there.
func (t Target) removeJournal() error {
	dir := filepath.Join(t.Dir, HoldersFolder)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if err := t.fs.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (t Target) path(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(t.Dir, path)
}

// check refuses an archive of another mesh, keys that the ca would refuse, and paths that the operator has not named.
func (t Target) check(a *cabackup.Archive) error {
	if a.TrustDomain != t.TrustDomain {
		return fmt.Errorf("the archive is of trust domain %q, not of %q; correct --trust-domain, or take another archive", a.TrustDomain,
			t.TrustDomain)
	}
	var errs []error
	for _, f := range a.Files {
		if dir := filepath.Dir(f.Path); filepath.IsAbs(dir) && !slices.Contains(t.KeyDirs, dir) {
			errs = append(errs, fmt.Errorf("the archive has keys of directory %s; allow it with --keys-dir %s", dir, dir))
		}
		if isKey(f.Path) {
			if _, err := keys.Decode(f.Data); err != nil {
				errs = append(errs, fmt.Errorf("file %s of the archive: %w", f.Path, err))
			}
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	errs = slices.CompactFunc(errs, func(a, b error) bool { return a.Error() == b.Error() })
	return errors.Join(errs...)
}

// existing is what is there of a ca, and the version of its record.
func (t Target) existing(ctx context.Context, state record.Store) (cabackup.Existing, string, error) {
	found := cabackup.Existing{Force: t.Force}
	var err error
	if found.Parts, err = exists(t.Dir); err != nil {
		return found, "", err
	}
	for _, dir := range t.KeyDirs {
		more, err := exists(dir)
		if err != nil {
			return found, "", err
		}
		for _, name := range more {
			found.Parts = append(found.Parts, filepath.Join(dir, name))
		}
	}
	now, err := state.Load(ctx)
	if errors.Is(err, record.ErrNone) {
		return found, "", nil
	}
	found.Record = now.Data
	return found, now.Version, err
}

// writable refuses links and other things in place of directories and files.
func (t Target) writable(a *cabackup.Archive) error {
	for _, f := range a.Files {
		path := t.path(f.Path)
		for dir := filepath.Dir(path); len(dir) > len(t.Dir) || dir == filepath.Dir(path); dir = filepath.Dir(dir) {
			if err := private.CheckDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if filepath.IsAbs(f.Path) { // what is above it is its owner's matter
				break
			}
		}
		if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file; move it away", path)
		}
	}
	return nil
}

// write writes those of the files that are chosen.
func (t Target) write(a *cabackup.Archive, chosen func(path string) bool) error {
	for _, f := range a.Files {
		if !chosen(f.Path) {
			continue
		}
		path := t.path(f.Path)
		if err := t.ensure(filepath.Dir(path)); err != nil {
			return err
		}
		if err := t.fs.Replace(path, f.Data); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	return nil
}

// ensure makes a directory for the ca's user alone, with those between it and --ca-dir.
func (t Target) ensure(dir string) error {
	if dir == t.Dir {
		return nil
	}
	if inside, err := filepath.Rel(t.Dir, dir); err == nil && filepath.IsLocal(inside) {
		if err := t.ensure(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	err := private.EnsureDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; make its parent directory", err)
	}
	return err
}
