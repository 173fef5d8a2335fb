// Package mcp has the form in which Istio's objects travel by MCP over xDS: an istio.mcp.v1alpha1.Resource for each, of
// types such as networking.istio.io/v1/ServiceEntry. Encode and Decode convert objects, for the client (package
// source/mcp) and for the server (package mcpserver).
package mcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// ResourceType is the type of each entry of a list.
const ResourceType = "type.googleapis.com/istio.mcp.v1alpha1.Resource"

// Kinds are those that travel: Istio's.
func Kinds() []*kinds.Kind {
	var out []*kinds.Kind
	for _, k := range kinds.All() {
		if k.NewSpec != nil {
			out = append(out, kinds.Find(k.Group, k.Name))
		}
	}
	return out
}

// URL is the type of a kind's version, such as networking.istio.io/v1/ServiceEntry.
func URL(k *kinds.Kind, version string) string { return k.Group + "/" + version + "/" + k.Name }

// ParseURL is the inverse of URL; nil for what is not read.
func ParseURL(url string) *kinds.Kind {
	parts := strings.Split(url, "/")
	if len(parts) != 3 {
		return nil
	}
	k := kinds.Find(parts[0], parts[2])
	if k == nil || k.NewSpec == nil || !slices.Contains(k.Versions, parts[1]) {
		return nil
	}
	return k
}

// Encode makes the content of an Any of ResourceType; equal objects have equal bytes. namespace stands for that of an
// object without one: a hold for the whole mesh.
func Encode(o *object.Object, namespace string) (raw []byte, version string, err error) {
	spec, ok := o.Body.(proto.Message)
	if !ok {
		return nil, "", fmt.Errorf("%s: %T does not travel by MCP", o.Key, o.Body)
	}
	if o.Key.Namespace != "" {
		namespace = o.Key.Namespace
	}
	options := proto.MarshalOptions{Deterministic: true}
	body := &anypb.Any{}
	if err := anypb.MarshalFrom(body, spec, options); err != nil {
		return nil, "", fmt.Errorf("%s: %w", o.Key, err)
	}
	m := &mcpv1alpha1.Resource{
		Metadata: &mcpv1alpha1.Metadata{
			Name: namespace + "/" + o.Key.Name, CreateTime: timestamppb.New(o.Created), Labels: o.Labels, Annotations: o.Annotations,
		},
		Body: body,
	}
	if raw, err = options.Marshal(m); err != nil {
		return nil, "", fmt.Errorf("%s: %w", o.Key, err)
	}
	sum := sha256.Sum256(raw)
	m.Metadata.Version = hex.EncodeToString(sum[:8])
	raw, err = options.Marshal(m)
	return raw, m.Metadata.Version, err
}

// Decoded is one entry of a list.
type Decoded struct {
	// Key has a name unless the entry cannot be told from others.
	Key object.Key
	// Object is nil if the entry cannot be used; Problems say why, and Hold closes what a broken security object
	// selects.
	Object   *object.Object
	Problems object.Problems
	Hold     *hold.Hold
}

// maxDepth bounds the nesting of an object's messages.
const maxDepth = 200

// remedy of what only the server can repair.
const remedy = "correct it at the server"

