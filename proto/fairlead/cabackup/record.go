package cabackup

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Record is what restoring has to know of a ca's record. The ca's own fields beside these stay as they are.
type Record struct {
	Epoch  uint64 `json:"epoch"`
	LastID uint64 `json:"lastID"`

	Current Signer   `json:"current"`
	Next    *Signer  `json:"next"`
	Old     []Signer `json:"old"`
	Step    string   `json:"step"`

	Bundle struct {
		Generation uint64   `json:"generation"`
		Roots      []string `json:"roots"`
	} `json:"bundle"`
}

// Signer is a signer of the record.
type Signer struct {
	ID    uint64          `json:"id"`
	Name  string          `json:"name"`
	Spec  json.RawMessage `json:"spec"`
	Roots []string        `json:"roots"`
	Kept  json.RawMessage `json:"kept"`
}

// ParseRecord reads the record of a ca.
func ParseRecord(text []byte) (*Record, error) {
	r := &Record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("the record is not what a ca wrote: %w", err)
	}
	if r.Current.ID == 0 || r.LastID < r.Current.ID || r.Step == "" {
		return nil, errors.New("the record is not what a ca wrote: it has no signer in use")
	}
	return r, nil
}

// Signers are all of the record.
func (r *Record) Signers() []Signer {
	all := []Signer{r.Current}
	if r.Next != nil {
		all = append(all, *r.Next)
	}
	return append(all, r.Old...)
}

// roots are those that verify certificates of the ca.
func (r *Record) roots() []string {
	out := slices.Clone(r.Bundle.Roots)
	for _, s := range r.Signers() {
		out = append(out, s.Roots...)
	}
	return out
}

// Fingerprints are the SHA-256 of the roots in hex, sorted, by which an operator recognises the mesh.
func (r *Record) Fingerprints() []string {
	var out []string
	for _, root := range r.roots() {
		if block, _ := pem.Decode([]byte(root)); block != nil {
			if _, err := x509.ParseCertificate(block.Bytes); err == nil {
				sum := sha256.Sum256(block.Bytes)
				out = append(out, hex.EncodeToString(sum[:]))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// related reports whether a root of one is a root of the other.
func (r *Record) related(other *Record) bool {
	theirs := other.Fingerprints()
	return slices.ContainsFunc(r.Fingerprints(), func(root string) bool { return slices.Contains(theirs, root) })
}

// ErrExists says that there is a ca where one would be restored.
var ErrExists = errors.New("there is a ca already")

// Existing is what is found where a ca is to be restored.
type Existing struct {
	// Record is that of the ca there; nil if there is none, or one that cannot be read.
	Record []byte
	// Parts name what else is there, such as keys.
	Parts []string
	// Force lets it be replaced.
	Force bool
}

// Restored returns the record with which the ca of an archive comes back, or why it must not. Its epoch is greater than
// any that a bundle had, so that agents do not mistake bundles from after the backup for later ones; its LastID is one
// that no signer has had.
func (a *Archive) Restored(e Existing) ([]byte, error) {
	archived, err := ParseRecord(a.Record)
	if err != nil {
		return nil, err
	}
	if (len(e.Record) > 0 || len(e.Parts) > 0) && !e.Force {
		what := e.Parts
		if len(e.Record) > 0 {
			what = append([]string{"the ca's record"}, what...)
		}
		return nil, fmt.Errorf("%w: %.500s; restore to an empty place, or replace what is there with --force", ErrExists, join(what))
	}
	epoch, lastID := archived.Epoch, archived.LastID
	if now, err := ParseRecord(e.Record); err == nil {
		if newer(now, archived) && now.related(archived) {
			return nil, fmt.Errorf("the archive of %s is older than the ca that is there, which has the same root: it has bundle %d of epoch %d, "+
				"and the ca bundle %d of epoch %d. Certificates issued since would be lost; restore a newer archive, or move the ca's record and "+
				"keys away if they are damaged", a.Made.UTC().Format("2006-01-02 15:04:05Z"), archived.Bundle.Generation, archived.Epoch,
				now.Bundle.Generation, now.Epoch)
		}
		epoch, lastID = max(epoch, now.Epoch), max(lastID, now.LastID)
	}
	if epoch >= math.MaxUint64/2 || lastID >= math.MaxUint64/2 {
		return nil, errors.New("the record is not what a ca wrote: its numbers are too large")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(a.Record, &fields); err != nil {
		return nil, err
	}
	fields["epoch"], fields["lastID"] = fmt.Append(nil, epoch+1), fmt.Append(nil, lastID)
	return json.Marshal(fields)
}

// newer reports whether a record has a bundle that the one of an archive has not. A ca that was restored from the same
// archive, perhaps halfway, and has published nothing since, is not newer.
func newer(a, b *Record) bool {
	if a.Epoch == b.Epoch+1 && a.Bundle.Generation == b.Bundle.Generation && a.LastID == b.LastID && a.Step == b.Step {
		return false
	}
	return a.Epoch > b.Epoch || a.Epoch == b.Epoch && a.Bundle.Generation > b.Bundle.Generation
}

func join(parts []string) string {
	const most = 5
	text := ""
	for i, p := range parts[:min(len(parts), most)] {
		if i > 0 {
			text += ", "
		}
		text += p
	}
	if len(parts) > most {
		text += fmt.Sprintf(" and %d more", len(parts)-most)
	}
	return text
}
