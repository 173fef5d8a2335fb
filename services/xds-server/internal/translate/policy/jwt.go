package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtauthnv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/matcher"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// keysTimeout is the timeout of a fetch that never takes place, which Envoy requires.
const keysTimeout = 5 * time.Second

// noKeys is the address of keys that there are not. Envoy asks the cluster that leads nowhere for them, so that every
// token of the issuer is refused: an empty key set would make it reject the filter, and for a cluster that is missing
// it would log an error for each token.
const noKeys = "http://fairlead.no-usable-key"

// spaceDelimited are the claims whose text is a list of words, as in Istio (RFC 8693 for scope).
var spaceDelimited = []string{"permission", "scope"}

func jwtAuthn() *jwtauthnv3.JwtAuthentication { return &jwtauthnv3.JwtAuthentication{} }

// verifies reports whether a RequestAuthentication needs the filter: it has rules, or refuses every token.
func verifies(ra *mesh.RequestAuthentication) bool {
	return ra.HeldClosed || len(ra.Spec.GetJwtRules()) > 0
}

func jwtFilters(r *input.Reader) ([]filter, error) {
	m, err := tokens(r)
	if m == nil || err != nil {
		return nil, err
	}
	return []filter{{matcher.JWTFilter, m}}, nil
}

// tokens verifies the tokens of all rules: one that is there must be valid for a rule that reads the place where it
// stands, and a request without one passes. An object that is closed refuses every token.
func tokens(r *input.Reader) (*jwtauthnv3.JwtAuthentication, error) {
	type ruleOf struct {
		*security.JWTRule
		owner mesh.Key
	}
	var rules []ruleOf
	closed := false
	for _, ra := range r.RequestAuthentications() {
		closed = closed || ra.HeldClosed
		for _, rule := range ra.Spec.GetJwtRules() {
			rules = append(rules, ruleOf{rule, ra.Key})
		}
	}
	if len(rules) == 0 && !closed {
		return nil, nil
	}
	slices.SortStableFunc(rules, func(a, b ruleOf) int { return cmp.Compare(a.GetIssuer(), b.GetIssuer()) })
	out := jwtAuthn()
	out.Providers, out.BypassCorsPreflight = map[string]*jwtauthnv3.JwtProvider{}, true
	var valid, validOrMissing []*jwtauthnv3.JwtRequirement
	for i, rule := range rules {
		p, err := jwtProvider(r, rule.JWTRule)
		if err != nil {
			return nil, errorOf(mesh.KindRequestAuthentication, rule.owner, err)
		}
		name := fmt.Sprintf("origins-%d", i) // as in Istio
		out.Providers[name] = p
		valid = append(valid, byProvider(name))
		validOrMissing = append(validOrMissing, anyOf(byProvider(name), missing()))
	}
	var requirement *jwtauthnv3.JwtRequirement
	switch len(rules) {
	case 0:
	case 1:
		requirement = validOrMissing[0]
	default:
		// Several rules may read the same place: a token need be valid for one of them.
		requirement = anyOf(append(valid, allOf(validOrMissing...))...)
	}
	if closed {
		const name = "closed"
		out.Providers[name] = &jwtauthnv3.JwtProvider{JwksSourceSpecifier: withoutKeys()}
		refused := anyOf(byProvider(name), missing())
		if requirement == nil {
			requirement = refused
		} else {
			requirement = allOf(refused, requirement)
		}
	}
	out.Rules = []*jwtauthnv3.RequirementRule{{
		Match:           &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		RequirementType: &jwtauthnv3.RequirementRule_Requires{Requires: requirement},
	}}
	if err := out.ValidateAll(); err != nil {
		return nil, err
	}
	return out, nil
}

