package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/pkg/yamltext"
)

// Where a ProxyConfig is read from. A Pod's author can write both: injection and fairlead up merge the Pod's annotation
// into the mesh's settings before they set PROXY_CONFIG.
const (
	proxyConfigVariable = "PROXY_CONFIG"
	// proxyConfigAnnotation overrides PROXY_CONFIG for one Pod, field by field.
	proxyConfigAnnotation = proxyconfig.Annotation
)

// maxProxyConfig bounds the YAML that is parsed.
const maxProxyConfig = 1 << 20

// mergeProxyConfig merges YAML (or JSON) of Istio's ProxyConfig into pc. It ignores unknown fields with a warning,
// because an injector may be newer than the agent, and also the fields that restrict removes.
func mergeProxyConfig(pc *meshv1alpha1.ProxyConfig, source, text string) (warnings []string, err error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > maxProxyConfig {
		return nil, fmt.Errorf("%s is %d bytes: at most %d are read", source, len(text), maxProxyConfig)
	}
	if err := yamltext.Check([]byte(text)); err != nil {
		return nil, fmt.Errorf("%s is not YAML that is read: %w", source, err)
	}
	js, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%s is not YAML: %w", source, err)
	}
	if string(js) == "null" {
		return nil, nil
	}
	if js, err = liftOnDemand(js); err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	over := &meshv1alpha1.ProxyConfig{}
	if strict := protojson.Unmarshal(js, over); strict != nil {
		proto.Reset(over)
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(js, over); err != nil {
			return nil, fmt.Errorf("%s is not a ProxyConfig: %w", source, err)
		}
		warnings = append(warnings, fmt.Sprintf("%s has a field that is not known here and is ignored: %v", source, strict))
	}
	warnings = append(warnings, restrict(over, source)...)
	proto.Merge(pc, over)
	return warnings, nil
}

// restrict removes the fields that decide which program the agent runs and which files it writes, with a warning for
// each. Otherwise the author of a Pod's annotation could make an agent outside a container run any program and
// overwrite any file of the agent's user.
func restrict(pc *meshv1alpha1.ProxyConfig, source string) (warnings []string) {
	ignore := func(field, value, remedy string) {
		warnings = append(warnings, fmt.Sprintf("%s: %s %q is ignored: %s", source, field, value, remedy))
	}
	if path := pc.GetBinaryPath(); path != "" {
		pc.BinaryPath = ""
		if path != meshdefaults.BinaryPath { // Istio's injection sets it in every Pod
			ignore("binaryPath", path, "give the agent --envoy-binary, or fairlead up --envoy")
		}
	}
	if path := pc.GetConfigPath(); path != "" && source != proxyConfigVariable && source != meshConfigSource {
		pc.ConfigPath = ""
		ignore("configPath", path, "give the agent --state-dir, or set it in "+proxyConfigVariable)
	}
	for _, file := range []struct {
		field string
		path  *string
	}{{"customConfigFile", &pc.CustomConfigFile}, {"proxyBootstrapTemplatePath", &pc.ProxyBootstrapTemplatePath}} {
		if *file.path != "" {
			ignore(file.field, *file.path, "give the agent --templateFile, or set "+bootstrapTemplate+" in its environment")
			*file.path = ""
		}
	}
	if exec := pc.GetReadinessProbe().GetExec(); exec != nil && source != proxyConfigVariable {
		pc.ReadinessProbe = nil
		ignore("readinessProbe.exec", strings.Join(exec.GetCommand(), " "),
			"set it in "+proxyConfigVariable+", or probe by httpGet, tcpSocket or grpc")
	}
	for _, name := range proxyconfig.Reserved {
		if value, said := pc.GetProxyMetadata()[name]; said {
			delete(pc.ProxyMetadata, name)
			ignore("proxyMetadata."+name, value, "set it in the environment of the agent")
		}
	}
	slices.Sort(warnings)
	return warnings
}

// liftOnDemand replaces Fairlead's own field onDemand of a ProxyConfig in JSON by the entry proxyconfig.OnDemand of
// proxyMetadata. It leaves malformed JSON unchanged, for the decoder to reject.
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
	metadata[proxyconfig.OnDemand] = json.RawMessage(strconv.Quote(strconv.FormatBool(*on)))
	raw, err := json.Marshal(metadata)
	if err != nil {
		return nil, err
	}
	tree["proxyMetadata"] = raw
	return json.Marshal(tree)
}

// members parses a JSON object; null has no members.
func members(js []byte) (map[string]json.RawMessage, bool) {
	out := map[string]json.RawMessage{}
	err := json.Unmarshal(js, &out)
	if out == nil {
		out = map[string]json.RawMessage{}
	}
	return out, err == nil
}
