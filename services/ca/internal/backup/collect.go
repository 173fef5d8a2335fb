// Package backup makes the archive of a ca (Collect), and brings a ca back from one in directories (Restore). Package
// cabackup has the archive; the commands `ca backup` and `ca restore` call this one.
package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/version"
	"fairlead.dev/proto/fairlead/cabackup"
	"fairlead.dev/services/ca/internal/private"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/signer/kinds"
)

const (
	// attempts at an archive while the ca writes its record.
	attempts = 5
	// maxText bounds the signer file and the extra roots, maxFiles the files of one directory.
	maxText  = 1 << 20
	maxFiles = 4096
	// requestTimeout bounds one request to the API server.
	requestTimeout = 10 * time.Second
	// rootFolder, rootCert and rootKey are where package store has a root.
	rootFolder, rootCert, rootKey = "root", "cert.pem", "key.pem"
)

// Sources are where a ca keeps what it needs. Dir, Record and TrustDomain are required.
type Sources struct {
	// Dir is --ca-dir.
	Dir         string
	TrustDomain string
	Record      record.Store
	// RecordIn is the Secret of Record; without a name it is a file in Dir.
	RecordIn cabackup.Place
	// SignerFile and ExtraRootsFile are those of the ca's flags.
	SignerFile, ExtraRootsFile string
	// API is nil outside of Kubernetes.
	API kubernetes.Interface
	Now time.Time
}

// Collect reads everything while the ca runs. A record that changes meanwhile, which may name keys that were made after
// they were read, begins it anew.
func Collect(ctx context.Context, s Sources) (*cabackup.Archive, error) {
	for range attempts {
		before, err := s.Record.Load(ctx)
		if errors.Is(err, record.ErrNone) {
			return nil, fmt.Errorf("%s: %w; it is written when the ca starts", s.Dir, err)
		}
		if err != nil {
			return nil, err
		}
		a, err := s.collect(ctx, before)
		if err != nil {
			return nil, err
		}
		if now, err := s.Record.Load(ctx); err != nil {
			return nil, err
		} else if now.Version == before.Version {
			return a, nil
		}
	}
	return nil, errors.New("the ca has changed its record again and again meanwhile; try again")
}

func (s Sources) collect(ctx context.Context, r record.Record) (*cabackup.Archive, error) {
	a := &cabackup.Archive{Program: version.Info().String(), Made: s.Now, TrustDomain: s.TrustDomain, Record: r.Data, In: s.RecordIn}
	state, err := cabackup.ParseRecord(r.Data)
	if err != nil {
		return nil, err
	}
	if a.Files, err = s.files(); err != nil {
		return nil, err
	}
	for _, signer := range state.Signers() {
		if err := s.add(ctx, a, signer); err != nil {
			return nil, fmt.Errorf("signer %s: %w", signer.Name, err)
		}
	}
	if a.SignerFile, err = text("--signer-file", s.SignerFile); err != nil {
		return nil, err
	}
	a.ExtraRoots, err = text("--extra-roots-file", s.ExtraRootsFile)
	return a, err
}

func text(flag, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := fileio.Read(file, maxText)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	return string(text), nil
}

// files reads keys, roots and the bundle's number in --ca-dir.
func (s Sources) files() ([]cabackup.File, error) {
	if err := private.CheckDir(s.Dir); err != nil {
		return nil, err
	}
	names, err := privateFiles(s.Dir)
	if err != nil {
		return nil, err
	}
	var out []cabackup.File
	for _, name := range names {
		data, err := private.Read(filepath.Join(s.Dir, name))
		if err != nil && !isKey(name) && !inRoot(name) {
			continue // a file for others, such as that of --root-cert-out
		}
		if err != nil {
			return nil, err
		}
		out = append(out, cabackup.File{Path: name, Data: data})
	}
	return out, nil
}

// privateFiles lists the files of a ca below its directory, by paths relative to it.
func privateFiles(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // the ca has removed it meanwhile
		case err != nil:
			return err
		case path == dir:
			return nil
		case strings.HasPrefix(e.Name(), ".") && e.IsDir(): // a root that is not finished
			return fs.SkipDir
		case strings.HasPrefix(e.Name(), "."), e.IsDir():
			return nil
		}
		name, err := filepath.Rel(dir, path)
		if err == nil && (strings.HasSuffix(name, ".pem") || name == cabackup.BundleFile) {
			out = append(out, name)
		}
		if len(out) > maxFiles {
			return fmt.Errorf("%s has more than %d files with keys", dir, maxFiles)
		}
		return err
	})
	return out, err
}