func jwtProvider(r *input.Reader, rule *security.JWTRule) (*jwtauthnv3.JwtProvider, error) {
	out := &jwtauthnv3.JwtProvider{
		Issuer: rule.GetIssuer(), Audiences: rule.GetAudiences(), Forward: rule.GetForwardOriginalToken(),
		ForwardPayloadHeader: rule.GetOutputPayloadToHeader(), PayloadInMetadata: matcher.JWTPayload,
		FromParams: rule.GetFromParams(), FromCookies: rule.GetFromCookies(),
		// Routes of a gateway may match claims.
		ClearRouteCache: r.Class().Type == class.Router,
	}
	words := slices.Concat(spaceDelimited, rule.GetSpaceDelimitedClaims())
	slices.Sort(words)
	out.NormalizePayloadInMetadata = &jwtauthnv3.JwtProvider_NormalizePayload{SpaceDelimitedClaims: slices.Compact(words)}
	for _, h := range rule.GetFromHeaders() {
		out.FromHeaders = append(out.FromHeaders, &jwtauthnv3.JwtHeader{Name: h.GetName(), ValuePrefix: h.GetPrefix()})
	}
	for _, h := range rule.GetOutputClaimToHeaders() {
		out.ClaimToHeaders = append(out.ClaimToHeaders, &jwtauthnv3.JwtClaimToHeader{HeaderName: h.GetHeader(), ClaimName: h.GetClaim()})
	}
	if keys := r.Keys(rule); keys != "" {
		out.JwksSourceSpecifier = &jwtauthnv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: keys},
		}}
	} else {
		out.JwksSourceSpecifier = withoutKeys()
	}
	return out, nil
}

func withoutKeys() *jwtauthnv3.JwtProvider_RemoteJwks {
	return &jwtauthnv3.JwtProvider_RemoteJwks{RemoteJwks: &jwtauthnv3.RemoteJwks{
		HttpUri: &corev3.HttpUri{
			Uri: noKeys, Timeout: durationpb.New(keysTimeout),
			HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: resourcename.BlackHoleCluster},
		},
	}}
}

func byProvider(name string) *jwtauthnv3.JwtRequirement {
	return &jwtauthnv3.JwtRequirement{RequiresType: &jwtauthnv3.JwtRequirement_ProviderName{ProviderName: name}}
}

func missing() *jwtauthnv3.JwtRequirement {
	return &jwtauthnv3.JwtRequirement{RequiresType: &jwtauthnv3.JwtRequirement_AllowMissing{AllowMissing: &emptypb.Empty{}}}
}

func anyOf(some ...*jwtauthnv3.JwtRequirement) *jwtauthnv3.JwtRequirement {
	return &jwtauthnv3.JwtRequirement{RequiresType: &jwtauthnv3.JwtRequirement_RequiresAny{
		RequiresAny: &jwtauthnv3.JwtRequirementOrList{Requirements: some},
	}}
}

func allOf(all ...*jwtauthnv3.JwtRequirement) *jwtauthnv3.JwtRequirement {
	return &jwtauthnv3.JwtRequirement{RequiresType: &jwtauthnv3.JwtRequirement_RequiresAll{
		RequiresAll: &jwtauthnv3.JwtRequirementAndList{Requirements: all},
	}}
}

// proxylessTokens denies requests with a token to a proxyless gRPC server, which cannot verify it: those with a header
// in which a rule looks for one. Nil if no object applies.
func proxylessTokens(list []*mesh.RequestAuthentication) *httprbacv3.RBAC {
	if len(list) == 0 {
		return nil
	}
	names := []string{"authorization"}
	for _, ra := range list {
		for _, rule := range ra.Spec.GetJwtRules() {
			for _, h := range rule.GetFromHeaders() {
				names = append(names, strings.ToLower(h.GetName()))
			}
			if len(rule.GetFromCookies()) > 0 {
				names = append(names, "cookie")
			}
		}
	}
	slices.Sort(names)
	return &httprbacv3.RBAC{Rules: &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{"token": {
		Permissions: []*rbacv3.Permission{anyPermission()},
		Principals: []*rbacv3.Principal{orIDs(each(slices.Compact(names), func(name string) *rbacv3.Principal {
			return &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{Header: &routev3.HeaderMatcher{
				Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
			}}}
		}))},
	}}}}
}
