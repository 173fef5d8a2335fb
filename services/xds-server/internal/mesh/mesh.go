package mesh

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

type meshSettings struct {
	settings      *meshv1alpha1.MeshConfig
	clusterDomain string
	source        *configv1.SourceRef
}

// defaultMesh is used before config-watcher has sent the settings; they are Istio's defaults as far as xds-server reads them.
func defaultMesh() *meshSettings {
	return &meshSettings{clusterDomain: "cluster.local", settings: &meshv1alpha1.MeshConfig{
		RootNamespace:         "istio-system",
		TrustDomain:           "cluster.local",
		ConnectTimeout:        durationpb.New(10 * time.Second),
		EnableAutoMtls:        wrapperspb.Bool(true),
		OutboundTrafficPolicy: &meshv1alpha1.MeshConfig_OutboundTrafficPolicy{Mode: meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY},
		DefaultConfig:         &meshv1alpha1.ProxyConfig{},
	}}
}

func decodeMesh(m *configv1.MeshConfig) (*meshSettings, error) {
	s := defaultMesh()
	sent := &meshv1alpha1.MeshConfig{}
	if m.GetSettings() != nil {
		if err := proto.Unmarshal(m.GetSettings().GetValue(), sent); err != nil {
			return nil, fmt.Errorf("decode settings: %w", err)
		}
	}
	// config-watcher sends settings after defaults; only what a peer of another version left out is filled in here.
	if sent.GetRootNamespace() == "" {
		sent.RootNamespace = s.settings.GetRootNamespace()
	}
	if sent.GetTrustDomain() == "" {
		sent.TrustDomain = s.settings.GetTrustDomain()
	}
	if sent.GetConnectTimeout() == nil {
		sent.ConnectTimeout = s.settings.GetConnectTimeout()
	}
	if sent.GetEnableAutoMtls() == nil {
		sent.EnableAutoMtls = s.settings.GetEnableAutoMtls()
	}
	if sent.GetOutboundTrafficPolicy() == nil {
		sent.OutboundTrafficPolicy = s.settings.GetOutboundTrafficPolicy()
	}
	if sent.GetDefaultConfig() == nil {
		sent.DefaultConfig = s.settings.GetDefaultConfig()
	}
	return &meshSettings{settings: sent, clusterDomain: cmp.Or(m.GetClusterDomain(), s.clusterDomain), source: m.GetSource()}, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
