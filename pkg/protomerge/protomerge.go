// Package protomerge merges protobuf messages as Istio merges an EnvoyFilter's patch into a resource: Rules.Merge.
// Callers are xds-server's translate/patch, and node-agent for patches of the bootstrap.
package protomerge

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

var deterministic = proto.MarshalOptions{Deterministic: true}

// Rules say how to merge. As in protobuf, set scalars replace, messages are merged and lists are appended. Beyond that,
// the contents of two Anys of one type are merged, and a duration or a wrapped scalar is replaced as one value.
type Rules struct {
	// ReplaceLists replaces lists instead of appending to them.
	ReplaceLists bool
}

// Merge merges from into into, a message of the same type, and does not change from. An error means that a packed
// message is of a type that this program does not know; into is then half merged and must not be used.
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

// inside merges two messages; two Anys of one type by their contents.
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

// entries sets the entries of a map; values that are Anys of one type are merged by their contents.
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

// isValue reports whether a message counts as one value: a duration, a timestamp or a wrapped scalar.
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
