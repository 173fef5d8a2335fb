// Package pack puts messages into google.protobuf.Any with bytes that depend on their content alone.
package pack

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

var deterministic = proto.MarshalOptions{Deterministic: true}

// Any packs m. Equal messages give equal bytes, maps included. It panics if m cannot be encoded, which takes a string that is not UTF-8:
// every message of a user was decoded from protobuf or JSON before, and both refuse such strings.
func Any(m proto.Message) *anypb.Any {
	out := &anypb.Any{}
	if err := anypb.MarshalFrom(out, m, deterministic); err != nil {
		panic(fmt.Sprintf("pack %T: %v", m, err))
	}
	return out
}

// Checked packs a message that carries settings of a user. Validation of the resource around it does not look inside an Any, hence the check
// here.
func Checked(m interface {
	proto.Message
	ValidateAll() error
}) (*anypb.Any, error) {
	if err := m.ValidateAll(); err != nil {
		return nil, err
	}
	return Any(m), nil
}
