package validate

import (
	"crypto/sha256"
	"encoding/json"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Digest hashes an object and its location.
func Digest(tree map[string]any, location string) [16]byte {
	js, err := manifest.AppendJSON(nil, tree)
	if err != nil {
		return [16]byte{}
	}
	return digest(js, location)
}

func digest(js []byte, location string) [16]byte {
	h := sha256.New()
	h.Write(js)
	h.Write([]byte{0})
	h.Write([]byte(location))
	return [16]byte(h.Sum(nil)[:16])
}

// digestOf hashes what an object keeps, so that a change of another part of the original object changes nothing. The
// encoding of a Secret is "(redacted)", its version stands for its content.
func digestOf(o *object.Object) ([16]byte, error) {
	version := ""
	if c, ok := o.Body.(*object.Credential); ok {
		version = c.Version()
	}
	h := sha256.New()
	for _, part := range []any{o.Key, o.APIVersion, o.Labels, o.Annotations, o.Created.Unix(), o.Generation, version} {
		if err := json.NewEncoder(h).Encode(part); err != nil {
			return [16]byte{}, err
		}
	}
	if m, ok := o.Body.(interface{ Marshal() ([]byte, error) }); ok {
		js, err := m.Marshal() // Kubernetes' types write maps in the order of their keys
		if err != nil {
			return [16]byte{}, err
		}
		h.Write(js)
	} else if err := json.NewEncoder(h).Encode(o.Body); err != nil {
		return [16]byte{}, err
	}
	return [16]byte(h.Sum(nil)[:16]), nil
}
