package harness

import (
	"encoding/json"
	"fmt"
	"maps"

	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/tests/scenarios/internal/document"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/wire"
)

// mesh is what the fleet has to know of its MeshConfig.
type mesh struct {
	// config is the MeshConfig, completed.
	config        []byte
	trustDomain   string
	rootNamespace string
	// proxyConfig is defaultConfig, completed.
	proxyConfig proxyconfig.Config
}

// object is the ConfigMap that config-watcher reads them from.
func (m *mesh) object() document.Tree {
	data := document.Tree{"mesh": string(m.config)}
	return document.Object("ConfigMap", format.RootNamespace, document.MeshObject, document.Tree{"data": data})
}

// onDemandKey is the switch in a mesh's defaultConfig.
const onDemandKey = "onDemand"

// complete has in a ConfigMap of mesh settings what the fleet needs besides. What is no MeshConfig is config-watcher's
// to refuse.
func (h *Harness) complete(d document.Document) document.Document {
	data, _ := d.Content["data"].(document.Tree)
	m, err := meshOf(d.Member("data", "mesh"), h.options.OnDemand, h.logsByMesh)
	if err != nil || data == nil {
		return d
	}
	data["mesh"] = string(m.config)
	return document.New(d.Content)
}

// meshOf completes a MeshConfig in YAML; with onDemand it says so, too, unless it says something of that already. With
// log it has proxies write wire.Fields, unless it has a log of its own.
func meshOf(text string, onDemand, log bool) (mesh, error) {
	tree := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		return mesh{}, fmt.Errorf("mesh: %w", err)
	}
	m := mesh{trustDomain: "cluster.local", rootNamespace: format.RootNamespace}
	if td, ok := tree["trustDomain"].(string); ok {
		m.trustDomain = td
	}
	if root, ok := tree["rootNamespace"].(string); ok {
		m.rootNamespace = root
	}
	if _, ok := tree["accessLogFile"]; log && !ok {
		fields, err := json.Marshal(wire.Fields)
		if err != nil {
			return m, err
		}
		tree["accessLogFile"], tree["accessLogEncoding"], tree["accessLogFormat"] = "/dev/stdout", "JSON", string(fields)
	}
	// A proxy that is asked to end does so with its last connection, instead of after a fixed time.
	proxy := map[string]any{"terminationDrainDuration": "5s"}
	metadata := map[string]any{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true", "MINIMUM_DRAIN_DURATION": "0s"}
	if own, ok := tree["defaultConfig"].(map[string]any); ok {
		maps.Copy(proxy, own)
		if own, ok := own["proxyMetadata"].(map[string]any); ok {
			maps.Copy(metadata, own)
		}
	}
	if _, said := proxy[onDemandKey]; onDemand && !said {
		own, _ := tree["defaultConfig"].(map[string]any)
		own = maps.Clone(own)
		if own == nil {
			own = map[string]any{}
		}
		own[onDemandKey] = true
		tree["defaultConfig"] = own
	}
	proxy["proxyMetadata"] = metadata
	m.proxyConfig = proxy
	var err error
	m.config, err = yaml.Marshal(tree)
	return m, err
}
