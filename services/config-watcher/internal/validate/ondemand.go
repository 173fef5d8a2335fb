package validate

import (
	"encoding/json"
	"maps"
	"strconv"

	mesh "istio.io/api/mesh/v1alpha1"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/yamltext"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Whether a sidecar holds only what it calls: the annotation of a workload says so, or Fairlead's own field of ProxyConfig. A ProxyConfig
// carries the field as an entry of its proxyMetadata (environmentVariables in the resource), where Istio's types have room for it.
const (
	OnDemandAnnotation    = "fairlead.dev/on-demand"
	OnDemandMetadata      = "FAIRLEAD_ON_DEMAND"
	ProxyConfigAnnotation = "proxy.istio.io/config"

	onDemandField = "onDemand"
	// maxProxyConfig bounds the annotation's YAML that is looked at.
	maxProxyConfig = 1 << 20
)

// liftOnDemand returns the tree of a ProxyConfig with the field onDemand, which Istio's type does not have, moved into the map named into.
// It reports a value that is no boolean, and one that contradicts the map's.
func (c *checker) liftOnDemand(path string, tree map[string]any, into string) map[string]any {
	at := field(path, into)
	metadata, _ := tree[into].(map[string]any)
	said := metadata[OnDemandMetadata]
	if s, isString := said.(string); isString {
		c.onDemandText(field(at, OnDemandMetadata), s)
	}
	value, written := tree[onDemandField]
	if !written {
		return tree
	}
	out := maps.Clone(tree)
	delete(out, onDemandField)
	if value == nil {
		return out
	}
	on, ok := value.(bool)
	if !ok {
		c.fail(field(path, onDemandField), value, "expected true or false, found "+typeName(value), "write true or false without quotes")
		return out
	}
	if tree[into] != nil && metadata == nil {
		return out // strict decoding reports what is there instead of a map
	}
	if s, isString := said.(string); isString && parseBool(s) != on {
		c.fail(field(path, onDemandField), on, "contradicts "+at+"."+OnDemandMetadata, "keep one of them")
	}
	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata[OnDemandMetadata] = strconv.FormatBool(on)
	out[into] = metadata
	return out
}

func parseBool(s string) bool {
	on, _ := strconv.ParseBool(s)
	return on
}

func (c *checker) onDemandText(path, s string) {
	if _, err := strconv.ParseBool(s); err != nil {
		c.fail(path, s, "neither true nor false", `write "true" or "false"`)
	}
}

// onDemandAnnotations checks what a workload's annotations say.
func (c *checker) onDemandAnnotations(o *object.Object) {
	if s, written := o.Annotations[OnDemandAnnotation]; written {
		c.onDemandText(field("metadata.annotations", OnDemandAnnotation), s)
	}
	if text := o.Annotations[ProxyConfigAnnotation]; text != "" {
		at := field("metadata.annotations", ProxyConfigAnnotation)
		tree, reason := proxyConfigTree(text)
		if reason != "" {
			c.fail(at, nil, reason, "write a ProxyConfig in YAML")
			return
		}
		c.ownProxyConfig(at, c.liftOnDemand(at, tree, "proxyMetadata"))
	}
}

// ownProxyConfig warns of what has no effect in the ProxyConfig of a workload. Whether it is one is for the workload's agent to judge: a workload that
// runs stays in the mesh.
func (c *checker) ownProxyConfig(at string, tree map[string]any) {
	config := &mesh.ProxyConfig{}
	js, err := json.Marshal(tree)
	if err != nil || json.Unmarshal(js, config) != nil {
		return
	}
	of := &checker{object: c.object, doc: c.doc}
	of.supported("MeshConfig.defaultConfig", at, config.ProtoReflect())
	for _, p := range of.problems {
		c.warn(p.Field, verdict{p.Reason, p.Remedy})
	}
	c.warnings = append(c.warnings, of.warnings...)
}

func proxyConfigTree(text string) (tree map[string]any, reason string) {
	if len(text) > maxProxyConfig {
		return nil, "more than 1 MiB"
	}
	if err := yamltext.Check([]byte(text)); err != nil {
		return nil, err.Error()
	}
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		return nil, "no YAML of an object"
	}
	return tree, ""
}

// OnDemandOf returns what a workload's annotation proxy.istio.io/config says of onDemand: "true", "false" or, for nothing, "".
func OnDemandOf(annotations map[string]string) string {
	text := annotations[ProxyConfigAnnotation]
	if text == "" {
		return ""
	}
	tree, reason := proxyConfigTree(text)
	if reason != "" {
		return ""
	}
	metadata, _ := new(checker).liftOnDemand("", tree, "proxyMetadata")["proxyMetadata"].(map[string]any)
	said, _ := metadata[OnDemandMetadata].(string)
	return said
}

func checkProxyConfig(c *checker, _ *object.Object, p *networkingv1beta1.ProxyConfig) {
	c.selector("spec.selector.matchLabels", p.GetSelector() != nil, p.GetSelector().GetMatchLabels())
	if p.GetConcurrency() != nil {
		c.notNegative("spec.concurrency", p.GetConcurrency().GetValue())
	}
}
