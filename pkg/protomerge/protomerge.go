// Package protomerge merges protobuf messages as Istio's EnvoyFilters do.
package protomerge

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

var deterministic = proto.MarshalOptions{Deterministic: true}

// Rules of a merge: what from sets replaces a scalar, goes into a message, and is appended to a list. Beyond protobuf's own rules, what is packed
// in an Any is merged inside if both are of one type, and a duration or a wrapped scalar is one value, which is replaced.
type Rules struct {
	// ReplaceLists has a list replaced.
	ReplaceLists bool
}

// Merge changes into, a message of the same type; from is only read. An error says which packed message is of a type that this program does not
// know; into is of no use then.
func (m Rules) Merge(into, from proto.Message) error {
	return m.message(into.ProtoReflect(), from.ProtoReflect())
}

func (m Rules) message(into, from protoreflect.Message) error {
	var err error
	from.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			err = m.entries(fd, into.Mutable(fd).Map(), v.Map())
		case fd.IsList():
			if m.ReplaceLists {
				into.Clear(fd)
			}
			list := into.Mutable(fd).List()
			for i := range v.List().Len() {
				list.Append(cloned(fd, v.List().Get(i)))
			}
		case fd.Message() != nil && into.Has(fd) && !isValue(fd.Message()):
			err = m.inside(into.Mutable(fd).Message(), v.Message())
		default:
			into.Set(fd, cloned(fd, v))
		}
		return err == nil
	})
	return err
}

// inside merges messages, and what is packed if both are an Any.
func (m Rules) inside(into, from protoreflect.Message) error {
	a, ok := into.Interface().(*anypb.Any)
	if !ok {
		return m.message(into, from)
	}
	b := from.Interface().(*anypb.Any)
	if a.MessageName() != b.MessageName() {
		a.TypeUrl, a.Value = b.GetTypeUrl(), b.GetValue()
		return nil
	}
	inner, err := a.UnmarshalNew()
	if err != nil {
		return fmt.Errorf("%s: %w", a.GetTypeUrl(), err)
	}
	more, err := b.UnmarshalNew()
	if err != nil {
		return fmt.Errorf("%s: %w", b.GetTypeUrl(), err)
	}
	if err := m.message(inner.ProtoReflect(), more.ProtoReflect()); err != nil {
		return err
	}
	return anypb.MarshalFrom(a, inner, deterministic)
}

// entries sets the entries of a map; of those that are an Any what is packed is merged.
func (m Rules) entries(fd protoreflect.FieldDescriptor, into, from protoreflect.Map) error {
	var err error
	from.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		d := fd.MapValue().Message()
		if d != nil && d.FullName() == "google.protobuf.Any" && into.Has(k) {
			err = m.inside(into.Mutable(k).Message(), v.Message())
		} else {
			into.Set(k, cloned(fd.MapValue(), v))
		}
		return err == nil
	})
	return err
}

func cloned(fd protoreflect.FieldDescriptor, v protoreflect.Value) protoreflect.Value {
	if fd.Message() == nil {
		return v
	}
	return protoreflect.ValueOfMessage(proto.Clone(v.Message().Interface()).ProtoReflect())
}

// isValue reports whether a message is one value: a duration, a point in time or a wrapped scalar.
func isValue(d protoreflect.MessageDescriptor) bool {
	switch d.FullName() {
	case "google.protobuf.Duration", "google.protobuf.Timestamp",
		"google.protobuf.BoolValue", "google.protobuf.StringValue", "google.protobuf.BytesValue", "google.protobuf.DoubleValue",
		"google.protobuf.FloatValue", "google.protobuf.Int32Value", "google.protobuf.Int64Value", "google.protobuf.UInt32Value",
		"google.protobuf.UInt64Value":
		return true
	default:
		return false
	}
}
