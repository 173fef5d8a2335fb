package gate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	router "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	proxyprotocol "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	tlsinspector "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	echo "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tls "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	upstreams "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/pkg/testkit"
)

// seen are the headers of a request whose values, as the application would see them, are part of the answer.
var seen = []string{":path", ":authority", "authorization", "x-token", "cookie", "x-payload", "x-claim-sub", "x-claim-level", "x-user", "x-ext-added"}

// seenPrefix begins the headers of an answer that have them.
const seenPrefix = "x-seen-"

func packed(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(err) // a message of this package
	}
	return a
}

func address(hostport string) *core.Address {
	host, port := split(hostport)
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: host, PortSpecifier: &core.SocketAddress_PortValue{PortValue: port},
	}}}
}

func (c Cluster) proto() *cluster.Cluster {
	out := &cluster.Cluster{
		Name: c.Name, ConnectTimeout: durationpb.New(time.Second),
		LoadAssignment: &endpoint.ClusterLoadAssignment{ClusterName: c.Name, Endpoints: []*endpoint.LocalityLbEndpoints{{
			LbEndpoints: []*endpoint.LbEndpoint{{HostIdentifier: &endpoint.LbEndpoint_Endpoint{
				Endpoint: &endpoint.Endpoint{Address: address(c.Address)},
			}}},
		}}},
	}
	if c.HTTP2 {
		http2 := &upstreams.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &upstreams.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
				Http2ProtocolOptions: &core.Http2ProtocolOptions{},
			},
		}
		out.TypedExtensionProtocolOptions = map[string]*anypb.Any{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": packed(&upstreams.HttpProtocolOptions{
				UpstreamProtocolOptions: &upstreams.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: http2},
			}),
		}
	}
	return out
}

// builder makes listeners.
type builder struct {
	tls   *core.TransportSocket
	route *route.RouteConfiguration
}

func newBuilder(t testing.TB, ca *testkit.CA) *builder {
	t.Helper()
	own := testkit.Must(ca.NewSVID("gate", "gate").Current())(t)
	inline := func(pem []byte) *core.DataSource {
		return &core.DataSource{Specifier: &core.DataSource_InlineBytes{InlineBytes: pem}}
	}
	context := &tls.DownstreamTlsContext{
		RequireClientCertificate: wrapperspb.Bool(true),
		SessionTicketKeysType:    &tls.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true},
		CommonTlsContext: &tls.CommonTlsContext{
			TlsCertificates: []*tls.TlsCertificate{{CertificateChain: inline(own.CertPEM), PrivateKey: inline(own.KeyPEM)}},
			ValidationContextType: &tls.CommonTlsContext_ValidationContext{
				ValidationContext: &tls.CertificateValidationContext{TrustedCa: inline(ca.RootPEM)},
			},
		},
	}
	all := &route.Route{
		Match:  &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: ""}},
		Action: &route.Route_DirectResponse{DirectResponse: &route.DirectResponseAction{Status: 200}},
	}
	for _, name := range seen {
		all.ResponseHeadersToAdd = append(all.ResponseHeadersToAdd, &core.HeaderValueOption{
			Header: &core.HeaderValue{Key: seenPrefix + strings.TrimPrefix(name, ":"), Value: "%REQ(" + name + ")%"},
		})
	}
	return &builder{
		tls: &core.TransportSocket{Name: "tls", ConfigType: &core.TransportSocket_TypedConfig{TypedConfig: packed(context)}},
		route: &route.RouteConfiguration{Name: "all", VirtualHosts: []*route.VirtualHost{{Name: "all", Domains: []string{"*"},
			Routes: []*route.Route{all}}}},
	}
}

// application is the cluster that requests are forwarded to.
const application = "application"

// forward lets requests go to the application.
func (b *builder) forward() {
	r := b.route.VirtualHosts[0].Routes[0]
	r.ResponseHeadersToAdd = nil
	r.Action = &route.Route_Route{Route: &route.RouteAction{ClusterSpecifier: &route.RouteAction_Cluster{Cluster: application}}}
}

// http makes the listener of a side. Requests to an address meet the filters of the door with that address.
func (b *builder) http(at string, doors []Door) *listener.Listener {
	return b.listener("http", at, doors, func(d Door) []*listener.Filter {
		manager := &hcm.HttpConnectionManager{
			StatPrefix:     "gate",
			RouteSpecifier: &hcm.HttpConnectionManager_RouteConfig{RouteConfig: b.route},
			HttpFilters: append(append([]*hcm.HttpFilter{}, d.HTTP...), &hcm.HttpFilter{
				Name: "envoy.filters.http.router", ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: packed(&router.Router{})},
			}),
			NormalizePath: wrapperspb.Bool(true),
			// Envoy would refuse methods that no policy expects before any filter sees them.
			HttpProtocolOptions: &core.Http1ProtocolOptions{AllowCustomMethods: true},
			UseRemoteAddress:    wrapperspb.Bool(d.Set.Gateway),
		}
		if p := d.Paths; p != nil {
			manager.NormalizePath, manager.MergeSlashes = p.GetNormalizePath(), p.GetMergeSlashes()
			manager.PathWithEscapedSlashesAction = p.GetPathWithEscapedSlashesAction()
		}
		return []*listener.Filter{{
			Name: "envoy.filters.network.http_connection_manager", ConfigType: &listener.Filter_TypedConfig{TypedConfig: packed(manager)},
		}}
	})
}

// tcp makes the listener of a side for connections without HTTP, which sends back what it receives.
func (b *builder) tcp(at string, doors []Door) *listener.Listener {
	return b.listener("tcp", at, doors, func(d Door) []*listener.Filter {
		return append(append([]*listener.Filter{}, d.Network...), &listener.Filter{
			Name: "envoy.filters.network.echo", ConfigType: &listener.Filter_TypedConfig{TypedConfig: packed(&echo.Echo{})},
		})
	})
}

func (b *builder) listener(name, at string, doors []Door, filters func(Door) []*listener.Filter) *listener.Listener {
	l := &listener.Listener{
		Name: fmt.Sprintf("%s-%s", name, at), Address: address(at), StatPrefix: name,
		ListenerFilters: []*listener.ListenerFilter{
			{Name: "proxy_protocol", ConfigType: &listener.ListenerFilter_TypedConfig{TypedConfig: packed(&proxyprotocol.ProxyProtocol{})}},
			{Name: "tls_inspector", ConfigType: &listener.ListenerFilter_TypedConfig{TypedConfig: packed(&tlsinspector.TlsInspector{})}},
		},
	}
	for _, d := range doors {
		chain := filters(d)
		for _, transport := range []string{"tls", "raw_buffer"} {
			c := &listener.FilterChain{
				Name: d.Set.Namespace + "-" + transport, Filters: chain,
				FilterChainMatch: &listener.FilterChainMatch{
					TransportProtocol: transport,
					PrefixRanges:      []*core.CidrRange{{AddressPrefix: d.Set.Address.String(), PrefixLen: wrapperspb.UInt32(32)}},
				},
			}
			if transport == "tls" {
				c.TransportSocket = b.tls
			}
			l.FilterChains = append(l.FilterChains, c)
		}
	}
	return l
}
