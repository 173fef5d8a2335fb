package cluster

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/manifest"
)

// ID names an object.
type ID struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Key is the ID without the version: the same object in all versions of its kind.
func (id ID) Key() ID {
	id.Version = ""
	return id
}

// String names the object for people: "Deployment istio-system/istiod".
func (id ID) String() string {
	switch {
	case id.Name == "":
		return id.Kind
	case id.Namespace != "":
		return id.Kind + " " + id.Namespace + "/" + id.Name
	}
	return id.Kind + " " + id.Name
}

// Command names the object for kubectl: "deployments.apps/istiod -n istio-system".
func (id ID) Command() string {
	kind := strings.ToLower(id.Kind)
	if id.Group != "" {
		kind += "." + id.Group
	}
	if id.Namespace != "" {
		return kind + "/" + id.Name + " -n " + id.Namespace
	}
	return kind + "/" + id.Name
}

// Of returns the ID of an object.
func Of(u *unstructured.Unstructured) ID {
	kind := u.GroupVersionKind()
	return ID{Group: kind.Group, Version: kind.Version, Kind: kind.Kind, Namespace: u.GetNamespace(), Name: u.GetName()}
}

// Namespace is the ID of a namespace.
func Namespace(name string) ID { return ID{Version: "v1", Kind: "Namespace", Name: name} }

// CRD is the kind of CustomResourceDefinitions.
var CRD = ID{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// IsCRD says whether an ID is a CustomResourceDefinition's.
func (id ID) IsCRD() bool { return id.Kind == CRD.Kind && id.Group == CRD.Group }

// IsNamespace says whether an ID is a namespace's.
func (id ID) IsNamespace() bool { return id.Kind == "Namespace" && id.Group == "" }

// Object converts a rendered object to what is sent.
func Object(o *manifest.Object) (*unstructured.Unstructured, error) {
	text, err := json.Marshal(o.Tree)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.ID(), err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(text); err != nil {
		return nil, fmt.Errorf("%s: %w", o.ID(), err)
	}
	return u, nil
}

// OwnedFields are the fields that were applied to an object with Manager; empty if it was never applied.
func OwnedFields(u *unstructured.Unstructured) string {
	for _, m := range u.GetManagedFields() {
		if m.Manager == Manager && m.Operation == "Apply" && m.Subresource == "" && m.FieldsV1 != nil {
			return canonical(m.FieldsV1.GetRawBytes())
		}
	}
	return ""
}

// canonical sorts the keys of JSON.
func canonical(text []byte) string {
	var v any
	if json.Unmarshal(text, &v) != nil {
		return string(text)
	}
	text, _ = json.Marshal(v) // what was JSON is JSON
	return string(text)
}
