// Package meshdefaults has the defaults of Istio's MeshConfig and ProxyConfig, in one place for all that read a mesh
// configuration: config-watcher, which sends xds-server every field; xds-server itself, for the time before that; the
// injector; and node-agent.
package meshdefaults

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// Defaults of fields that are also needed one by one.
const (
	TrustDomain   = "cluster.local"
	RootNamespace = "istio-system"
	// ConfigPath and the others below are fields of ProxyConfig.
	ConfigPath     = "./etc/istio/proxy"
	BinaryPath     = "/usr/local/bin/envoy"
	ServiceCluster = "istio-proxy"
	ProxyAdminPort = 15000
	StatusPort     = 15020
)

// MeshConfig are the defaults of MeshConfig (https://istio.io/latest/docs/reference/config/istio.mesh.v1alpha1/). The
// caller owns the result.
func MeshConfig() *mesh.MeshConfig {
	return &mesh.MeshConfig{
		ProxyListenPort:                15001,
		ProxyInboundListenPort:         15006,
		ConnectTimeout:                 durationpb.New(10 * time.Second),
		ProtocolDetectionTimeout:       durationpb.New(0),
		DnsRefreshRate:                 durationpb.New(60 * time.Second),
		IngressClass:                   "istio",
		IngressService:                 "istio-ingressgateway",
		IngressControllerMode:          mesh.MeshConfig_STRICT,
		EnableTracing:                  true,
		EnableAutoMtls:                 wrapperspb.Bool(true),
		EnablePrometheusMerge:          wrapperspb.Bool(true),
		TrustDomain:                    TrustDomain,
		RootNamespace:                  RootNamespace,
		DefaultServiceExportTo:         []string{"*"},
		DefaultVirtualServiceExportTo:  []string{"*"},
		DefaultDestinationRuleExportTo: []string{"*"},
		OutboundTrafficPolicy:          &mesh.MeshConfig_OutboundTrafficPolicy{Mode: mesh.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY},
		InboundTrafficPolicy:           &mesh.MeshConfig_InboundTrafficPolicy{Mode: mesh.MeshConfig_InboundTrafficPolicy_PASSTHROUGH},
		LocalityLbSetting:              &networking.LocalityLoadBalancerSetting{Enabled: wrapperspb.Bool(true)},
		DefaultProviders:               &mesh.MeshConfig_DefaultProviders{},
		DefaultConfig:                  ProxyConfig(),
	}
}

// ProxyConfig are the defaults of ProxyConfig. Templates of injection leave out what equals them. The caller owns the
// result.
func ProxyConfig() *mesh.ProxyConfig {
	return &mesh.ProxyConfig{
		ConfigPath:               ConfigPath,
		BinaryPath:               BinaryPath,
		ClusterName:              &mesh.ProxyConfig_ServiceCluster{ServiceCluster: ServiceCluster},
		DrainDuration:            durationpb.New(45 * time.Second),
		TerminationDrainDuration: durationpb.New(5 * time.Second),
		DiscoveryAddress:         "istiod.istio-system.svc:15012",
		ProxyAdminPort:           ProxyAdminPort,
		ControlPlaneAuthPolicy:   mesh.AuthenticationPolicy_MUTUAL_TLS,
		StatNameLength:           189,
		StatusPort:               StatusPort,
	}
}
