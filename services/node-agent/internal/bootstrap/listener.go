package bootstrap

import (
	"net/netip"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	gzipv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/gzip/compressor/v3"
	zstdv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/zstd/compressor/v3"
	compressorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/compressor/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Stat prefixes of the static listeners. A drain does not wait for connections on them, which serve probes and
// scrapers.
const (
	ReadyStatPrefix = "agent_ready"
	StatsStatPrefix = "agent_stats"
)

// listeners are the static listeners: 15090 serves Envoy's metrics, and 15021 forwards readiness probes to the agent,
// so that a probe also fails when Envoy cannot serve.
func listeners(in Input) ([]*listenerv3.Listener, error) {
	var filters []*hcmv3.HttpFilter
	var err error
	if in.Telemetry.Compression {
		if filters, err = compressors(); err != nil {
			return nil, err
		}
	}
	stats, err := pathListener(StatsStatPrefix, in.Stats, "/stats/prometheus", StatsCluster, filters...)
	if err != nil {
		return nil, err
	}
	ready, err := pathListener(ReadyStatPrefix, in.Ready, "/healthz/ready", AgentCluster)
	if err != nil {
		return nil, err
	}
	if in.ReadyProxyProtocol {
		protocol, err := pack(&proxyprotocolv3.ProxyProtocol{AllowRequestsWithoutProxyProtocol: true})
		if err != nil {
			return nil, err
		}
		ready.ListenerFilters = []*listenerv3.ListenerFilter{{
			Name: "envoy.filters.listener.proxy_protocol", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: protocol},
		}}
	}
	return []*listenerv3.Listener{stats, ready}, nil
}

// compressors compress metrics for scrapers that accept it.
func compressors() ([]*hcmv3.HttpFilter, error) {
	var out []*hcmv3.HttpFilter
	for _, each := range []struct {
		name    string
		library validated
	}{{"gzip", &gzipv3.Gzip{}}, {"zstd", &zstdv3.Zstd{}}} {
		library, err := pack(each.library)
		if err != nil {
			return nil, err
		}
		compressor, err := pack(&compressorv3.Compressor{CompressorLibrary: &corev3.TypedExtensionConfig{Name: "stats_" + each.name,
			TypedConfig: library}})
		if err != nil {
			return nil, err
		}
		out = append(out, &hcmv3.HttpFilter{Name: "envoy.filters.http.compressor." + each.name,
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: compressor}})
	}
	return out, nil
}

// pathListener forwards one path to a cluster, through the filters, and answers 404 to others.
func pathListener(name string, address netip.AddrPort, path, cluster string, filters ...*hcmv3.HttpFilter) (*listenerv3.Listener, error) {
	router, err := pack(&routerv3.Router{})
	if err != nil {
		return nil, err
	}
	manager, err := pack(&hcmv3.HttpConnectionManager{
		StatPrefix:            name,
		CodecType:             hcmv3.HttpConnectionManager_AUTO,
		RequestHeadersTimeout: durationpb.New(5 * time.Second),
		StreamIdleTimeout:     durationpb.New(30 * time.Second),
		HttpFilters: append(filters, &hcmv3.HttpFilter{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: router},
		}),
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: name,
			VirtualHosts: []*routev3.VirtualHost{{
				Name:    name,
				Domains: []string{"*"},
				Routes: []*routev3.Route{{
					Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: path}},
					Action: &routev3.Route_Route{Route: &routev3.RouteAction{
						ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
						Timeout:          durationpb.New(15 * time.Second),
					}},
				}},
			}},
		}},
	})
	if err != nil {
		return nil, err
	}
	return &listenerv3.Listener{
		Name:                  name,
		StatPrefix:            name,
		Address:               socketAddress(address),
		IgnoreGlobalConnLimit: true,
		TrafficDirection:      corev3.TrafficDirection_UNSPECIFIED,
		FilterChains: []*listenerv3.FilterChain{{
			Filters: []*listenerv3.Filter{{
				Name:       "envoy.filters.network.http_connection_manager",
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: manager},
			}},
		}},
	}, nil
}
