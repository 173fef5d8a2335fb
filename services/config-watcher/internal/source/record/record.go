// Package record is how config-watcher keeps an object on disk: one line of JSON with a checksum, and with its content
// encrypted where that is secret.
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
	// ErrDamaged means that a record is not what was written.
	ErrDamaged = errors.New("damaged")
	// ErrLocked means that a record is encrypted with a key that was not given. It is whole: with the key it can be
	// read.
	ErrLocked = errors.New("encrypted with a key that was not given")
)

// Record is one object and where it was read.
type Record struct {
	Key object.Key
	// File and Line are the place of the object's document in a file source; empty and 0 elsewhere.
	File string
	Line int
	// Content is JSON on one line.
	Content []byte
	// Sealed is the id of the key that the content was encrypted with; set by Decode, empty for a record that was not.
	Sealed string
}

// Sealer encrypts and decrypts what is kept on disk. Keys from a file are one implementation; one that asks a key
// server would be another.
type Sealer interface {
	// Key is the id of the key that encrypts now.
	Key() string
	// Seal encrypts and authenticates plain with a key, and authenticates context with it.
	Seal(key string, plain, context []byte) ([]byte, error)
	// Open is the reverse of Seal. It returns an error that wraps ErrLocked if it does not have the key.
	Open(key string, sealed, context []byte) ([]byte, error)
}

// Codec writes and reads records. The zero Codec encrypts nothing.
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

// secret tells the objects whose content is encrypted where there is a key.
func secret(k object.Key) bool { return k.Group == "" && k.Kind == "Secret" }

// Current tells whether a record that was read is sealed the way that Encode would seal it now; if not, writing it
// again changes that.
func (c Codec) Current(r Record) bool {
	if !secret(r.Key) || c.Sealer == nil {
		return r.Sealed == ""
	}
	return r.Sealed == c.Sealer.Key()
}

// Encode returns the record's line, which ends with a newline.
func (c Codec) Encode(r Record) ([]byte, error) {
	w := wire{Key: wireKey(r.Key), File: r.File, Line: r.Line}
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
	// The content goes in as it is: encoding it once more could change bytes that the checksum covers.
	line := append(head[:len(head)-1], `,"object":`...)
	return append(append(line, r.Content...), '}', '\n'), nil
}

// Decode reads a record's line. Its errors wrap ErrDamaged or ErrLocked; Key is set as far as it could be read, and
// only a hint if the record is damaged.
func (c Codec) Decode(line []byte) (Record, error) {
	var w wire
	if err := json.Unmarshal(line, &w); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	r := Record{Key: object.Key(w.Key), File: w.File, Line: w.Line, Content: w.Object, Sealed: w.Seal}
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

// context binds encrypted content to the object that it is of, so that it cannot be put into another one's place.
func context(w wire) []byte {
	return bytes.Join([][]byte{[]byte(w.Key.Group), []byte(w.Key.Kind), []byte(w.Key.Namespace), []byte(w.Key.Name)}, []byte{0})
}

// sum is the checksum of everything in the record but itself.
func sum(w wire, payload []byte) string {
	h := sha256.New()
	for _, part := range [][]byte{context(w), []byte(w.File), []byte(strconv.Itoa(w.Line)), []byte(w.Seal), payload} {
		h.Write([]byte(strconv.Itoa(len(part)) + ":"))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil))
}
