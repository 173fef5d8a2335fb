// Package describe says what of a mesh concerns a Pod or a Service: which policies apply to the workload, which mode of
// mutual TLS its ports have and which one clients use, where they disagree, and by which Gateways a Service is reached.
// It is a function of objects; `fairlead describe` adds what proxies and xds-servers say, and prints it.
package describe

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Object is an object in force.
type Object struct {
	Kind, Namespace, Name string
	Labels                map[string]string
	Created               time.Time
	// Location is where a file has it, "mesh.yaml:12"; empty for others.
	Location string
	// Spec is its `spec` as JSON.
	Spec json.RawMessage
	// Conditions are those of an object of the Gateway API, and Parents those for each parent that the mesh serves, as
	// "Gateway infra/edge, section web".
	Conditions []Condition
	Parents    map[string][]Condition
}

// Condition is one of an object's status.
type Condition struct{ Type, Status, Reason, Message string }

// Parse reads an object's manifest, as config-watcher shows it.
func Parse(manifest []byte, location string) (Object, error) {
	var tree struct {
		Kind     string
		Metadata struct {
			Namespace, Name   string
			Labels            map[string]string
			CreationTimestamp *time.Time
		}
		Spec json.RawMessage
		Data map[string]string
	}
	if err := json.Unmarshal(manifest, &tree); err != nil {
		return Object{}, fmt.Errorf("manifest of an object: %w", err)
	}
	o := Object{Kind: tree.Kind, Namespace: tree.Metadata.Namespace, Name: tree.Metadata.Name, Labels: tree.Metadata.Labels,
		Location: location, Spec: tree.Spec}
	if tree.Metadata.CreationTimestamp != nil {
		o.Created = *tree.Metadata.CreationTimestamp
	}
	return o, nil
}

// ID is "<namespace>/<name>".
func (o Object) ID() string { return o.Namespace + "/" + o.Name }

// older sorts objects as the mesh does where one of several counts: the oldest first; those without a time, of files,
// last.
func older(a, b Object) int {
	switch {
	case a.Created.IsZero() != b.Created.IsZero():
		if a.Created.IsZero() {
			return 1
		}
		return -1
	}
	return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// decode reads a spec. Fields of a later version are passed over: config-watcher has validated the object.
func decode[M proto.Message](o Object, into M) (M, error) {
	if len(o.Spec) == 0 {
		return into, nil
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(o.Spec, into); err != nil {
		return into, fmt.Errorf("%s %s: %w", o.Kind, o.ID(), err)
	}
	return into, nil
}

// Mesh has the objects and settings that descriptions are made from.
type Mesh struct {
	// RootNamespace has the policies of the whole mesh; Domain is the DNS suffix of Services.
	RootNamespace, Domain string
	Objects               []Object
}

func (m *Mesh) of(kind string) (list []Object) {
	for _, o := range m.Objects {
		if o.Kind == kind {
			list = append(list, o)
		}
	}
	slices.SortStableFunc(list, older)
	return list
}

// Workload is what selectors look at.
type Workload struct {
	Namespace, Name string
	Labels          map[string]string
}

// Applied is an object that applies to a workload.
type Applied struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Scope is "mesh", "namespace" or "workload".
	Scope    string `json:"scope"`
	Location string `json:"location,omitempty"`
	// Detail says what the object does, or that another one of its kind counts.
	Detail string `json:"detail,omitempty"`
}

// Scopes of objects.
const (
	ofMesh      = "mesh"
	ofNamespace = "namespace"
	ofWorkload  = "workload"
)

func applied(o Object, scope, detail string) Applied {
	return Applied{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Scope: scope, Location: o.Location, Detail: detail}
}

// selects reports whether the selector of a kind selects labels; an empty one selects all.
func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}
