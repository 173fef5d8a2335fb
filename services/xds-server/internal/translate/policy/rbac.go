package policy

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/services/xds-server/internal/translate/matcher"
)

// dialect is what a filter can match.
type dialect uint8

const (
	// http is Envoy's HTTP filter.
	http dialect = iota
	// tcp is Envoy's network filter: rules have their form for connections.
	tcp
	// grpc is the HTTP filter of gRPC libraries, which know neither CEL nor dynamic metadata.
	grpc
)

// rbac translates rules of one action into Envoy's; nil if no policy has the action.
func rbac(action rbacv3.RBAC_Action, rules authz.Rules, prefix string, d dialect) (*rbacv3.RBAC, error) {
	if len(rules.Policies) == 0 {
		return nil, nil
	}
	out := &rbacv3.RBAC{Action: action, Policies: map[string]*rbacv3.Policy{}}
	for _, rule := range rules.List {
		form := rule.HTTP
		if d == tcp {
			form = rule.TCP
		}
		if form == nil {
			continue
		}
		p, err := rulePolicy(form, d)
		if err != nil {
			return nil, fmt.Errorf("AuthorizationPolicy %s/%s: rules[%d]: %w", rule.Namespace, rule.Policy, rule.Index, err)
		}
		if p != nil {
			out.Policies[prefix+rule.Name] = p
		} else if action != rbacv3.RBAC_ALLOW {
			// What cannot be evaluated is denied.
			out.Policies[prefix+rule.Name] = everything()
		}
	}
	return out, nil
}

func everything() *rbacv3.Policy {
	return &rbacv3.Policy{Permissions: []*rbacv3.Permission{anyPermission()}, Principals: []*rbacv3.Principal{anyPrincipal()}}
}

func anyPermission() *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}}
}

func anyPrincipal() *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}}
}

// rulePolicy translates a rule; nil if the dialect cannot express it.
func rulePolicy(f *authz.Form, d dialect) (*rbacv3.Policy, error) {
	t := translation{dialect: d}
	var permissions []*rbacv3.Permission
	var principals []*rbacv3.Principal
	if len(f.To) > 0 {
		permissions = append(permissions, orRules(each(f.To, func(c authz.Clause) *rbacv3.Permission { return andRules(t.permissions(c)) })))
	}
	if len(f.From) > 0 {
		principals = append(principals, orIDs(each(f.From, func(c authz.Clause) *rbacv3.Principal { return andIDs(t.principals(c)) })))
	}
	var headers []authz.Match
	for _, m := range f.When {
		switch {
		case m.Field == authz.Header && d == http:
			headers = append(headers, m)
		case isPermission(m.Field):
			permissions = append(permissions, t.permission(m))
		default:
			principals = append(principals, t.principal(m))
		}
	}
	if t.err != nil {
		return nil, t.err
	}
	if t.beyond {
		return nil, nil
	}
	return &rbacv3.Policy{
		Permissions: []*rbacv3.Permission{andRules(permissions)}, Principals: []*rbacv3.Principal{andIDs(principals)},
		Condition: headerCondition(headers),
	}, nil
}

func each[T, R any](in []T, f func(T) R) []R {
	out := make([]R, 0, len(in))
	for _, v := range in {
		out = append(out, f(v))
	}
	return out
}

// andRules matches if all do; anything if there are none.
func andRules(all []*rbacv3.Permission) *rbacv3.Permission {
	switch len(all) {
	case 0:
		return anyPermission()
	case 1:
		return all[0]
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: all}}}
}

func orRules(some []*rbacv3.Permission) *rbacv3.Permission {
	if len(some) == 1 {
		return some[0]
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: some}}}
}

// andIDs matches if all do; anybody if there are none.
func andIDs(all []*rbacv3.Principal) *rbacv3.Principal {
	switch len(all) {
	case 0:
		return anyPrincipal()
	case 1:
		return all[0]
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: all}}}
}

func orIDs(some []*rbacv3.Principal) *rbacv3.Principal {
	if len(some) == 1 {
		return some[0]
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: some}}}
}

// isPermission reports whether Envoy matches a field among the permissions of a policy rather than the principals.
func isPermission(f authz.Field) bool {
	switch f {
	case authz.Host, authz.Method, authz.Path, authz.SNI, authz.DestinationIP, authz.Port:
		return true
	default:
		return false
	}
}

// translation translates the matches of one rule.
type translation struct {
	dialect
	// err is the first match that cannot be translated, although it should not have been accepted.
	err error
	// beyond is true if the dialect cannot express the rule.
	beyond bool
}

func (t *translation) permissions(c authz.Clause) []*rbacv3.Permission { return each(c, t.permission) }