// add adds the keys of a signer, or says where they are.
func (s Sources) add(ctx context.Context, a *cabackup.Archive, signer cabackup.Signer) error {
	var spec kinds.Spec
	if err := json.Unmarshal(signer.Spec, &spec); err != nil {
		return fmt.Errorf("the record of its configuration: %w", err)
	}
	if spec.Root != nil && len(signer.Roots) > 0 {
		return hasRoot(a, signer.ID)
	}
	elsewhere := func(what string) {
		sentence := fmt.Sprintf("signer %s: %s", signer.Name, what)
		if !slices.Contains(a.Elsewhere, sentence) {
			a.Elsewhere = append(a.Elsewhere, sentence)
		}
	}
	switch i := spec.Intermediate; {
	case spec.CACerts != nil:
		elsewhere("its certificate and key are files of yours, which the archive does not have")
	case i == nil:
		if spec.Vault != nil || spec.Service != nil || spec.Istio != nil || spec.StepCA != nil || spec.KubernetesCSR != nil ||
			spec.CertManager != nil {
			elsewhere("it signs elsewhere, and has its keys there; files that its configuration names, such as credentials, are not in the archive")
		}
		return nil
	case i.Vault != nil:
		elsewhere("Vault signs its intermediates; files that its configuration names, such as credentials, are not in the archive")
	}
	if spec.Intermediate == nil {
		return nil
	}
	// Keys are named by the signer's number. One that has made nothing yet has none.
	prefix, needed := fmt.Sprintf("signer-%d-", signer.ID), len(signer.Kept) > 0
	switch i := spec.Intermediate; {
	case i.Keys.Directory != nil:
		return s.addDirectory(a, i.Keys.Directory.Dir, prefix, needed)
	case i.Keys.Secret != nil:
		return s.addSecret(ctx, a, cabackup.Place{Namespace: i.Keys.Secret.Namespace, Name: i.Keys.Secret.Name}, prefix, needed)
	case i.Keys.KMS != nil:
		elsewhere("its keys are in a token or key service, and stay there; the restored ca must reach it, with the same keys")
	}
	return nil
}

// hasRoot returns an error unless the root of a signer that has one in --ca-dir is in the archive. Package app says
// where it is.
func hasRoot(a *cabackup.Archive, id uint64) error {
	dir := rootFolder
	if id != 1 {
		dir = filepath.Join(fmt.Sprintf("signer-%d", id), rootFolder)
	}
	for _, name := range []string{rootKey, rootCert} {
		path := filepath.Join(dir, name)
		if !slices.ContainsFunc(a.Files, func(f cabackup.File) bool { return f.Path == path }) {
			return fmt.Errorf("--ca-dir has no %s, without which a backup is of no use", path)
		}
	}
	return nil
}

func (s Sources) addDirectory(a *cabackup.Archive, dir, prefix string, needed bool) error {
	inside, err := filepath.Rel(s.Dir, dir)
	if err == nil && filepath.IsLocal(inside) { // it was read with --ca-dir
		dir = inside
	}
	has := func(f cabackup.File) bool {
		return filepath.Dir(f.Path) == dir && strings.HasPrefix(filepath.Base(f.Path), prefix)
	}
	if filepath.IsAbs(dir) && !slices.ContainsFunc(a.Files, func(f cabackup.File) bool { return filepath.Dir(f.Path) == dir }) {
		outside := Sources{Dir: dir}
		files, err := outside.files()
		if err != nil && (needed || !errors.Is(err, fs.ErrNotExist)) {
			return err
		}
		for _, f := range files {
			if filepath.Dir(f.Path) == "." && f.Path != cabackup.BundleFile {
				a.Files = append(a.Files, cabackup.File{Path: filepath.Join(dir, f.Path), Data: f.Data})
			}
		}
	}
	if needed && !slices.ContainsFunc(a.Files, has) {
		return fmt.Errorf("directory %s has none of its keys (%s*.pem), without which a backup is of no use", dir, prefix)
	}
	return nil
}

func (s Sources) addSecret(ctx context.Context, a *cabackup.Archive, at cabackup.Place, prefix string, needed bool) error {
	i := slices.IndexFunc(a.Secrets, func(known cabackup.Secret) bool { return known.Place == at })
	if i < 0 {
		if s.API == nil {
			return fmt.Errorf("its keys are in Secret %s: add --kubernetes", at)
		}
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		found, err := s.API.CoreV1().Secrets(at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read its keys: %w", err)
		}
		keys := cabackup.Secret{Place: at, Data: map[string][]byte{}}
		for entry, data := range found.Data {
			if strings.HasSuffix(entry, ".pem") {
				keys.Data[entry] = data
			}
		}
		i = len(a.Secrets)
		a.Secrets = append(a.Secrets, keys)
	}
	for entry := range a.Secrets[i].Data {
		if strings.HasPrefix(entry, prefix) {
			return nil
		}
	}
	if needed {
		return fmt.Errorf("Secret %s has none of its keys (%s*.pem), without which a backup is of no use", at, prefix)
	}
	return nil
}

// isKey reports whether a file has a key of the ca: that of a root, or one that is named by a signer.
func isKey(path string) bool {
	return inRoot(path) && filepath.Base(path) == rootKey || strings.HasPrefix(filepath.Base(path), "signer-")
}

// inRoot reports whether a file is of a root in --ca-dir.
func inRoot(path string) bool { return filepath.Base(filepath.Dir(path)) == rootFolder }

// isRoot reports whether a file is the certificate of a root in --ca-dir, without which no ca starts.
func isRoot(path string) bool {
	return filepath.Base(path) == rootCert && inRoot(path)
}

// exists lists what is in a directory that a ca has made.
func exists(dir string) ([]string, error) {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return privateFiles(dir)
}
