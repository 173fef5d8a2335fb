package validate

import (
	"encoding/json"
	"maps"
	"strconv"

	mesh "istio.io/api/mesh/v1alpha1"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/pkg/yamltext"
	"fairlead.dev/services/config-watcher/internal/object"
)

const (
	onDemandField = "onDemand"
	// maxProxyConfig bounds the YAML of the annotation, in bytes.
	maxProxyConfig = 1 << 20
)

// liftOnDemand moves the field onDemand of a ProxyConfig's tree into the map named into, and returns the tree. It
// reports a value that is not boolean or contradicts the map's.
func (c *checker) liftOnDemand(path string, tree map[string]any, into string) map[string]any {
	at := field(path, into)
	metadata, _ := tree[into].(map[string]any)
	entry := metadata[object.OnDemandMetadata]
	if s, isString := entry.(string); isString {
		c.onDemandText(field(at, object.OnDemandMetadata), s)
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
		return out // strict decoding reports the wrong type
	}
	if s, isString := entry.(string); isString && parseBool(s) != on {
		c.fail(field(path, onDemandField), on, "contradicts "+at+"."+object.OnDemandMetadata, "keep one of them")
	}
	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata[object.OnDemandMetadata] = strconv.FormatBool(on)
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

// onDemandAnnotations checks a workload's annotations about on-demand configuration.
func (c *checker) onDemandAnnotations(o *object.Object) {
	if s, written := o.Annotations[object.OnDemandAnnotation]; written {
		c.onDemandText(field("metadata.annotations", object.OnDemandAnnotation), s)
	}
	if text := o.Annotations[proxyconfig.Annotation]; text != "" {
		at := field("metadata.annotations", proxyconfig.Annotation)
		tree, reason := proxyConfigTree(text)
		if reason != "" {
			c.fail(at, nil, reason, "write a ProxyConfig in YAML")
			return
		}
		c.ownProxyConfig(at, c.liftOnDemand(at, tree, "proxyMetadata"))
	}
}

// ownProxyConfig warns of fields without effect in the ProxyConfig of a workload's annotation. It refuses nothing,
// because a running workload stays in the mesh; the workload's agent judges the rest.
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

// OnDemandOf returns onDemand in a workload's annotation proxy.istio.io/config: "true", "false", or "" if it is not
// set.
func OnDemandOf(annotations map[string]string) string {
	text := annotations[proxyconfig.Annotation]
	if text == "" {
		return ""
	}
	tree, reason := proxyConfigTree(text)
	if reason != "" {
		return ""
	}
	metadata, _ := new(checker).liftOnDemand("", tree, "proxyMetadata")["proxyMetadata"].(map[string]any)
	value, _ := metadata[object.OnDemandMetadata].(string)
	return value
}

func checkProxyConfig(c *checker, _ *object.Object, p *networkingv1beta1.ProxyConfig) {
	c.selector("spec.selector.matchLabels", p.GetSelector() != nil, p.GetSelector().GetMatchLabels())
	if p.GetConcurrency() != nil {
		c.notNegative("spec.concurrency", p.GetConcurrency().GetValue())
	}
}
