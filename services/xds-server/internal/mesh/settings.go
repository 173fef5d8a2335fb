package mesh

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// meshSettings is the value of the one MeshConfig.
type meshSettings struct {
	settings      *meshv1alpha1.MeshConfig
	clusterDomain string
	cluster       string
	source        *configv1.SourceRef
}

// defaultSettings apply until config-watcher has sent the mesh's settings. config-watcher sets the defaults of all
// fields (validate/meshconfig.go there); these are Istio's defaults of the fields that xds-server reads.
func defaultSettings() *meshSettings {
	return &meshSettings{clusterDomain: "cluster.local", settings: &meshv1alpha1.MeshConfig{
		RootNamespace:         "istio-system",
		TrustDomain:           "cluster.local",
		ConnectTimeout:        durationpb.New(10 * time.Second),
		EnableAutoMtls:        wrapperspb.Bool(true),
		OutboundTrafficPolicy: &meshv1alpha1.MeshConfig_OutboundTrafficPolicy{Mode: meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY},
		DefaultConfig:         &meshv1alpha1.ProxyConfig{},
	}}
}

func decodeSettings(_ *entry, r *configv1.Resource) (any, error) {
	m, s := r.GetMeshConfig(), defaultSettings()
	sent := &meshv1alpha1.MeshConfig{}
	if err := proto.Unmarshal(m.GetSettings().GetValue(), sent); err != nil {
		return nil, fmt.Errorf("decode settings: %w", err)
	}
	// A config-watcher of another version may leave a field out.
	merged := s.settings.ProtoReflect()
	sent.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		merged.Set(field, value)
		return true
	})
	return &meshSettings{settings: s.settings, clusterDomain: cmp.Or(m.GetClusterDomain(), s.clusterDomain), cluster: m.GetCluster(),
		source: m.GetSource()}, nil
}

func (w *writer) indexSettings(e *entry, add bool) {
	v := e.value.(*meshSettings)
	if w.next.mesh = defaultSettings(); add {
		w.next.mesh = v
	}
	w.countRelevantLabels("*", failoverKeys(v.settings.GetLocalityLbSetting()), add)
	w.touch(SubjectMesh, "", "")
}

// Mesh returns the mesh-wide settings after defaults; never nil. The caller must not change it.
func (s *Snapshot) Mesh() *meshv1alpha1.MeshConfig { return s.mesh.settings }

// SettingsTopic names the answer of Mesh.
func SettingsTopic() Topic { return Topic{SubjectMesh, "", ""} }

// ClusterDomain returns the DNS suffix of service names, "cluster.local". SettingsTopic names it too.
func (s *Snapshot) ClusterDomain() string { return s.mesh.clusterDomain }

// MeshSource returns the user's object behind Mesh; nil while only defaults apply.
func (s *Snapshot) MeshSource() *configv1.SourceRef { return s.mesh.source }
