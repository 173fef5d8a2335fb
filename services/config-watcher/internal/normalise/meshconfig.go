package normalise

import (
	"fmt"
	"reflect"

	"fairlead.dev/services/config-watcher/internal/normalise/clusterlocal"
	"fairlead.dev/services/config-watcher/internal/normalise/networks"

	"google.golang.org/protobuf/proto"
	mesh "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/pkg/meshdefaults"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

var meshConfigKind = &rules[settings]{
	is:     traits{first: true, unreported: true},
	decode: (*Mesh).decodeSettings,
	index:  (*Mesh).indexSettings,
}

// settings are the mesh configuration.
type settings struct {
	*mesh.MeshConfig
	object       *object.Object // nil for the defaults
	clusterLocal clusterlocal.Hosts
	// networks are those of the entry meshNetworks, and nil without it.
	networks *mesh.MeshNetworks
	// discovery are the discoverySelectors, which are alternatives; none selects every namespace.
	discovery []labels.Selector
}

func (m *Mesh) defaultSettings() *settings {
	s := &settings{MeshConfig: meshdefaults.MeshConfig()}
	s.TrustDomain = m.cfg.TrustDomain
	s.clusterLocal = clusterlocal.Of(s.MeshConfig, m.cfg.Domain)
	return s
}

// decodeSettings reads a ConfigMap. Sources validate before they deliver, so an error is a defect of Fairlead.
func (m *Mesh) decodeSettings(o *object.Object) (*settings, error) {
	text := o.Body.(*corev1.ConfigMap).Data[kinds.MeshKey]
	config, _, problems := meshconfig.ParseOver(m.defaultSettings().MeshConfig, "", []byte(text))
	if err := problems.Err(); err != nil {
		return nil, err
	}
	stated, _, problems := meshconfig.ParseNetworks("", []byte(o.Body.(*corev1.ConfigMap).Data[kinds.NetworksKey]))
	if err := problems.Err(); err != nil {
		return nil, err
	}
	s := &settings{MeshConfig: config, object: o, clusterLocal: clusterlocal.Of(config, m.cfg.Domain), networks: stated}
	for _, d := range config.GetDiscoverySelectors() {
		selector, err := meshconfig.LabelSelector(d)
		if err != nil {
			return nil, fmt.Errorf("MeshConfig.discoverySelectors: %w", err)
		}
		s.discovery = append(s.discovery, selector)
	}
	return s, nil
}

// indexSettings puts settings, or without any the defaults, in force.
func (m *Mesh) indexSettings(_, now *settings) {
	if now == nil {
		now = m.defaultSettings()
	}
	before := m.settings
	moved := before.GetRootNamespace() != now.GetRootNamespace()
	for k := range m.stored {
		if kind := m.kindOf(k); moved && k.Namespace == "" && !kind.traits().meshWide {
			m.emit(m.resourceKey(kind, k), nil) // touchAll makes it in the new root namespace
		}
	}
	m.settings = now
	m.gateways.SetMeshNamespace(now.GetRootNamespace())
	m.dirty.mesh = true
	if !proto.Equal(before.MeshConfig, now.MeshConfig) || !proto.Equal(before.networks, now.networks) {
		m.rediscover = m.rediscover || moved || !reflect.DeepEqual(before.discovery, now.discovery)
		m.touchAll()
	}
}

func (m *Mesh) rebuildMeshConfig() {
	packed, err := resource.Any(m.settings.MeshConfig)
	if err != nil {
		m.delta.Errors = append(m.delta.Errors, fmt.Errorf("mesh configuration: %w", err))
		return
	}
	body := &configv1.MeshConfig{Settings: packed, ClusterDomain: m.cfg.Domain, Cluster: m.cfg.Cluster,
		NetworkGateways: networks.Stated(m.settings.networks, m.addressesOf)}
	if m.settings.object != nil {
		body.Source = sourceRef(m.settings.object)
	}
	m.emit(resource.Key{Kind: resource.KindMeshConfig, Name: "default"}, body)
}
