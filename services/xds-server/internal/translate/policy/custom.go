package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkextauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/authz"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/matcher"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

const (
	// customPolicy begins the names of a provider's shadow policies, as in Istio.
	customPolicy = "istio-ext-authz-"
	// customPrefix begins the metadata keys of shadow rules. The provider's name follows, so that a request that two
	// providers must allow is asked of both, and no name can be taken for the beginning of another.
	customPrefix = "istio_ext_authz_"
	effectiveID  = "shadow_effective_policy_id"
	// brokenSuffix ends the names of the policies that deny what a broken provider would be asked, as in Istio.
	brokenSuffix = "-deny-due-to-bad-CUSTOM-action"
	// providerTimeout is Istio's default.
	providerTimeout = 600 * time.Second
)

func extAuthz() *extauthzv3.ExtAuthz { return &extauthzv3.ExtAuthz{} }

// Provider is an authorization provider of MeshConfig with the service that it names.
type Provider struct {
	http *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider
	grpc *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider
	// Service and Port are what is asked.
	Service *configv1.Service
	Port    uint32
	status  *typev3.HttpStatus
}

// Cluster is the name of the provider's cluster.
func (p *Provider) Cluster() string {
	return resourcename.OutboundCluster(p.Port, "", p.Service.GetHostname())
}

// Clusters lists the clusters of the providers that the class's policies ask, sorted. The proxy needs them whatever its
// Sidecar imports. A provider whose service lacks the port has none: asking it fails.
func Clusters(r *input.Reader) []string {
	var out []string
	for _, name := range r.Providers() {
		if found, err := provider(r, name); err == nil && discovery.Port(found.Service, found.Port) != nil {
			out = append(out, found.Cluster())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// provider returns the provider of a name. The error says why it cannot be asked.
func provider(r *input.Reader, name string) (*Provider, error) {
	all := r.Mesh().GetExtensionProviders()
	i := slices.IndexFunc(all, func(p *meshv1alpha1.MeshConfig_ExtensionProvider) bool { return p.GetName() == name })
	if i < 0 {
		return nil, fmt.Errorf("MeshConfig has no extension provider %q", name)
	}
	if err := authz.CheckProvider(all[i]); err != nil {
		return nil, fmt.Errorf("extension provider %q: %w", name, err)
	}
	out := &Provider{http: all[i].GetEnvoyExtAuthzHttp(), grpc: all[i].GetEnvoyExtAuthzGrpc()}
	service, status := out.http.GetService(), out.http.GetStatusOnError()
	out.Port = out.http.GetPort()
	if out.grpc != nil {
		service, out.Port, status = out.grpc.GetService(), out.grpc.GetPort(), out.grpc.GetStatusOnError()
	}
	if out.Service = r.ProviderService(service); out.Service == nil {
		return nil, fmt.Errorf("extension provider %q: there is no service %q, or several namespaces have one: name it NAMESPACE/HOST",
			name, service)
	}
	if status != "" {
		code, err := strconv.ParseInt(status, 10, 32)
		if err != nil || typev3.StatusCode_name[int32(code)] == "" || code == 0 {
			return nil, fmt.Errorf("extension provider %q: statusOnError %q is no status of HTTP", name, status)
		}
		out.status = &typev3.HttpStatus{Code: typev3.StatusCode(code)}
	}
	return out, nil
}

// customFilters are the filters of CUSTOM policies: for each provider, rules that only say which requests it is asked,
// and the filter that asks. What a provider that cannot be asked would be asked is denied.
func customFilters(r *input.Reader) ([]filter, error) {
	if len(r.Providers()) == 0 {
		return nil, nil
	}
	var out []filter
	for _, rules := range r.Rules().Custom {
		asked, err := rbac(rbacv3.RBAC_DENY, rules.Enforced, customPolicy+rules.Name+"-", http)
		if err != nil {
			return nil, err
		}
		if asked == nil {
			continue // all of it is dry run, which asks nobody
		}
		p, err := provider(r, rules.Name)
		if err != nil {
			out = append(out, filter{rbacFilter, &httprbacv3.RBAC{Rules: broken(asked), TrackPerRuleStats: true}})
			continue
		}
		prefix := customPrefix + rules.Name + "_"
		out = append(out,
			filter{rbacFilter, &httprbacv3.RBAC{ShadowRules: asked, ShadowRulesStatPrefix: prefix, TrackPerRuleStats: true}},
			filter{extAuthzFilter, p.httpFilter(askedBy(rbacFilter, prefix))})
	}
	return out, nil
}

// customNetworkFilters are customFilters for connections. Only gRPC providers can be asked about them; as in Istio,
// those of HTTP are not.
func customNetworkFilters(r *input.Reader) ([]*listenerv3.Filter, error) {
	var out []*listenerv3.Filter
	for _, rules := range r.ConnectionRules().Custom {
		asked, err := rbac(rbacv3.RBAC_DENY, rules.Enforced, customPolicy+rules.Name+"-", tcp)
		if err != nil {
			return nil, err
		}
		if asked == nil {
			continue
		}
		p, err := provider(r, rules.Name)
		switch {
		case err != nil:
			out = append(out, networkFilter(networkRBACFilter, &networkrbacv3.RBAC{StatPrefix: tcpStatPrefix, Rules: broken(asked)}))
		case p.grpc != nil:
			prefix := customPrefix + rules.Name + "_"
			out = append(out,
				networkFilter(networkRBACFilter, &networkrbacv3.RBAC{StatPrefix: tcpStatPrefix, ShadowRules: asked, ShadowRulesStatPrefix: prefix}),
				networkFilter(networkExtAuthzFilter, &networkextauthzv3.ExtAuthz{
					StatPrefix: tcpStatPrefix, FailureModeAllow: p.grpc.GetFailOpen(), TransportApiVersion: corev3.ApiVersion_V3,
					GrpcService: p.grpcService(), FilterEnabledMetadata: askedBy(networkRBACFilter, prefix),
				}))
		}
	}
	return out, nil
}

// broken denies what rules match.
func broken(asked *rbacv3.RBAC) *rbacv3.RBAC {
	out := &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{}}
	for name, p := range asked.GetPolicies() {
		out.Policies[name+brokenSuffix] = p
	}
	return out
}

// askedBy is true for what the shadow rules with the prefix matched.
func askedBy(filter, prefix string) *matcherv3.MetadataMatcher {
	return matcher.Metadata(filter, []string{prefix + effectiveID}, matcher.Text(&matcherv3.StringMatcher{
		MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: customPolicy},
	}))
}

func (p *Provider) httpFilter(enabled *matcherv3.MetadataMatcher) *extauthzv3.ExtAuthz {
	out := extAuthz()
	out.TransportApiVersion, out.StatusOnError, out.FilterEnabledMetadata = corev3.ApiVersion_V3, p.status, enabled
	if p.grpc != nil {
		out.FailureModeAllow, out.WithRequestBody = p.grpc.GetFailOpen(), requestBody(p.grpc.GetIncludeRequestBodyInCheck())
		out.Services = &extauthzv3.ExtAuthz_GrpcService{GrpcService: p.grpcService()}
		return out
	}
	out.FailureModeAllow, out.WithRequestBody = p.http.GetFailOpen(), requestBody(p.http.GetIncludeRequestBodyInCheck())
	out.AllowedHeaders = headerNames(p.http.GetIncludeRequestHeadersInCheck())
	if out.AllowedHeaders == nil {
		out.AllowedHeaders = headerNames(p.http.GetIncludeHeadersInCheck()) //nolint:staticcheck // deprecated, and still in use
	}
	service := &extauthzv3.HttpService{
		PathPrefix: p.http.GetPathPrefix(),
		ServerUri: &corev3.HttpUri{
			Uri: "http://" + p.Service.GetHostname(), Timeout: timeout(p.http.GetTimeout()),
			HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: p.Cluster()},
		},
	}
	if added := p.http.GetIncludeAdditionalHeadersInCheck(); len(added) > 0 {
		service.AuthorizationRequest = &extauthzv3.AuthorizationRequest{
			HeadersToAdd: each(slices.Sorted(maps.Keys(added)), func(name string) *corev3.HeaderValue {
				return &corev3.HeaderValue{Key: name, Value: added[name]}
			}),
		}
	}
	answer := &extauthzv3.AuthorizationResponse{
		AllowedUpstreamHeaders:        headerNames(p.http.GetHeadersToUpstreamOnAllow()),
		AllowedClientHeaders:          headerNames(p.http.GetHeadersToDownstreamOnDeny()),
		AllowedClientHeadersOnSuccess: headerNames(p.http.GetHeadersToDownstreamOnAllow()),
	}
	if answer.GetAllowedUpstreamHeaders() != nil || answer.GetAllowedClientHeaders() != nil ||
		answer.GetAllowedClientHeadersOnSuccess() != nil {
		service.AuthorizationResponse = answer
	}
	out.Services = &extauthzv3.ExtAuthz_HttpService{HttpService: service}
	return out
}

