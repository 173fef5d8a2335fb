// Package decode makes objects of Istio's and Kubernetes' types from generic ones, strictly: it reports what does not
// fit the schema of the type, such as an unknown field, a wrong type or a value that an enum does not have, each with
// its path, its line and what may be meant. It knows no rule of any kind; package validate calls it, and then the
// rules, which add to the same Verdict. A field that is refused hides no mistake in others: Spec and Body leave it out
// and decode the rest (repair.go).
package decode

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	kjson "sigs.k8s.io/json"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Identify reads an object's key and API version as far as they can be read: Kind and Name of the key may be empty.
func Identify(tree map[string]any) (key object.Key, apiVersion string) {
	apiVersion, _ = tree["apiVersion"].(string)
	key.Kind, _ = tree["kind"].(string)
	if group, _, ok := strings.Cut(apiVersion, "/"); ok {
		key.Group = group
	}
	meta, _ := tree["metadata"].(map[string]any)
	key.Name, _ = meta["name"].(string)
	if !kinds.ClusterScoped(key.Group, key.Kind) {
		key.Namespace, _ = meta["namespace"].(string)
		key.Namespace = cmp.Or(key.Namespace, kinds.DefaultNamespace)
	}
	return key, apiVersion
}

// Decoder decodes the parts of one object, and reports to the Verdict.
type Decoder struct {
	*Verdict
	// Beside has fields that users may write although a message does not have them, by the message's name. The caller
	// has taken them out of the tree.
	Beside map[protoreflect.FullName]string
	// Lenient is true for an object of an API server whose definitions may be newer than this release: an unknown field
	// is left out with a warning.
	Lenient bool
	// packed is true within the value of an EnvoyFilter, see Packed.
	packed bool
	// meant are the fields that misspelt names stand for, see repair.
	meant []string
}

// Spec decodes a tree strictly into a message of a kind of Istio. It returns false if no field is left to check.
func (d *Decoder) Spec(path, kind string, tree any, into proto.Message) (usable bool) {
	before := len(d.Problems)
	d.message(path, tree, into.ProtoReflect().Descriptor())
	refused := len(d.Problems) > before
	tree, usable = d.repair(path, tree, into.ProtoReflect().Descriptor(), before)
	if !usable {
		return false
	}
	js, err := manifest.AppendJSON(nil, tree)
	if err == nil {
		// The types' own decoder, as in Istio: it accepts durations in Go's form ("10ms") as well as in protobuf's.
		err = json.Unmarshal(js, into)
	}
	if err != nil && !refused {
		d.Fail(path, nil, "cannot be decoded: "+cleanProtoError(err), "see Istio's reference of "+kind)
	}
	return err == nil
}

// cleanProtoError removes the position in the re-encoded JSON and the spaces that protobuf varies on purpose.
func cleanProtoError(err error) string {
	msg := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\u00a0", " ")), " ")
	msg = strings.TrimPrefix(msg, "proto: ")
	if strings.HasPrefix(msg, "(line ") {
		if i := strings.Index(msg, "): "); i >= 0 {
			msg = msg[i+3:]
		}
	}
	return msg
}

// Body decodes the whole document strictly into a Go type of a kind of Kubernetes. It returns false if there is nothing
// to check.
func (d *Decoder) Body(kind string, into any) (usable bool) {
	if len(d.Problems) > 0 {
		return d.BodyOf(kind, d.Doc.Tree, into)
	}
	js, err := d.Doc.JSON()
	return d.body(kind, d.Doc.Tree, js, err, into)
}

// BodyOf is Body for a tree that has been made of the document's.
func (d *Decoder) BodyOf(kind string, tree map[string]any, into any) (usable bool) {
	if len(d.Problems) > 0 {
		// Problems of the metadata have been reported.
		tree = maps.Clone(tree)
		delete(tree, "metadata")
	}
	js, err := manifest.AppendJSON(nil, tree)
	return d.body(kind, tree, js, err, into)
}

// body decodes a tree, of which js is the encoding unless there is an error.
func (d *Decoder) body(kind string, tree map[string]any, js []byte, err error, into any) (usable bool) {
	if err != nil {
		d.Fail("", nil, "cannot be decoded: "+err.Error(), "")
		return false
	}
	strict, err := kjson.UnmarshalStrict(js, into)
	if err != nil {
		d.Fail("", nil, "cannot be decoded: "+strings.TrimPrefix(err.Error(), "json: "), "see Kubernetes' reference of "+kind)
		return false
	}
	before := len(d.Problems)
	for _, s := range strict {
		d.kubernetesField(s.Error(), into, tree)
	}
	return d.leaveOut("", before)
}

// Top are the members of an object of Istio's kinds.
var Top = []string{"apiVersion", "kind", "metadata", "spec", "status"}

// Members reports the members of the object at a path that are not known.
func (d *Decoder) Members(path string, m map[string]any, known []string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(known, name) {
			d.unknown(path, name, known, m)
		}
	}
}

// unknown reports a field that the schema does not have. If the field that the name may stand for is not among beside,
// problems about that field are left out. In the value of an EnvoyFilter it is a warning, as in Istio: the field may be
// of another release of Envoy.
func (d *Decoder) unknown(path, name string, known []string, beside map[string]any) {
	at := manifest.Field(path, name)
	if d.packed || d.Lenient {
		d.Remark(at, fmt.Sprintf("is left out: unknown field %q", name), Suggest(name, known))
		return
	}
	if near := nearest.Name(name, known); near != "" && beside[near] == nil {
		d.meant = append(d.meant, manifest.Field(path, near))
	}
	d.Fail(at, nil, fmt.Sprintf("unknown field %q", name), Suggest(name, known))
}

// Suggest is a remedy for an unknown name: the known one that it may stand for, or all of them.
func Suggest(name string, known []string) string {
	if near := nearest.Name(name, known); near != "" {
		return "did you mean " + strconv.Quote(near) + "?"
	}
	return "remove it, or use one of " + strings.Join(known, ", ")
}

// TypeName says what a value of a tree is.
func TypeName(v any) string {
	switch v.(type) {
	case nil:
		return "nothing"
	case string:
		return "a string"
	case bool:
		return "true or false"
	case int64, float64:
		return "a number"
	case []any:
		return "a list"
	default:
		return "an object"
	}
}

// ParseTime reads a point in time as Kubernetes writes it.
func ParseTime(s string) (time.Time, error) { return time.Parse(time.RFC3339, s) }
