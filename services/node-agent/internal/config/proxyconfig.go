package config

import (
	"fmt"

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
