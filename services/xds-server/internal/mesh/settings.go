package mesh

import (
	"cmp"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/meshdefaults"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// meshSettings is the value of the one MeshConfig.
type meshSettings struct {
	settings      *meshv1alpha1.MeshConfig
	clusterDomain string
	cluster       string
	source        *configv1.SourceRef
	// gateways are those that lead into networks and are no Services.
	gateways []*configv1.NetworkGateway
}

// defaultSettings apply until config-watcher has sent the mesh's settings, and to fields that a config-watcher of
// another version leaves out. They are those defaults of fields that xds-server reads which a user cannot replace by
// the field's zero value: in the message, that value and a field that was left out are the same.
func defaultSettings() *meshSettings {
	d := meshdefaults.MeshConfig()
	return &meshSettings{clusterDomain: "cluster.local", settings: &meshv1alpha1.MeshConfig{
		RootNamespace: d.RootNamespace, TrustDomain: d.TrustDomain,
		ProxyListenPort: d.ProxyListenPort, ProxyInboundListenPort: d.ProxyInboundListenPort,
		ConnectTimeout: d.ConnectTimeout, EnableAutoMtls: d.EnableAutoMtls, OutboundTrafficPolicy: d.OutboundTrafficPolicy,
		DefaultConfig: &meshv1alpha1.ProxyConfig{},
	}}
}

func decodeSettings(_ *entry, r *configv1.Resource) (any, error) {
	m, s := r.GetMeshConfig(), defaultSettings()
	sent := &meshv1alpha1.MeshConfig{}
	if err := proto.Unmarshal(m.GetSettings().GetValue(), sent); err != nil {
		return nil, fmt.Errorf("decode settings: %w", err)
	}
	merged := s.settings.ProtoReflect()
	sent.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		merged.Set(field, value)
		return true
	})
	return &meshSettings{settings: s.settings, clusterDomain: cmp.Or(m.GetClusterDomain(), s.clusterDomain), cluster: m.GetCluster(),
		source: m.GetSource(), gateways: m.GetNetworkGateways()}, nil
}

func (w *writer) indexSettings(e *entry, add bool) {
	v := e.value.(*meshSettings)
	if w.next.mesh = defaultSettings(); add {
		w.next.mesh = v
	}
	w.countRelevantLabels("*", failoverKeys(v.settings.GetLocalityLbSetting()), add)
	w.touch(SubjectMesh, "", "")
	for _, g := range v.gateways {
		w.touch(SubjectNetworkGateways, g.GetNetwork(), "")
		w.touch(SubjectNetworkGateways, "", "")
	}
}

// Mesh returns the mesh-wide settings after defaults; never nil. The caller must not change it.
func (s *Snapshot) Mesh() *meshv1alpha1.MeshConfig { return s.mesh.settings }

// SettingsTopic names the answer of Mesh.
func SettingsTopic() Topic { return Topic{SubjectMesh, "", ""} }

// ClusterDomain returns the DNS suffix of service names, "cluster.local". SettingsTopic names it too.
func (s *Snapshot) ClusterDomain() string { return s.mesh.clusterDomain }

// MeshSource returns the user's object behind Mesh; nil while only defaults apply.
func (s *Snapshot) MeshSource() *configv1.SourceRef { return s.mesh.source }
