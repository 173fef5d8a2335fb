package listener

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	setfilterstatecommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	rbacfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	sniclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_cluster/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/dynamicforwardproxy"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/matcher"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// clusterTimeout limits how long a connection waits for a cluster that xds-server does not send.
const clusterTimeout = 5 * time.Second

// tcpChain is a filter chain that ends with the TCP proxy filter.
type tcpChain struct {
	// proxy is the TCP proxy; filters adds its access log.
	proxy *tcpproxyv3.TcpProxy
	// outbound is true for connections of a sidecar's application.
	outbound bool
	// guarded is true for connections to which AuthorizationPolicies apply: of clients from outside the proxy's
	// workload.
	guarded bool
	// clusterFormat makes the cluster's name from the connection by command operators; "" if proxy names the cluster.
	clusterFormat string
	// clusterBySNI is true if the SNI of the TLS handshake is the cluster's name.
	clusterBySNI bool
	// resolveSNI is the port to connect to at the host that the SNI names; 0 if the SNI is not resolved.
	resolveSNI uint32
}

// networkFilters lists every network filter before the TCP proxy, in the order of a filter chain. A chain has the
// filters whose function returns a configuration for it.
var networkFilters = []struct {
	name   string
	config func(*input.Reader, tcpChain) proto.Message
}{
	{"envoy.filters.network.rbac", allowMeshSNI},
	{"envoy.filters.network.sni_cluster", sniCluster},
	{"envoy.filters.network.set_filter_state", setCluster},
	{dynamicforwardproxy.NetworkFilter, resolveSNI},
}

func (c tcpChain) filters(r *input.Reader) ([]*listenerv3.Filter, error) {
	var out []*listenerv3.Filter
	var err error
	if c.guarded && policy.Lacking(r) != nil {
		c.proxy.ClusterSpecifier = &tcpproxyv3.TcpProxy_Cluster{Cluster: resourcename.BlackHoleCluster}
	} else if c.guarded {
		if out, err = policy.NetworkFilters(r); err != nil {
			return nil, err
		}
	}
	for _, f := range networkFilters {
		if config := f.config(r, c); config != nil {
			out = append(out, &listenerv3.Filter{Name: f.name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: typedconfig.Any(config)}})
		}
	}
	if c.proxy.AccessLog, err = hcm.AccessLog(r.Mesh()); err != nil {
		return nil, err
	}
	if c.guarded {
		c.proxy.AccessLog = append(c.proxy.AccessLog, policy.ConnectionLogs(r)...)
	}
	if c.outbound && r.Class().OnDemand {
		c.proxy.OnDemand = &tcpproxyv3.TcpProxy_OnDemand{
			OdcdsConfig: coreconfig.ADS(),
			Timeout:     durationpb.New(clusterTimeout),
		}
	}
	packed, err := typedconfig.Checked(c.proxy)
	if err != nil {
		return nil, err
	}
	return append(out, &listenerv3.Filter{
		Name: "envoy.filters.network.tcp_proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed},
	}), nil
}

// allowMeshSNI denies server names other than those of the clusters for AUTO_PASSTHROUGH: the sni_cluster filter would
// accept the name of every cluster.
func allowMeshSNI(_ *input.Reader, c tcpChain) proto.Message {
	if !c.clusterBySNI {
		return nil
	}
	return &rbacfilterv3.RBAC{
		StatPrefix: "sni_cluster.",
		Rules: &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW, Policies: map[string]*rbacv3.Policy{"mesh": {
			Permissions: []*rbacv3.Permission{
				{Rule: &rbacv3.Permission_RequestedServerName{RequestedServerName: matcher.Prefix(resourcename.SNIPrefix)}}},
			Principals: []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Any{Any: true}}},
		}}},
	}
}

func sniCluster(_ *input.Reader, c tcpChain) proto.Message {
	if !c.clusterBySNI {
		return nil
	}
	return &sniclusterv3.SniCluster{}
}

// setCluster sets the cluster of each connection for the TCP proxy.
func setCluster(_ *input.Reader, c tcpChain) proto.Message {
	if c.clusterFormat == "" {
		return nil
	}
	return &setfilterstatev3.Config{OnNewConnection: []*setfilterstatecommonv3.FilterStateValue{{
		Key: &setfilterstatecommonv3.FilterStateValue_ObjectKey{ObjectKey: "envoy.tcp_proxy.cluster"},
		Value: &setfilterstatecommonv3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: c.clusterFormat},
			}},
		}},
	}}}
}

func resolveSNI(r *input.Reader, c tcpChain) proto.Message {
	if c.resolveSNI == 0 {
		return nil
	}
	return dynamicforwardproxy.ForHandshakes(r, c.resolveSNI)
}
