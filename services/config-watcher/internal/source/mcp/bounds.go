package mcp

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/services/config-watcher/internal/object"
)

// boundsRemedy is what to do about an object that Config.Namespaces keeps out.
const boundsRemedy = "correct it at the server, or add the namespace to --config-source-namespaces"

// outside reports whether an object is of a namespace that the source may not fill.
func (s *Source) outside(key object.Key) bool {
	return len(s.cfg.Namespaces) > 0 && !slices.Contains(s.cfg.Namespaces, key.Namespace)
}

// claims returns why an object is refused that lets servers or clients of other namespaces count as expected ones; nil
// if it does not. A source without bounds is believed as the API server is.
func (s *Source) claims(o *object.Object) object.Problems {
	spec, ok := o.Body.(proto.Message)
	if len(s.cfg.Namespaces) == 0 || !ok {
		return nil
	}
	for _, name := range subjectAltNames(spec.ProtoReflect()) {
		if !strings.HasPrefix(name, "spiffe://") {
			continue
		}
		namespace, _, ok := auth.ParseWorkload(name)
		if !ok || !slices.Contains(s.cfg.Namespaces, namespace) {
			return object.Problems{{Object: o.Key.String(), Field: "subjectAltNames", Value: object.Quote(name),
				Reason: "names an identity outside the namespaces that this source may fill", Remedy: boundsRemedy}}
		}
	}
	return nil
}

// subjectAltNames are those of all messages in m: of ServiceEntries, of TLS settings towards servers, and of those for
// clients.
func subjectAltNames(m protoreflect.Message) (out []string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, e protoreflect.Value) bool {
					out = append(out, subjectAltNames(e.Message())...)
					return true
				})
			}
		case f.IsList():
			for i := range v.List().Len() {
				switch e := v.List().Get(i); {
				case f.Message() != nil:
					out = append(out, subjectAltNames(e.Message())...)
				case f.Name() == "subject_alt_names":
					out = append(out, e.String())
				}
			}
		case f.Message() != nil:
			out = append(out, subjectAltNames(v.Message())...)
		}
		return true
	})
	return out
}

// leftOut names the objects of a list that are of other namespaces; nil if there are none.
func leftOut(first object.Key, n int) object.Problems {
	if n == 0 {
		return nil
	}
	reason := fmt.Sprintf("is of a namespace that this source may not fill: it is left out, as are %d more of its list", n-1)
	return object.Problems{{Object: first.String(), Reason: reason, Remedy: boundsRemedy}}
}
