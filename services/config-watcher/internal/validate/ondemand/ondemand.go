// Package ondemand reads Fairlead's own field onDemand of ProxyConfig, in the mesh configuration, in a ProxyConfig and
// in a workload's annotation proxy.istio.io/config, and the annotation of the same meaning, object.OnDemandAnnotation.
package ondemand

import (
	"encoding/json"
	"maps"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"
	mesh "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/pkg/yamltext"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/support"
)

const field = "onDemand"

// maxProxyConfig bounds the YAML of the annotation, in bytes.
const maxProxyConfig = 1 << 20

// Beside is decode.Decoder.Beside: the messages in which users may write the field.
var Beside = map[protoreflect.FullName]string{
	"istio.mesh.v1alpha1.ProxyConfig": field, "istio.networking.v1beta1.ProxyConfig": field,
}

// Lift moves the field onDemand of a ProxyConfig's tree into the map named into, and returns the tree. It reports a
// value that is not boolean or contradicts the map's.
func Lift(v *decode.Verdict, path string, tree map[string]any, into string) map[string]any {
	at := manifest.Field(path, into)
	metadata, _ := tree[into].(map[string]any)
	entry := metadata[object.OnDemandMetadata]
	if s, isString := entry.(string); isString {
		checkText(v, manifest.Field(at, object.OnDemandMetadata), s)
	}
	value, written := tree[field]
	if !written {
		return tree
	}
	out := maps.Clone(tree)
	delete(out, field)
	if value == nil {
		return out
	}
	on, ok := value.(bool)
	if !ok {
		v.Fail(manifest.Field(path, field), value, "expected true or false, found "+decode.TypeName(value), "write true or false without quotes")
		return out
	}
	if tree[into] != nil && metadata == nil {
		return out // strict decoding reports the wrong type
	}
	if s, isString := entry.(string); isString && parseBool(s) != on {
		v.Fail(manifest.Field(path, field), on, "contradicts "+at+"."+object.OnDemandMetadata, "keep one of them")
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

func checkText(v *decode.Verdict, path, s string) {
	if _, err := strconv.ParseBool(s); err != nil {
		v.Fail(path, s, "neither true nor false", `write "true" or "false"`)
	}
}

// Annotations checks a workload's annotations about on-demand configuration.
func Annotations(v *decode.Verdict, o *object.Object) {
	if s, written := o.Annotations[object.OnDemandAnnotation]; written {
		checkText(v, manifest.Field("metadata.annotations", object.OnDemandAnnotation), s)
	}
	if text := o.Annotations[proxyconfig.Annotation]; text != "" {
		at := manifest.Field("metadata.annotations", proxyconfig.Annotation)
		tree, reason := proxyConfigTree(text)
		if reason != "" {
			v.Fail(at, nil, reason, "write a ProxyConfig in YAML")
			return
		}
		checkProxyConfig(v, at, Lift(v, at, tree, "proxyMetadata"))
	}
}

// checkProxyConfig warns of fields without effect in the ProxyConfig of a workload's annotation. It refuses nothing,
// because a running workload stays in the mesh; the workload's agent judges the rest.
func checkProxyConfig(v *decode.Verdict, at string, tree map[string]any) {
	config := &mesh.ProxyConfig{}
	js, err := json.Marshal(tree)
	if err != nil || json.Unmarshal(js, config) != nil {
		return
	}
	of := &decode.Verdict{Object: v.Object, Doc: v.Doc}
	support.Check(of, "MeshConfig.defaultConfig", at, config.ProtoReflect())
	for _, p := range of.Problems {
		v.Warn(p.Field, p.Reason, p.Remedy)
	}
	v.Warnings = append(v.Warnings, of.Warnings...)
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

// Of returns onDemand in a workload's annotation proxy.istio.io/config: "true", "false", or "" if it is not set.
func Of(annotations map[string]string) string {
	text := annotations[proxyconfig.Annotation]
	if text == "" {
		return ""
	}
	tree, reason := proxyConfigTree(text)
	if reason != "" {
		return ""
	}
	metadata, _ := Lift(&decode.Verdict{}, "", tree, "proxyMetadata")["proxyMetadata"].(map[string]any)
	value, _ := metadata[object.OnDemandMetadata].(string)
	return value
}
