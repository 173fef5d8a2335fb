// Package jwks reads sets of public keys that verify tokens (RFC 7517): Parse drops the keys that Envoy's jwt_authn
// filter could not use, and writes the others in one form, however their issuer writes them.
package jwks

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Bounds of a set and of its keys. A set beyond MaxBytes or MaxKeys is refused as a whole, because which of its keys
// are meant cannot be told.
const (
	MaxBytes = 1 << 20
	MaxKeys  = 256
	// MaxID is the longest name of a key, in bytes.
	MaxID = 1024
	// MinRSABits bounds the keys that others can factor. MaxRSABits bounds what verifying one token costs a proxy.
	MinRSABits = 1024
	MaxRSABits = 8192
)

// maxTold is how many dropped keys a text names.
const maxTold = 5

// Set is a key set of which only usable public keys are left.
type Set struct {
	// Keys is the set as JSON, as Envoy reads it. It depends on the keys alone: not on their order, on members that are
	// not read, or on spaces. Private members are never in it. Empty if no key is usable.
	Keys []byte
	// Count is the number of Keys.
	Count int
	// Dropped are the keys that cannot be used, in the order of the document.
	Dropped []Dropped
}

// Dropped is a key that cannot be used.
type Dropped struct {
	// Place is "keys[2]", or the name of a certificate.
	Place string
	// ID is the key's kid; empty if it has none that can be read.
	ID string
	// Reason says what is the matter.
	Reason string
}

// String names the key and says why it was dropped.
func (d Dropped) String() string {
	if d.ID != "" {
		return fmt.Sprintf("%s (kid %q): %s", d.Place, d.ID, d.Reason)
	}
	return d.Place + ": " + d.Reason
}

// Told lists dropped keys in a sentence, the first few by name; "" if there are none.
func Told(dropped []Dropped) string {
	var out []string
	for _, d := range dropped[:min(len(dropped), maxTold)] {
		out = append(out, d.String())
	}
	if more := len(dropped) - len(out); more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, "; ")
}

// ErrNoKeys is wrapped by the error of a document that has no usable key.
var ErrNoKeys = errors.New("no usable key")

// Parse reads a key set: a JSON object with the member "keys", one of names and PEM certificates, as some issuers
// publish, or a single key, as Istio takes it in a RequestAuthentication. Of several keys that are equal one is kept.
// The error wraps ErrNoKeys and says why if no key is left; what was dropped is in the Set then, too.
func Parse(raw []byte) (Set, error) {
	if len(raw) > MaxBytes {
		return Set{}, fmt.Errorf("%w: the document has %d bytes; at most %d are read", ErrNoKeys, len(raw), MaxBytes)
	}
	var document map[string]json.RawMessage
	if err := json.Unmarshal(raw, &document); err != nil {
		return Set{}, fmt.Errorf("%w: the document is no JSON object: %w", ErrNoKeys, err)
	}
	var set Set
	var keys []key
	keep := func(place string, k key, err error) {
		if err != nil {
			set.Dropped = append(set.Dropped, Dropped{Place: place, ID: k.ID, Reason: err.Error()})
			return
		}
		keys = append(keys, k)
	}
	list, isSet := document["keys"]
	switch {
	case isSet:
		var all []json.RawMessage
		if err := json.Unmarshal(list, &all); err != nil {
			return Set{}, fmt.Errorf("%w: keys is no list", ErrNoKeys)
		}
		if len(all) > MaxKeys {
			return Set{}, fmt.Errorf("%w: the set has %d keys; at most %d are read", ErrNoKeys, len(all), MaxKeys)
		}
		for i, one := range all {
			k, err := parseKey(one)
			keep(fmt.Sprintf("keys[%d]", i), k, err)
		}
	case document["kty"] != nil:
		k, err := parseKey(raw)
		keep("the key", k, err)
	case len(document) > MaxKeys:
		return Set{}, fmt.Errorf("%w: the document has %d members; at most %d are read", ErrNoKeys, len(document), MaxKeys)
	default:
		for _, name := range slices.Sorted(maps.Keys(document)) {
			k, certificate, err := parseCertificate(name, document[name])
			if !certificate {
				return Set{}, fmt.Errorf("%w: the document has no member keys", ErrNoKeys)
			}
			keep(fmt.Sprintf("certificate %q", clip(name)), k, err)
		}
	}
	if len(keys) == 0 {
		if told := Told(set.Dropped); told != "" {
			return set, fmt.Errorf("%w: %s", ErrNoKeys, told)
		}
		return set, fmt.Errorf("%w: the set is empty", ErrNoKeys)
	}
	var err error
	set.Keys, set.Count, err = canonical(keys)
	return set, err
}

// canonical writes keys in one order, each once.
func canonical(keys []key) ([]byte, int, error) {
	var each [][]byte
	slices.SortFunc(keys, func(a, b key) int { return cmp.Compare(a.ID, b.ID) })
	for _, k := range keys {
		one, err := json.Marshal(k)
		if err != nil {
			return nil, 0, err
		}
		each = append(each, one)
	}
	slices.SortStableFunc(each, bytes.Compare)
	each = slices.CompactFunc(each, bytes.Equal)
	return slices.Concat([]byte(`{"keys":[`), bytes.Join(each, []byte(",")), []byte(`]}`)), len(each), nil
}

// clip shortens a name that somebody else has chosen.
func clip(name string) string { return name[:min(len(name), 64)] }
