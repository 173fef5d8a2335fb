// Package envoyapi knows the messages of Envoy's API that an EnvoyFilter may patch: New and Decode make the message of
// a patch, Operation says what a patch does, Validate checks a message and all that is packed in it. xds-server applies
// patches with it. config-watcher, which knows nothing else of Envoy, uses it for one purpose: to check the match, the
// operation and the value of an EnvoyFilter's patches. It knows the types of the go-control-plane release that Fairlead
// is built with, without those of Envoy's contrib builds and of its v2 API.
package envoyapi

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	manager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	// Istio decodes with jsonpb, which accepts durations in Go's form; its successor does not.
	"github.com/golang/protobuf/jsonpb" //nolint:staticcheck,depguard // see above
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"
)

// New returns an empty message of the type that patches of a kind carry; nil for kinds that have none.
func New(applyTo networking.EnvoyFilter_ApplyTo) proto.Message {
	switch applyTo {
	case networking.EnvoyFilter_LISTENER:
		return &listener.Listener{}
	case networking.EnvoyFilter_FILTER_CHAIN:
		return &listener.FilterChain{}
	case networking.EnvoyFilter_NETWORK_FILTER:
		return &listener.Filter{}
	case networking.EnvoyFilter_LISTENER_FILTER:
		return &listener.ListenerFilter{}
	case networking.EnvoyFilter_HTTP_FILTER:
		return &manager.HttpFilter{}
	case networking.EnvoyFilter_ROUTE_CONFIGURATION:
		return &route.RouteConfiguration{}
	case networking.EnvoyFilter_VIRTUAL_HOST:
		return &route.VirtualHost{}
	case networking.EnvoyFilter_HTTP_ROUTE:
		return &route.Route{}
	case networking.EnvoyFilter_CLUSTER:
		return &cluster.Cluster{}
	case networking.EnvoyFilter_EXTENSION_CONFIG:
		return &core.TypedExtensionConfig{}
	case networking.EnvoyFilter_BOOTSTRAP:
		return &bootstrap.Bootstrap{}
	default:
		return nil
	}
}

// AgentsOwn lists the fields set in a bootstrap that only an agent may set, because agent and proxy reach each other by
// them.
func AgentsOwn(m proto.Message) []string {
	b, _ := m.(*bootstrap.Bootstrap)
	var own []string
	if b.GetNode() != nil {
		own = append(own, "node")
	}
	if b.GetAdmin().GetAddress() != nil {
		own = append(own, "admin.address")
	}
	if b.GetDynamicResources() != nil {
		own = append(own, "dynamic_resources")
	}
	return own
}

// Decode decodes a patch's value as Istio does: it drops unknown fields and fails for an unknown type. A TypedStruct,
// which carries a message of a named type as plain JSON, becomes that message.
func Decode(applyTo networking.EnvoyFilter_ApplyTo, value *structpb.Struct) (proto.Message, error) {
	m := New(applyTo)
	if m == nil {
		return nil, fmt.Errorf("%s patches carry nothing that can be read", applyTo)
	}
	if err := fromStruct(value, m); err != nil {
		return nil, err
	}
	return m, nil
}

func fromStruct(value *structpb.Struct, into proto.Message) error {
	js, err := value.MarshalJSON()
	if err != nil {
		return err
	}
	if err := (&jsonpb.Unmarshaler{AllowUnknownFields: true}).Unmarshal(bytes.NewReader(js), protoadapt.MessageV1Of(into)); err != nil {
		return errors.New(clean(err))
	}
	return Rewrite(into, untypedStruct)
}

// clean removes from an error of protobuf's decoder the position in the re-encoded JSON and the deliberately unstable
// spaces.
func clean(err error) string {
	msg := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\u00a0", " ")), " ")
	msg = strings.TrimPrefix(msg, "proto: ")
	if strings.HasPrefix(msg, "(line ") || strings.HasPrefix(msg, "syntax error (line ") {
		if _, rest, ok := strings.Cut(msg, "): "); ok {
			msg = rest
		}
	}
	return msg
}

// typedStruct is the interface of both versions of TypedStruct.
type typedStruct interface {
	GetTypeUrl() string
	GetValue() *structpb.Struct
}

// IsTypedStruct reports whether a message type carries another one as JSON, in its fields type_url and value.
func IsTypedStruct(name protoreflect.FullName) bool {
	return name == "xds.type.v3.TypedStruct" || name == "udpa.type.v1.TypedStruct"
}

// untypedStruct returns the message that a TypedStruct carries, and any other message as it is.
func untypedStruct(m proto.Message) (proto.Message, error) {
	t, ok := m.(typedStruct)
	if !ok || !IsTypedStruct(m.ProtoReflect().Descriptor().FullName()) {
		return m, nil
	}
	inner, err := protoregistry.GlobalTypes.FindMessageByURL(t.GetTypeUrl())
	if err != nil {
		return nil, fmt.Errorf("unknown type %q", t.GetTypeUrl())
	}
	out := inner.New().Interface()
	value := t.GetValue()
	if value == nil {
		value = &structpb.Struct{}
	}
	return out, fromStruct(value, out)
}

var deterministic = proto.MarshalOptions{Deterministic: true}

// Rewrite replaces each message that is packed in an Any of m, at any depth, by the result of f, which may change its
// argument. An Any whose content stays the same keeps its bytes.
func Rewrite(m proto.Message, f func(proto.Message) (proto.Message, error)) error {
	return eachAny(m.ProtoReflect(), func(a *anypb.Any) error {
		inner, err := a.UnmarshalNew()
		if err != nil {
			return fmt.Errorf("%s: %w", a.GetTypeUrl(), err)
		}
		before, err := deterministic.Marshal(inner)
		if err != nil {
			return err
		}
		if inner, err = f(inner); err != nil {
			return err
		}
		if err := Rewrite(inner, f); err != nil {
			return err
		}
		packed := &anypb.Any{}
		if err := anypb.MarshalFrom(packed, inner, deterministic); err != nil {
			return err
		}
		if packed.GetTypeUrl() != a.GetTypeUrl() || string(packed.GetValue()) != string(before) {
			a.TypeUrl, a.Value = packed.GetTypeUrl(), packed.GetValue()
		}
		return nil
	})
}

// Validate validates a message, and all messages that are packed in it, by the rules of their schemas. The error names
// the field.
func Validate(m proto.Message) error {
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			return err
		}
	}
	return eachAny(m.ProtoReflect(), func(a *anypb.Any) error {
		inner, err := a.UnmarshalNew()
		if err != nil {
			return fmt.Errorf("%s: %w", a.GetTypeUrl(), err)
		}
		return Validate(inner)
	})
}

// eachAny calls f for each Any of a message, not for those inside of an Any.
func eachAny(m protoreflect.Message, f func(*anypb.Any) error) error {
	if a, ok := m.Interface().(*anypb.Any); ok {
		return f(a)
	}
	var err error
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() == nil {
				return true
			}
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				err = eachAny(v.Message(), f)
				return err == nil
			})
		case fd.Message() == nil:
		case fd.IsList():
			for i := 0; i < v.List().Len() && err == nil; i++ {
				err = eachAny(v.List().Get(i).Message(), f)
			}
		default:
			err = eachAny(v.Message(), f)
		}
		return err == nil
	})
	return err
}
