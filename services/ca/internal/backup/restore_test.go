package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/cabackup"
	"fairlead.dev/services/ca/internal/private"
	"fairlead.dev/services/ca/internal/store"
)

func TestRestoreRefuses(t *testing.T) {
	from := newCA(t, filepath.Join(t.TempDir(), "ca"), "directory: {dir: DIR-keys}", nil)
	archive := sealed(t, from.sources())
	for name, tc := range map[string]struct {
		change func(t *testing.T, a *cabackup.Archive, target *Target)
		says   string
	}{
		"another trust domain": {func(_ *testing.T, _ *cabackup.Archive, target *Target) { target.TrustDomain = "other" },
			`of trust domain "cluster.local", not of "other"`},
		"a directory that nobody allowed": {func(_ *testing.T, _ *cabackup.Archive, target *Target) { target.KeyDirs = nil },
			"--keys-dir " + from.dir},
		"a damaged key": {func(_ *testing.T, a *cabackup.Archive, _ *Target) {
			a.Files = append(a.Files, cabackup.File{Path: "keys/signer-1-x.pem", Data: []byte("-----BEGIN PRIVATE KEY-----\nsecret")})
		}, "keys/signer-1-x.pem of the archive: is not"},
		"a ca that is there": {func(t *testing.T, _ *cabackup.Archive, target *Target) {
			newCA(t, target.Dir, "directory: {dir: DIR/keys}", nil)
		}, "there is a ca already"},
		"the same ca, of later": {func(t *testing.T, a *cabackup.Archive, target *Target) {
			target.Force = true
			if err := Restore(t.Context(), a, *target); err != nil {
				t.Fatal(err)
			}
			start(t, target.Dir, nil).publish(t, 4)
		}, "is older than the ca that is there"},
		"an open directory": {func(t *testing.T, _ *cabackup.Archive, target *Target) {
			if err := os.Mkdir(target.Dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}, "chmod 0700"},
	} {
		t.Run(name, func(t *testing.T) {
			a := *archive
			target := Target{Dir: filepath.Join(t.TempDir(), "ca"), TrustDomain: trustDomain, KeyDirs: []string{from.dir + "-keys"}}
			if err := os.RemoveAll(from.dir + "-keys"); err != nil {
				t.Fatal(err)
			}
			tc.change(t, &a, &target)
			err := Restore(t.Context(), &a, target)
			if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %q", err, tc.says)
			}
		})
	}
}

