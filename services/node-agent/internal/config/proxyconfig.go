package config

import (
	"encoding/json"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"
)

// proxyConfigAnnotation overrides PROXY_CONFIG for one Pod, field by field.
const proxyConfigAnnotation = "proxy.istio.io/config"

// maxProxyConfig bounds the YAML that is looked at.
const maxProxyConfig = 1 << 20

// mergeProxyConfig reads YAML (or JSON) in the form of Istio's ProxyConfig on
// top of pc. A field this version does not know is skipped and named in the
// warning, because an injector may be newer than the agent.
func mergeProxyConfig(pc *meshv1alpha1.ProxyConfig, source, text string) (warning string, err error) {
	if text == "" {
		return "", nil
	}
	if len(text) > maxProxyConfig {
		return "", fmt.Errorf("%s is %d bytes: at most %d are read", source, len(text), maxProxyConfig)
	}
	js, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return "", fmt.Errorf("%s is not YAML: %w", source, err)
	}
	if string(js) == "null" {
		return "", nil
	}
	if js, err = liftOnDemand(js); err != nil {
		return "", fmt.Errorf("%s: %w", source, err)
	}
	over := &meshv1alpha1.ProxyConfig{}
	if strict := protojson.Unmarshal(js, over); strict != nil {
		proto.Reset(over)
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(js, over); err != nil {
			return "", fmt.Errorf("%s is not a ProxyConfig: %w", source, err)
		}
		warning = fmt.Sprintf("%s has a field that is not known here and is ignored: %v", source, strict)
	}
	proto.Merge(pc, over)
	return warning, nil
}

// onDemandMetadata is the entry of proxyMetadata that says whether the proxy is sent only what it calls: what Istio's ProxyConfig has room for.
const onDemandMetadata = "FAIRLEAD_ON_DEMAND"

// liftOnDemand turns Fairlead's own field onDemand of a ProxyConfig in JSON into an entry of proxyMetadata, over one that is there. What is no
// ProxyConfig is left as it is, for its decoder to refuse.
func liftOnDemand(js []byte) ([]byte, error) {
	tree, ok := members(js)
	if !ok || tree["onDemand"] == nil {
		return js, nil
	}
	var on *bool
	if err := json.Unmarshal(tree["onDemand"], &on); err != nil {
		return nil, fmt.Errorf("onDemand: %s: want true or false", tree["onDemand"])
	}
	delete(tree, "onDemand")
	if on == nil {
		return json.Marshal(tree)
	}
	metadata := map[string]json.RawMessage{}
	if raw := tree["proxyMetadata"]; raw != nil {
		if metadata, ok = members(raw); !ok {
			return js, nil
		}
	}
	metadata[onDemandMetadata] = json.RawMessage(strconv.Quote(strconv.FormatBool(*on)))
	raw, err := json.Marshal(metadata)
	if err != nil {
		return nil, err
	}
	tree["proxyMetadata"] = raw
	return json.Marshal(tree)
}

// members of a JSON object; null has none.
func members(js []byte) (map[string]json.RawMessage, bool) {
	out := map[string]json.RawMessage{}
	err := json.Unmarshal(js, &out)
	if out == nil {
		out = map[string]json.RawMessage{}
	}
	return out, err == nil
}
