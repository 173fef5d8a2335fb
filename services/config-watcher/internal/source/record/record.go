// Package record encodes an object for the disk: one line of JSON with a checksum, with encrypted content for a Secret
// if there is a key. The file source (its saved state) and the store use Codec; ReadKeys reads the keys.
package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"fairlead.dev/services/config-watcher/internal/object"
)

var (
	// ErrDamaged means that a record is not as it was written.
	ErrDamaged = errors.New("damaged")
	// ErrLocked means that a record is encrypted with a key that was not given. The record is intact.
	ErrLocked = errors.New("encrypted with a key that was not given")
)

// Record is one object and the place that it was read from.
type Record struct {
	// Key is kept without its cluster, which the place of the record says.
	Key object.Key
	// File and Line are the place of the object in a file source; empty and 0 for others.
	File string
	Line int
	// Content is JSON on one line.
	Content []byte
	// Sealed is the ID of the key that encrypted the content, set by Decode; empty for content in the clear.
	Sealed string
}

// Sealer encrypts and decrypts content. Keys implements it with keys from a file; a key server could be another
// implementation.
type Sealer interface {
	// Key is the ID of the key that encrypts.
	Key() string
	// Seal encrypts plain with a key and authenticates it together with context.
	Seal(key string, plain, context []byte) ([]byte, error)
	// Open reverses Seal. It returns an error that wraps ErrLocked if it does not have the key.
	Open(key string, sealed, context []byte) ([]byte, error)
}

// Codec encodes and decodes records. The zero Codec does not encrypt.
type Codec struct {
	// Sealer encrypts Secrets; nil leaves them in the clear.
	Sealer Sealer
}

// wire is a record's line. Exactly one of Object and Data is set.
type wire struct {
	Key    wireKey         `json:"key"`
	File   string          `json:"file,omitempty"`
	Line   int             `json:"line,omitempty"`
	SHA256 string          `json:"sha256"`
	Seal   string          `json:"seal,omitempty"`
	Data   []byte          `json:"data,omitempty"`
	Object json.RawMessage `json:"object,omitempty"`
}

type wireKey struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func wireKeyOf(k object.Key) wireKey { return wireKey{k.Group, k.Kind, k.Namespace, k.Name} }

// secret reports whether an object's content is encrypted if there is a key.
func secret(k object.Key) bool { return k.Group == "" && k.Kind == "Secret" }

// Current reports whether a decoded record is encrypted as Encode would do now.
func (c Codec) Current(r Record) bool {
	if !secret(r.Key) || c.Sealer == nil {
		return r.Sealed == ""
	}
	return r.Sealed == c.Sealer.Key()
}

// Encode returns the record's line with a line break.
func (c Codec) Encode(r Record) ([]byte, error) {
	w := wire{Key: wireKeyOf(r.Key), File: r.File, Line: r.Line}
	payload := r.Content
	if secret(r.Key) && c.Sealer != nil {
		var err error
		w.Seal = c.Sealer.Key()
		if w.Data, err = c.Sealer.Seal(w.Seal, r.Content, context(w)); err != nil {
			return nil, fmt.Errorf("encrypt %s: %w", r.Key, err)
		}
		payload = w.Data
	}
	w.SHA256 = sum(w, payload)
	head, err := json.Marshal(w)
	if err != nil || w.Seal != "" {
		return append(head, '\n'), err
	}
	// The content is inserted as it is: encoding it again could change bytes that the checksum covers.
	line := append(head[:len(head)-1], `,"object":`...)
	return append(append(line, r.Content...), '}', '\n'), nil
}

// Decode decodes a record's line. Its errors wrap ErrDamaged or ErrLocked. Key is set as far as it could be read; for a
// damaged record it is only a hint.
func (c Codec) Decode(line []byte) (Record, error) {
	var w wire
	if err := json.Unmarshal(line, &w); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	r := Record{Key: object.Key{Group: w.Key.Group, Kind: w.Key.Kind, Namespace: w.Key.Namespace, Name: w.Key.Name}, File: w.File,
		Line: w.Line, Content: w.Object, Sealed: w.Seal}
	payload := []byte(w.Object)
	if w.Seal != "" {
		payload = w.Data
	}
	if w.SHA256 != sum(w, payload) {
		return r, fmt.Errorf("%w: its checksum is not that of its content", ErrDamaged)
	}
	if w.Seal == "" {
		return r, nil
	}
	if c.Sealer == nil {
		return r, fmt.Errorf("%s is %w (key id %s)", r.Key, ErrLocked, w.Seal)
	}
	var err error
	if r.Content, err = c.Sealer.Open(w.Seal, w.Data, context(w)); err != nil {
		return r, fmt.Errorf("%s: %w", r.Key, err)
	}
	return r, nil
}

// context binds encrypted content to its object, so that it cannot replace another object's.
func context(w wire) []byte {
	return bytes.Join([][]byte{[]byte(w.Key.Group), []byte(w.Key.Kind), []byte(w.Key.Namespace), []byte(w.Key.Name)}, []byte{0})
}

// sum is the checksum of all parts of the record.
func sum(w wire, payload []byte) string {
	h := sha256.New()
	for _, part := range [][]byte{context(w), []byte(w.File), []byte(strconv.Itoa(w.Line)), []byte(w.Seal), payload} {
		h.Write([]byte(strconv.Itoa(len(part)) + ":"))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil))
}