func TestForceReplacesAnotherCA(t *testing.T) {
	from := newCA(t, filepath.Join(t.TempDir(), "ca"), "directory: {dir: DIR/keys}", nil)
	archive := sealed(t, from.sources())
	target := Target{Dir: filepath.Join(t.TempDir(), "ca"), TrustDomain: trustDomain, Force: true}
	newCA(t, target.Dir, "directory: {dir: DIR/keys}", nil)
	if err := Restore(t.Context(), archive, target); err != nil {
		t.Fatal(err)
	}
	want, err := store.ReadCertificate(from.dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := store.ReadCertificate(target.Dir); err != nil || string(got) != string(want) {
		t.Errorf("it has another root: %v", err)
	}
}

// A full disk, or the end of the process, at any step leaves a directory with which a ca refuses to start, or the ca
// that was there, or the restored one; and restoring again by force goes on.
func TestARestoreThatFailsCanBeDoneAgain(t *testing.T) {
	from := newCA(t, filepath.Join(t.TempDir(), "ca"), "directory: {dir: DIR/keys}", nil)
	archive := sealed(t, from.sources())
	want, err := store.ReadCertificate(from.dir)
	if err != nil {
		t.Fatal(err)
	}
	for failing := 1; ; failing++ {
		dir := filepath.Join(t.TempDir(), "ca")
		newCA(t, dir, "directory: {dir: DIR/keys}", nil)
		before, err := store.ReadCertificate(dir)
		if err != nil {
			t.Fatal(err)
		}
		steps := 0
		target := Target{Dir: dir, TrustDomain: trustDomain, Force: true, fs: fileio.FS{Fault: func(fileio.Step, string) error {
			if steps++; steps == failing {
				return errors.New("no space left on device")
			}
			return nil
		}}}
		err = Restore(t.Context(), archive, target)
		if steps < failing {
			if err != nil || failing < 10 {
				t.Fatalf("after %d steps: %v", steps, err)
			}
			return
		}
		if err == nil {
			t.Errorf("step %d: its failure is not told", failing)
		}
		root, err := store.Open(t.Context(), rootOf(dir))
		if err == nil && string(root.CertPEM) != string(before) && string(root.CertPEM) != string(want) {
			t.Errorf("step %d: a third root was made", failing)
		}
		target.fs = fileio.FS{}
		if err := Restore(t.Context(), archive, target); err != nil {
			t.Errorf("again after step %d: %v", failing, err)
		}
		if got, err := store.ReadCertificate(dir); err != nil || string(got) != string(want) {
			t.Errorf("again after step %d: %v", failing, err)
		}
	}
}

// What an archive says to be written through a link that somebody has laid is refused.
func TestLinksAreNotFollowed(t *testing.T) {
	from := newCA(t, filepath.Join(t.TempDir(), "ca"), "directory: {dir: DIR/keys}", nil)
	archive := sealed(t, from.sources())
	target := Target{Dir: filepath.Join(t.TempDir(), "ca"), TrustDomain: trustDomain, Force: true}
	elsewhere := t.TempDir()
	if err := errors.Join(os.Mkdir(target.Dir, 0o700), os.Symlink(elsewhere, filepath.Join(target.Dir, "keys"))); err != nil {
		t.Fatal(err)
	}
	if err := Restore(t.Context(), archive, target); err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("got %v", err)
	}
	if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) > 0 {
		t.Errorf("written elsewhere: %v, %v", entries, err)
	}
	if _, err := os.Stat(filepath.Join(target.Dir, StateFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(fmt.Errorf("the record was written: %w", err))
	}
}

// Who holds which certificate is not known after a restore, and what another ca has known of that is gone.
func TestTheJournalOfCertificatesIsRemoved(t *testing.T) {
	from := newCA(t, filepath.Join(t.TempDir(), "ca"), "directory: {dir: DIR/keys}", nil)
	archive := sealed(t, from.sources())
	dir := filepath.Join(t.TempDir(), "ca")
	newCA(t, dir, "directory: {dir: DIR/keys}", nil)
	journal := filepath.Join(dir, HoldersFolder, "holders.journal")
	testkit.NoError(t, errors.Join(os.Mkdir(filepath.Dir(journal), 0o700), os.WriteFile(journal, []byte("x"), 0o600)))
	if err := Restore(t.Context(), archive, Target{Dir: dir, TrustDomain: trustDomain}); err == nil {
		t.Error("restored over a ca")
	}
	if _, err := os.Stat(journal); err != nil {
		t.Errorf("a restore that is refused has changed something: %v", err)
	}
	testkit.NoError(t, Restore(t.Context(), archive, Target{Dir: dir, TrustDomain: trustDomain, Force: true}))
	if _, err := os.Stat(journal); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the journal: %v", err)
	}
}

func TestARestoreBesideARunningCAIsRefused(t *testing.T) {
	from := newCA(t, filepath.Join(t.TempDir(), "ca"), "directory: {dir: DIR/keys}", nil)
	archive := sealed(t, from.sources())
	target := Target{Dir: filepath.Join(t.TempDir(), "ca"), TrustDomain: trustDomain}
	testkit.NoError(t, private.EnsureDir(target.Dir))
	release, err := private.Hold(target.Dir)
	testkit.NoError(t, err)
	if err := Restore(t.Context(), archive, target); err == nil || !strings.Contains(err.Error(), "stop that first") {
		t.Errorf("got %v", err)
	}
	release()
	testkit.NoError(t, Restore(t.Context(), archive, target))
}
