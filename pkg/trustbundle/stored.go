package trustbundle

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/fileio"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/trust"
)

// maxStored bounds the file: the bundle and the roots before it, in base64.
const maxStored = 4 * trust.MaxBytes

// stored is an adopted bundle in Path, in JSON.
//
// At the start it is verified again, with the roots and at the time of its adoption, not with those of the root file:
// roots that are retired since may be all that the file of a machine has, and the ca's certificate which signed may
// have expired. That a root is stored here makes it as trustworthy as the directory, which is the agent's alone (0700),
// and in which the workload's key is, too. Whoever writes there has the workload already.
type stored struct {
	SignedBundle []byte    `json:"signedBundle"`
	VerifiedBy   [][]byte  `json:"verifiedBy"`
	AdoptedAt    time.Time `json:"adoptedAt"`
	// RootFile has the hashes of the roots that the root file had.
	RootFile [][]byte `json:"rootFile"`
}

// encode makes the text of an adopted bundle.
func encode(a *adopted) ([]byte, error) {
	s := stored{SignedBundle: a.signed, AdoptedAt: a.at}
	for _, c := range a.by {
		s.VerifiedBy = append(s.VerifiedBy, c.Raw)
	}
	for sum := range a.file {
		s.RootFile = append(s.RootFile, sum[:])
	}
	slices.SortFunc(s.RootFile, bytes.Compare)
	return json.Marshal(s)
}

// decode reads and verifies the text of an adopted bundle. v.now does not count.
func decode(text []byte, v verifier) (*adopted, error) {
	s := stored{}
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	var by []*x509.Certificate
	for _, der := range s.VerifiedBy {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		by = append(by, c)
	}
	signed := &cav1.SignedBundle{}
	if err := proto.Unmarshal(s.SignedBundle, signed); err != nil {
		return nil, err
	}
	v.now = s.AdoptedAt
	a, err := v.verify(signed, by, nil)
	if err != nil {
		return nil, err
	}
	a.signed, a.file = s.SignedBundle, sums{}
	for _, sum := range s.RootFile {
		if len(sum) != sha256.Size {
			return nil, errors.New("a hash of a root is too short")
		}
		a.file[[sha256.Size]byte(sum)] = true
	}
	return a, nil
}

// restored adopts the bundle that an earlier run has kept, if it is in order. It fails only while the Store cannot
// tell.
func (r *Roots) restored() error {
	r.loading.Lock()
	defer r.loading.Unlock()
	if r.loaded || r.cfg.Store == nil {
		return nil
	}
	text, err := r.cfg.Store.Load()
	if errors.Is(err, ErrNotReady) {
		return err
	}
	r.loaded = true
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var a *adopted
	if err == nil {
		a, err = decode(text, verifier{cas: r.cfg.CAs, trustDomain: r.cfg.TrustDomain})
	}
	if err != nil {
		r.cfg.Log.Warn("kept trust bundle is not used, the root file is", "path", r.cfg.Path, "error", err)
		return nil
	}
	r.adopt(a)
	r.cfg.Log.Info("kept trust bundle is used", "path", r.cfg.Path, "generation", a.generation, "epoch", a.epoch, "roots", len(a.roots))
	return nil
}

// keep writes the bundle to the Store. It only logs an error: the next start begins with the bundle before.
func (r *Roots) keep(a *adopted) {
	if r.cfg.Store == nil {
		return
	}
	text, err := encode(a)
	if err == nil {
		err = r.cfg.Store.Save(text)
	}
	if err != nil {
		r.cfg.Log.Warn("trust bundle cannot be kept for the next start", "error", err)
	}
}

// fileStore is a Store in a file, in a directory of the process's own.
type fileStore struct{ path string }

// Load implements Store.
func (s fileStore) Load() ([]byte, error) {
	f, err := fileio.OpenRegular(s.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return nil, fmt.Errorf("it has mode %04o: others can write it", mode)
	}
	return fileio.ReadAll(f, maxStored)
}

// Save implements Store.
func (s fileStore) Save(text []byte) error { return fileio.Write(s.path, text, 0o600) }
