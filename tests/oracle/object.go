// Package oracle compares the verdicts of Fairlead's validation with those of istioctl, which is Istio's own: on the
// objects of this repository, on a corpus written for the rules, and on random ones.
package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"sigs.k8s.io/yaml"
)

// Object is one that both are asked about.
type Object struct {
	// Origin says where it comes from, such as "corpus/gateway.yaml: no-hosts".
	Origin string
	Tree   map[string]any
	// Refused tells that a scenario expects its refusal.
	Refused bool
}

// kinds are those that istioctl judges, with their API groups. Of Kubernetes' own kinds it looks at names of ports
// only.
var kinds = map[string]string{
	"VirtualService": "networking.istio.io", "DestinationRule": "networking.istio.io", "Gateway": "networking.istio.io",
	"ServiceEntry": "networking.istio.io",
	"Sidecar":      "networking.istio.io", "WorkloadEntry": "networking.istio.io", "WorkloadGroup": "networking.istio.io",
	"EnvoyFilter": "networking.istio.io",
	"ProxyConfig": "networking.istio.io", "PeerAuthentication": "security.istio.io", "RequestAuthentication": "security.istio.io",
	"AuthorizationPolicy": "security.istio.io", "Telemetry": "telemetry.istio.io", "WasmPlugin": "extensions.istio.io",
	"TrafficExtension": "extensions.istio.io",
}

// Kind is the object's.
func (o Object) Kind() string {
	kind, _ := o.Tree["kind"].(string)
	return kind
}

// Judged tells whether istioctl judges objects of the kind.
func (o Object) Judged() bool {
	version, _ := o.Tree["apiVersion"].(string)
	group, _, _ := strings.Cut(version, "/")
	return kinds[o.Kind()] == group && group != ""
}

// YAML is the object as a person would write it.
func (o Object) YAML() string {
	text, err := yaml.Marshal(o.Tree)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// named is the object under a name that it has alone. A name that has dots keeps them: they matter to a rule.
func (o Object) named(name string) map[string]any {
	tree := maps.Clone(o.Tree)
	metadata, _ := tree["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = map[string]any{}
	}
	if old, _ := metadata["name"].(string); strings.Contains(old, ".") {
		name += ".dots"
	}
	metadata["name"] = name
	tree["metadata"] = metadata
	return tree
}

// identity tells objects apart whatever they are called.
func (o Object) identity() string {
	js, err := json.Marshal(o.named(""))
	if err != nil {
		return o.Origin
	}
	return string(js)
}

// parse reads the documents of a YAML text, Lists item by item. Text that is no object is left out.
func parse(origin, text string) ([]Object, error) {
	var out []Object
	for i, part := range documents(text) {
		var tree map[string]any
		if err := yaml.UnmarshalStrict([]byte(part), &tree); err != nil {
			return out, fmt.Errorf("%s: document %d: %w", origin, i, err)
		}
		items, isList := tree["items"].([]any)
		if !isList || tree["kind"] != "List" {
			items = []any{tree}
		}
		for _, item := range items {
			if o, ok := item.(map[string]any); ok && len(o) > 0 {
				metadata, _ := o["metadata"].(map[string]any)
				name, _ := metadata["name"].(string)
				out = append(out, Object{Origin: strings.TrimSpace(origin + ": " + name), Tree: o})
			}
		}
	}
	return out, nil
}

// documents divides a text at its "---" lines.
func documents(text string) []string {
	var out []string
	var part bytes.Buffer
	for line := range strings.Lines(text) {
		if strings.TrimRight(line, " \r\n") == "---" || strings.HasPrefix(line, "--- ") {
			out = append(out, part.String())
			part.Reset()
			continue
		}
		part.WriteString(line)
	}
	return append(out, part.String())
}
