// Package policygen draws AuthorizationPolicies, RequestAuthentications, and requests that come near what they say, for
// tests that compare who decides about requests. The same seed draws the same, except for the keys of the tokens.
package policygen

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Kinds of objects.
const (
	AuthorizationPolicy   = "AuthorizationPolicy"
	RequestAuthentication = "RequestAuthentication"
)

// RootNamespace is that whose policies count for every namespace.
const RootNamespace = "istio-system"

// Object is an AuthorizationPolicy or a RequestAuthentication.
type Object struct {
	Kind, Namespace, Name string
	Annotations           map[string]string
	// Spec is a *security.AuthorizationPolicy or *security.RequestAuthentication.
	Spec proto.Message
}

// Policy is the object's spec, nil if it is no AuthorizationPolicy.
func (o Object) Policy() *security.AuthorizationPolicy {
	p, _ := o.Spec.(*security.AuthorizationPolicy)
	return p
}

// Authentication is the object's spec, nil if it is no RequestAuthentication.
func (o Object) Authentication() *security.RequestAuthentication {
	a, _ := o.Spec.(*security.RequestAuthentication)
	return a
}

// DryRun tells whether the policy is only to be tried.
func (o Object) DryRun() bool { return o.Annotations[dryRun] == "true" }

const dryRun = "istio.io/dry-run"

// tree is the object as it is written.
type tree struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec json.RawMessage `json:"spec,omitempty"`
}

// YAML writes the object.
func (o Object) YAML() ([]byte, error) {
	spec, err := protojson.Marshal(o.Spec)
	if err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", o.Kind, o.Namespace, o.Name, err)
	}
	t := tree{APIVersion: "security.istio.io/v1", Kind: o.Kind, Spec: spec}
	t.Metadata.Name, t.Metadata.Namespace, t.Metadata.Annotations = o.Name, o.Namespace, o.Annotations
	return yaml.Marshal(t)
}

// Parse reads objects of both kinds from documents of YAML.
func Parse(text []byte) ([]Object, error) {
	var out []Object
	documents := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	defer documents.Close()
	buffer := make([]byte, len(text)+1)
	for {
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		var t tree
		if err := yaml.Unmarshal(buffer[:n], &t); err != nil {
			return nil, err
		}
		o := Object{Kind: t.Kind, Namespace: t.Metadata.Namespace, Name: t.Metadata.Name, Annotations: t.Metadata.Annotations}
		switch t.Kind {
		case "":
			continue
		case AuthorizationPolicy:
			o.Spec = &security.AuthorizationPolicy{}
		case RequestAuthentication:
			o.Spec = &security.RequestAuthentication{}
		default:
			return nil, fmt.Errorf("%s %s: neither %s nor %s", t.Kind, o.Name, AuthorizationPolicy, RequestAuthentication)
		}
		if len(t.Spec) > 0 {
			if err := protojson.Unmarshal(t.Spec, o.Spec); err != nil {
				return nil, fmt.Errorf("%s %s: %w", t.Kind, o.Name, err)
			}
		}
		out = append(out, o)
	}
}

// Set is a workload with what is said about it.
type Set struct {
	// Name tells where it comes from, such as "seed 1, set 7".
	Name string
	// Namespace is the workload's; no other set has it.
	Namespace string
	// Labels are the workload's.
	Labels map[string]string
	// Address is the workload's; no other set has it.
	Address netip.Addr
	// Gateway tells whether the workload is a gateway.
	Gateway bool
	// Objects are in Namespace, or in RootNamespace with a selector that no other set's labels meet.
	Objects []Object
}

// YAML writes all objects.
func (s Set) YAML() (string, error) {
	var out strings.Builder
	for _, o := range s.Objects {
		text, err := o.YAML()
		if err != nil {
			return "", err
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.String(), nil
}

// AddressOf is the address of the n-th workload.
func AddressOf(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 64, byte(n / 250), byte(1 + n%250)})
}