func (p *Provider) grpcService() *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
			ClusterName: p.Cluster(), Authority: p.Service.GetHostname(),
		}},
		Timeout: timeout(p.grpc.GetTimeout()),
	}
}

func timeout(d *durationpb.Duration) *durationpb.Duration {
	if d == nil {
		return durationpb.New(providerTimeout)
	}
	return d
}

func requestBody(in *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody) *extauthzv3.BufferSettings {
	if in == nil {
		return nil
	}
	return &extauthzv3.BufferSettings{
		MaxRequestBytes: in.GetMaxRequestBytes(), AllowPartialMessage: in.GetAllowPartialMessage(), PackAsBytes: in.GetPackAsBytes(),
	}
}

// headerNames matches headers by name; a "*" at the beginning or end of one stands for any text.
func headerNames(names []string) *matcherv3.ListStringMatcher {
	if len(names) == 0 {
		return nil
	}
	return &matcherv3.ListStringMatcher{Patterns: each(names, func(name string) *matcherv3.StringMatcher {
		out := &matcherv3.StringMatcher{IgnoreCase: true}
		if suffix, ok := strings.CutPrefix(name, "*"); ok {
			out.MatchPattern = &matcherv3.StringMatcher_Suffix{Suffix: suffix}
		} else if prefix, ok := strings.CutSuffix(name, "*"); ok {
			out.MatchPattern = &matcherv3.StringMatcher_Prefix{Prefix: prefix}
		} else {
			out.MatchPattern = &matcherv3.StringMatcher_Exact{Exact: name}
		}
		return out
	})}
}