// Decode reads an entry of a list of a kind. The caller sets the object's Source.
func Decode(k *kinds.Kind, entry *anypb.Any) Decoded {
	key := object.Key{Group: k.Group, Kind: k.Name}
	refuse := func(field, value, reason string) Decoded {
		d := Decoded{Key: key, Problems: object.Problems{{Object: key.String(), Field: field, Value: value, Reason: reason, Remedy: remedy}}}
		if h, ok := hold.OfKey(key, ""); ok && key.Name != "" {
			d.Hold = &h
		}
		return d
	}
	m := &mcpv1alpha1.Resource{}
	if entry.GetTypeUrl() != ResourceType {
		return refuse("", object.Quote(entry.GetTypeUrl()), "is no "+ResourceType)
	}
	decode := proto.UnmarshalOptions{RecursionLimit: maxDepth}
	if err := decode.Unmarshal(entry.GetValue(), m); err != nil {
		return refuse("", "", "cannot be decoded, as if it were cut off: "+err.Error())
	}
	meta := m.GetMetadata()
	namespace, name, ok := strings.Cut(meta.GetName(), "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return refuse("metadata.name", object.Quote(meta.GetName()), "is not namespace/name")
	}
	key.Namespace, key.Name = namespace, name
	if n := len(entry.GetValue()); n > manifest.MaxDocumentBytes {
		return refuse("", "", fmt.Sprintf("has %d bytes, more than %d", n, manifest.MaxDocumentBytes))
	}
	spec := k.NewSpec()
	if !sameMessage(m.GetBody().GetTypeUrl(), spec) {
		return refuse("body", object.Quote(m.GetBody().GetTypeUrl()), "is no "+string(spec.ProtoReflect().Descriptor().FullName()))
	}
	if err := decode.Unmarshal(m.GetBody().GetValue(), spec); err != nil {
		return refuse("body", "", "cannot be decoded: "+err.Error())
	}
	if at := unknownField(spec.ProtoReflect()); at != "" {
		return refuse("body", "", "has fields in "+at+" that this version does not know")
	}
	doc, err := document(k, key, meta, spec)
	if err != nil {
		return refuse("body", "", err.Error())
	}
	o, err := validate.Document(doc)
	if err == nil {
		return Decoded{Key: key, Object: o}
	}
	d := refuse("", "", err.Error())
	if problems, ok := errors.AsType[object.Problems](err); ok {
		d.Problems = problems
	}
	if h := hold.Of(doc); len(h) > 0 {
		d.Hold = &h[0]
	}
	return d
}

// sameMessage reports whether a type is that of a spec. Versions of Istio's messages have names of their own, and the
// same fields.
func sameMessage(url string, spec proto.Message) bool {
	name := protoreflect.FullName(url[strings.LastIndexByte(url, '/')+1:])
	want := spec.ProtoReflect().Descriptor().FullName()
	group := func(n protoreflect.FullName) protoreflect.FullName { return n.Parent().Parent() }
	return name == want || name.IsValid() && name.Name() == want.Name() && group(name) == group(want)
}

// unknownField names a message that has fields which its type does not know; "" if none has.
func unknownField(m protoreflect.Message) (at string) {
	if len(m.GetUnknown()) > 0 {
		return string(m.Descriptor().FullName())
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, e protoreflect.Value) bool {
					at = unknownField(e.Message())
					return at == ""
				})
			}
		case f.Message() == nil:
		case f.IsList():
			for i := 0; i < v.List().Len() && at == ""; i++ {
				at = unknownField(v.List().Get(i).Message())
			}
		default:
			at = unknownField(v.Message())
		}
		return at == ""
	})
	return at
}

// document writes what has arrived as a manifest, for the checks that every object passes.
func document(k *kinds.Kind, key object.Key, m *mcpv1alpha1.Metadata, spec proto.Message) (*manifest.Document, error) {
	meta := map[string]any{"namespace": key.Namespace, "name": key.Name}
	if len(m.GetLabels()) > 0 {
		meta["labels"] = m.GetLabels()
	}
	if len(m.GetAnnotations()) > 0 {
		meta["annotations"] = m.GetAnnotations()
	}
	// A server that knows no time sends none, Go's zero, or that of Unix.
	if t := m.GetCreateTime(); t.IsValid() && !t.AsTime().IsZero() && t.AsTime().UnixNano() != 0 {
		meta["creationTimestamp"] = t.AsTime().Format(time.RFC3339Nano)
	}
	js, err := json.Marshal(map[string]any{"apiVersion": k.Canonical(), "kind": k.Name, "metadata": meta, "spec": spec})
	if err != nil {
		return nil, err
	}
	doc := &manifest.Document{}
	if err := kjson.Unmarshal(js, &doc.Tree); err != nil {
		return nil, err
	}
	return doc, nil
}

// Equal reports whether two objects say the same, wherever they come from.
func Equal(a, b *object.Object) bool {
	x, _, errX := Encode(a, "")
	y, _, errY := Encode(b, "")
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
