package cluster

import (
	"slices"
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	commonmatcherv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/matcher"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

const httpOptionsKey = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// upstreamProtocol is the HTTP version of the connections to a cluster.
type upstreamProtocol int

const (
	// http1 is Envoy's default.
	http1 upstreamProtocol = iota
	http2
	// downstreamProtocol is the version of the downstream connection.
	downstreamProtocol
)

// upstreamFor chooses the version for a port. With byClient, that for a port of undeclared protocol is the version of
// the client's connection. It is so for sidecars, which have detected it. A gateway's clients negotiate HTTP/2 with it
// whether or not the server accepts that, so there it is so only where a GRPCRoute sends to the port.
func upstreamFor(p configv1.Protocol, byClient bool) upstreamProtocol {
	switch {
	case protocol.IsHTTP2(p):
		return http2
	case protocol.IsSniffed(p) && byClient:
		return downstreamProtocol
	default:
		return http1
	}
}

// httpOptions collects a cluster's HttpProtocolOptions.
type httpOptions struct {
	protocol upstreamProtocol
	common   *corev3.HttpProtocolOptions
	http2    *corev3.Http2ProtocolOptions
	autoSNI  bool
	autoSAN  bool
	// errors are the status codes that outlier detection counts as errors; none means 5xx.
	errors []uint32
	// keepCase preserves the case of HTTP/1 headers.
	keepCase bool
}

// apply adds the options to a cluster, if any differs from Envoy's defaults.
func (o *httpOptions) apply(out *clusterv3.Cluster) error {
	if o.protocol == http1 && o.common == nil && !o.autoSNI && !o.autoSAN && len(o.errors) == 0 && !o.keepCase {
		return nil
	}
	options := &httpv3.HttpProtocolOptions{CommonHttpProtocolOptions: o.common}
	if o.autoSNI || o.autoSAN {
		options.UpstreamHttpProtocolOptions = &corev3.UpstreamHttpProtocolOptions{AutoSni: o.autoSNI, AutoSanValidation: o.autoSAN}
	}
	if len(o.errors) > 0 {
		options.OutlierDetection = &httpv3.HttpProtocolOptions_OutlierDetection{ErrorMatcher: anyStatus(o.errors)}
	}
	switch o.protocol {
	case http2:
		options.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: o.http2Options()},
			},
		}
	case downstreamProtocol:
		options.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions: o.http1Options(), Http2ProtocolOptions: o.http2Options(),
			},
		}
	default:
		options.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: o.http1Options()},
			},
		}
	}
	packed, err := typedconfig.Checked(options)
	if err != nil {
		return err
	}
	out.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptionsKey: packed}
	return nil
}

func (o *httpOptions) http1Options() *corev3.Http1ProtocolOptions {
	out := &corev3.Http1ProtocolOptions{}
	if o.keepCase {
		out.HeaderKeyFormat = hcm.PreserveCase()
	}
	return out
}

func (o *httpOptions) http2Options() *corev3.Http2ProtocolOptions {
	if o.http2 == nil {
		// Extended CONNECT carries WebSockets through HTTP/2.
		o.http2 = &corev3.Http2ProtocolOptions{AllowConnect: true}
	}
	return o.http2
}

func (o *httpOptions) commonOptions() *corev3.HttpProtocolOptions {
	if o.common == nil {
		o.common = &corev3.HttpProtocolOptions{}
	}
	return o.common
}

// anyStatus matches responses with one of the status codes; codes is not empty.
func anyStatus(codes []uint32) *commonmatcherv3.MatchPredicate {
	codes = slices.Compact(slices.Sorted(slices.Values(codes)))
	rules := make([]*commonmatcherv3.MatchPredicate, 0, len(codes))
	for _, code := range codes {
		rules = append(rules, &commonmatcherv3.MatchPredicate{Rule: &commonmatcherv3.MatchPredicate_HttpResponseHeadersMatch{
			HttpResponseHeadersMatch: &commonmatcherv3.HttpHeadersMatch{Headers: []*routev3.HeaderMatcher{{
				Name:                 ":status",
				HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: matcher.Exact(strconv.FormatUint(uint64(code), 10))},
			}}},
		}})
	}
	if len(rules) == 1 {
		return rules[0]
	}
	return &commonmatcherv3.MatchPredicate{Rule: &commonmatcherv3.MatchPredicate_OrMatch{
		OrMatch: &commonmatcherv3.MatchPredicate_MatchSet{Rules: rules},
	}}
}
