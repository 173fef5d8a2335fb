// Package cabackup is the file that `fairlead ca backup` writes, and from which a ca is restored. Archive is its
// content, Seal and Open encrypt and decrypt it in the format of age (age-encryption.org/v1), and Record is what
// restoring has to know of the ca's record.
//
// Whoever knows a recipient's public key can make an archive for it, so that encryption alone does not say that the ca
// has made one. What Open returns is checked, but where it is written is for the caller to decide.
package cabackup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// format is the version of Archive. Another one means that fields have changed their meaning.
const format = 1

// Bounds of an archive.
const (
	// MaxBytes of an archive, encrypted or not.
	MaxBytes = 16 << 20
	maxFile  = 256 << 10
	maxFiles = 4096
	// maxSecret is what Kubernetes allows.
	maxSecret  = 1 << 20
	maxSecrets = 64
	// maxRecord is the bound of the ca's record, maxText that of the signer file and of the extra roots.
	maxRecord = 768 << 10
	maxText   = 1 << 20
)

// Archive is what a ca needs to come back, but for what it has elsewhere: key services and signers beside it, and their
// credentials.
type Archive struct {
	Format int `json:"format"`
	// Program is the version of the ca that made the archive, Made when.
	Program     string    `json:"program"`
	Made        time.Time `json:"made"`
	TrustDomain string    `json:"trustDomain"`
	// Record is the ca's record, In where it was.
	Record json.RawMessage `json:"record"`
	In     Place           `json:"recordIn"`
	// Files are the keys, roots and numbers of --ca-dir, and of other directories with keys.
	Files []File `json:"files,omitempty"`
	// Secrets are entries with keys of Secrets of Kubernetes.
	Secrets []Secret `json:"secrets,omitempty"`
	// SignerFile and ExtraRoots are the content of the files of these flags of the ca, for whoever configures it anew.
	SignerFile string `json:"signerFile,omitempty"`
	ExtraRoots string `json:"extraRoots,omitempty"`
	// Elsewhere are sentences on what the ca needs and the archive does not have.
	Elsewhere []string `json:"elsewhere,omitempty"`
}

// Place names a Secret; without a name it is the file state.json in --ca-dir.
type Place struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// File is a file that only the ca's user can read.
type File struct {
	// Path is relative to --ca-dir, or absolute if it is in another directory.
	Path string `json:"path"`
	Data []byte `json:"data"`
}

// Secret has entries of a Secret of type Opaque.
type Secret struct {
	Place
	Data map[string][]byte `json:"data"`
}

// Encode returns the text of an archive that is complete and within its bounds.
func (a *Archive) Encode() ([]byte, error) {
	a.Format = format
	if err := a.check(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(a)
	if err == nil && len(text) > MaxBytes {
		err = fmt.Errorf("the archive has %d bytes, more than %d", len(text), MaxBytes)
	}
	return text, err
}

// Decode reads what Encode writes, and checks it.
func Decode(text []byte) (*Archive, error) {
	var version struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(text, &version); err != nil {
		return nil, errors.New("it is no archive of a ca") // a cause could quote a key
	}
	if version.Format != format {
		return nil, fmt.Errorf("the archive has format %d, and this program reads format %d; use a program of the version that made it",
			version.Format, format)
	}
	a := &Archive{}
	reader := json.NewDecoder(bytes.NewReader(text))
	reader.DisallowUnknownFields()
	if err := reader.Decode(a); err != nil {
		return nil, errors.New("it is no archive of a ca, or of a newer one; use a program of the version that made it")
	}
	if _, err := reader.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the archive has something after its end")
	}
	if err := a.check(); err != nil {
		return nil, err
	}
	return a, nil
}

// check returns what is wrong with an archive.
func (a *Archive) check() error {
	if a.TrustDomain == "" || len(a.TrustDomain) > 255 {
		return errors.New("the archive names no trust domain")
	}
	if len(a.Record) > maxRecord || len(a.SignerFile) > maxText || len(a.ExtraRoots) > maxText {
		return errors.New("the archive's record, signer file or extra roots are larger than those of a ca can be")
	}
	if _, err := ParseRecord(a.Record); err != nil {
		return err
	}
	if a.In != (Place{}) {
		if err := a.In.check(); err != nil {
			return err
		}
	}
	return errors.Join(a.checkFiles(), a.checkSecrets())
}

func (a *Archive) checkFiles() error {
	if len(a.Files) > maxFiles {
		return fmt.Errorf("the archive has %d files, more than %d", len(a.Files), maxFiles)
	}
	seen := map[string]bool{}
	for _, f := range a.Files {
		switch name := filepath.Base(f.Path); {
		case f.Path != filepath.Clean(f.Path) || !filepath.IsAbs(f.Path) && !filepath.IsLocal(f.Path):
			return fmt.Errorf("file %.200q of the archive is at a path that leads elsewhere", f.Path)
		case !strings.HasSuffix(name, ".pem") && f.Path != BundleFile, strings.HasPrefix(name, "."):
			return fmt.Errorf("file %.200q of the archive is none of a ca's", f.Path)
		case len(f.Data) > maxFile:
			return fmt.Errorf("file %.200q of the archive has %d bytes, more than %d", f.Path, len(f.Data), maxFile)
		case seen[f.Path]:
			return fmt.Errorf("file %.200q is in the archive twice", f.Path)
		}
		seen[f.Path] = true
	}
	return nil
}

// BundleFile is the file in --ca-dir with the number of the trust bundle, of a ca without a record.
const BundleFile = "bundle.json"

// dnsName is the form of names of Kubernetes: labels with dots between them.
var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func (p Place) check() error {
	if len(p.Namespace) > 63 || len(p.Name) > 253 || strings.Contains(p.Namespace, ".") || !dnsName.MatchString(p.Namespace) ||
		!dnsName.MatchString(p.Name) {
		return fmt.Errorf("%.63q/%.253q in the archive names no Secret", p.Namespace, p.Name)
	}
	return nil
}

// String is namespace/name.
func (p Place) String() string { return p.Namespace + "/" + p.Name }

func (a *Archive) checkSecrets() error {
	if len(a.Secrets) > maxSecrets {
		return fmt.Errorf("the archive has %d Secrets, more than %d", len(a.Secrets), maxSecrets)
	}
	var seen []Place
	for _, s := range a.Secrets {
		if err := s.check(); err != nil {
			return err
		}
		if slices.Contains(seen, s.Place) || s.Place == a.In {
			return fmt.Errorf("Secret %s is in the archive twice", s.Place)
		}
		seen = append(seen, s.Place)
		size := 0
		for entry, data := range s.Data {
			if size += len(data); size > maxSecret {
				return fmt.Errorf("Secret %s of the archive has more than %d bytes", s.Place, maxSecret)
			}
			if name, ok := strings.CutSuffix(entry, ".pem"); !ok || !dnsName.MatchString(name) {
				return fmt.Errorf("entry %.200q of Secret %s of the archive is no key", entry, s.Place)
			}
		}
	}
	return nil
}
