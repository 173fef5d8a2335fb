// Package typedconfig packs messages into the google.protobuf.Any of Envoy's typed_config fields. The bytes depend on
// the content alone.
package typedconfig

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

var deterministic = proto.MarshalOptions{Deterministic: true}

// Any packs m. Equal messages give equal bytes, maps included. It panics if m cannot be encoded, which happens only for
// a string that is not UTF-8; decoding a user's message from protobuf or JSON rejects such strings.
func Any(m proto.Message) *anypb.Any {
	out := &anypb.Any{}
	if err := anypb.MarshalFrom(out, m, deterministic); err != nil {
		panic(fmt.Sprintf("pack %T: %v", m, err))
	}
	return out
}

// Checked packs a message with settings of a user after checking its rules. The validation of the resource around it
// does not look inside an Any.
func Checked(m interface {
	proto.Message
	ValidateAll() error
}) (*anypb.Any, error) {
	if err := m.ValidateAll(); err != nil {
		return nil, err
	}
	return Any(m), nil
}
