// Package rawgrpc passes messages of gRPC as they are: programs here do not know each other's types.
package rawgrpc

import (
	"bytes"
	"errors"
)

// Codec is an encoding.Codec whose messages are *[]byte.
type Codec struct{}

var errRaw = errors.New("a message is a *[]byte here")

// Marshal implements encoding.Codec.
func (Codec) Marshal(v any) ([]byte, error) {
	if raw, ok := v.(*[]byte); ok {
		return *raw, nil
	}
	return nil, errRaw
}

// Unmarshal implements encoding.Codec.
func (Codec) Unmarshal(data []byte, v any) error {
	raw, ok := v.(*[]byte)
	if !ok {
		return errRaw
	}
	*raw = bytes.Clone(data)
	return nil
}

// Name implements encoding.Codec.
func (Codec) Name() string { return "proto" }