func (t *translation) permission(m authz.Match) *rbacv3.Permission {
	out := orRules(each(m.Values, func(v authz.Value) *rbacv3.Permission { return t.permissionValue(m, v) }))
	if m.Not {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: out}}
	}
	return out
}

func (t *translation) permissionValue(m authz.Match, v authz.Value) *rbacv3.Permission {
	switch m.Field {
	case authz.Host:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: t.header(":authority", v.String)}}
	case authz.Method:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: t.header(":method", v.String)}}
	case authz.Path:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: &matcherv3.PathMatcher{
			Rule: &matcherv3.PathMatcher_Path{Path: t.text(v.String)},
		}}}
	case authz.SNI:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_RequestedServerName{RequestedServerName: t.text(v.String)}}
	case authz.DestinationIP:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationIp{DestinationIp: cidr(v)}}
	case authz.Port:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationPort{DestinationPort: v.Port}}
	default:
		t.fail(m)
		return anyPermission()
	}
}

func (t *translation) principals(c authz.Clause) []*rbacv3.Principal { return each(c, t.principal) }

func (t *translation) principal(m authz.Match) *rbacv3.Principal {
	out := orIDs(each(m.Values, func(v authz.Value) *rbacv3.Principal { return t.principalValue(m, v) }))
	if m.Not {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: out}}
	}
	return out
}

func (t *translation) principalValue(m authz.Match, v authz.Value) *rbacv3.Principal {
	switch m.Field {
	case authz.Principal:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{Authenticated: &rbacv3.Principal_Authenticated{
			PrincipalName: t.text(v.String),
		}}}
	case authz.SourceIP:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: cidr(v)}}
	case authz.RemoteIP:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_RemoteIp{RemoteIp: cidr(v)}}
	case authz.Header:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{Header: t.header(m.Key[0], v.String)}}
	case authz.RequestPrincipal:
		return andIDs([]*rbacv3.Principal{
			t.metadata(matcher.Metadata(matcher.JWTFilter, []string{matcher.JWTPayload, "iss"}, matcher.Text(t.text(v.String)))),
			t.metadata(matcher.Metadata(matcher.JWTFilter, []string{matcher.JWTPayload, "sub"}, matcher.Text(t.text(v.Subject)))),
		})
	case authz.Claim:
		return t.metadata(matcher.Claim(m.Key, t.text(v.String)))
	case authz.Metadata:
		value := matcher.Text(t.text(v.String))
		if v.List {
			value = matcher.OneOf(t.text(v.String))
		}
		return t.metadata(matcher.Metadata(m.Key[0], m.Key[1:], value))
	default:
		t.fail(m)
		return anyPrincipal()
	}
}

func (t *translation) fail(m authz.Match) {
	if t.err == nil {
		t.err = fmt.Errorf("%s cannot be translated", m.Attribute)
	}
}

func (t *translation) metadata(m *matcherv3.MetadataMatcher) *rbacv3.Principal {
	t.beyond = t.beyond || t.dialect == grpc
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_SourcedMetadata{SourcedMetadata: &rbacv3.SourcedMetadata{
		MetadataSource: rbacv3.MetadataSource_DYNAMIC, MetadataMatcher: m,
	}}}
}

func (t *translation) header(name string, m authz.StringMatch) *routev3.HeaderMatcher {
	out := &routev3.HeaderMatcher{Name: name}
	if m.Kind == authz.Present {
		out.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}
	} else {
		out.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: t.text(m)}
	}
	return out
}

func (t *translation) text(m authz.StringMatch) *matcherv3.StringMatcher {
	out := &matcherv3.StringMatcher{IgnoreCase: m.IgnoreCase}
	switch m.Kind {
	case authz.Exact:
		out.MatchPattern = &matcherv3.StringMatcher_Exact{Exact: m.Text}
	case authz.Prefix:
		out.MatchPattern = &matcherv3.StringMatcher_Prefix{Prefix: m.Text}
	case authz.Suffix:
		out.MatchPattern = &matcherv3.StringMatcher_Suffix{Suffix: m.Text}
	case authz.Contains:
		out.MatchPattern = &matcherv3.StringMatcher_Contains{Contains: m.Text}
	case authz.Regex:
		t.regex(out, m.Text)
	case authz.NotEmpty:
		t.regex(out, ".+")
	default:
		t.regex(out, ".*")
	}
	return out
}

func (t *translation) regex(out *matcherv3.StringMatcher, expression string) {
	regex, err := matcher.Regex(expression)
	if err != nil && t.err == nil {
		t.err = err
	}
	out.IgnoreCase = false
	out.MatchPattern = &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex}
}

func cidr(v authz.Value) *corev3.CidrRange {
	return &corev3.CidrRange{
		AddressPrefix: v.CIDR.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(v.CIDR.Bits())), //nolint:gosec // 0 to 128
	}
}
