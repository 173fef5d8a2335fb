// Package policy translates AuthorizationPolicy and RequestAuthentication into Envoy's filters. Package authz says what
// the policies of a workload mean; here rbac.go and cel.go translate its rules, custom.go asks providers, jwt.go
// verifies tokens. All filters are upstream Envoy's, in Istio's order: CUSTOM, tokens, AUDIT, DENY, ALLOW.
//
// HTTP filters travel beside listeners (ECDS), so that no change of a policy drains a connection: every HTTP connection
// manager of an inbound listener or a gateway has the slots of SlotNames, which are filter chains as filters, and are
// empty where no policy applies (ADR 96). Network filters are part of the listener, whose drain ends open connections.
package policy

import (
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	filterchainv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/filter_chain/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/matcher"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// Names of filters, which are Istio's.
const (
	rbacFilter     = "envoy.filters.http.rbac"
	extAuthzFilter = "envoy.filters.http.ext_authz"

	networkRBACFilter     = "envoy.filters.network.rbac"
	networkExtAuthzFilter = "envoy.filters.network.ext_authz"
)

// Prefixes of the dynamic metadata that shadow rules write, which are Istio's.
const (
	dryRunAllowPrefix = "istio_dry_run_allow_"
	dryRunDenyPrefix  = "istio_dry_run_deny_"
)

// tcpStatPrefix begins the names of the network filters' metrics, as in Istio.
const tcpStatPrefix = "tcp."

// filter is an HTTP filter.
type filter struct {
	name   string
	config proto.Message
}

// Names of slots.
const (
	customSlot = "fairlead.custom"
	jwtSlot    = "fairlead.jwt"
	authzSlot  = "fairlead.authz"
)

// slots lists the names of the resources with their filters, in the order in which a request passes them.
var slots = []struct {
	name    string
	filters func(*input.Reader) ([]filter, error)
}{
	{customSlot, customFilters},
	{jwtSlot, jwtFilters},
	{authzSlot, authzFilters},
}

// SlotNames lists the extension configs that Slot builds, sorted; none for a class whose proxies take none.
func SlotNames(r *input.Reader) []string {
	if !hasSlots(r.Class()) {
		return nil
	}
	var out []string
	for _, s := range slots {
		out = append(out, s.name)
	}
	slices.Sort(out)
	return out
}

func hasSlots(c class.Common) bool {
	return c.Filters.Has(class.FilterChains|class.RBAC|class.ExtAuthz|class.JWT) && (c.Type == class.Sidecar || c.Type == class.Router)
}

// Slot builds the extension config of a name; nil if it is no slot.
func Slot(r *input.Reader, name string) (*corev3.TypedExtensionConfig, error) {
	for _, s := range slots {
		if s.name != name || !hasSlots(r.Class()) {
			continue
		}
		found, err := s.filters(r)
		if err != nil {
			return nil, &plan.Unenforced{Err: err}
		}
		chain := &filterchainv3.FilterChainConfig{}
		if len(found) > 0 {
			chain.DefaultFilterChain = &filterchainv3.FilterChain{Filters: each(found, func(f filter) *corev3.TypedExtensionConfig {
				return &corev3.TypedExtensionConfig{Name: f.name, TypedConfig: typedconfig.Any(f.config)}
			})}
		}
		return &corev3.TypedExtensionConfig{Name: name, TypedConfig: typedconfig.Any(chain)}, nil
	}
	return nil, nil
}

// HTTPFilters lists the filters of a connection manager that a policy may guard: the slots, or the filters themselves
// for a proxy that lacks the filter of filter chains, and where an EnvoyFilter changes one of them.
func HTTPFilters(r *input.Reader) ([]*managerv3.HttpFilter, error) {
	if Lacking(r) != nil {
		return closed(), nil //nolint:nilerr // what is lacking is told beside the resource
	}
	if hasSlots(r.Class()) && !patched(r) {
		return each(slots, func(s struct {
			name    string
			filters func(*input.Reader) ([]filter, error)
		}) *managerv3.HttpFilter {
			return &managerv3.HttpFilter{Name: s.name, ConfigType: &managerv3.HttpFilter_ConfigDiscovery{
				ConfigDiscovery: &corev3.ExtensionConfigSource{
					ConfigSource: coreconfig.ADSWithoutTimeout(),
					TypeUrls:     []string{"type.googleapis.com/" + string(proto.MessageName(&filterchainv3.FilterChainConfig{}))},
				},
			}}
		}), nil
	}
	var out []*managerv3.HttpFilter
	for _, s := range slots {
		found, err := s.filters(r)
		if err != nil {
			return nil, &plan.Unenforced{Err: err}
		}
		for _, f := range found {
			config := &managerv3.HttpFilter_TypedConfig{TypedConfig: typedconfig.Any(f.config)}
			out = append(out, &managerv3.HttpFilter{Name: f.name, ConfigType: config})
		}
	}
	return out, nil
}

// Lacking is an error that names the filters that the class's policies need and its proxies lack; nil if none is. Such
// proxies take no request and no connection to which policies apply.
func Lacking(r *input.Reader) error {
	missing := r.PolicyFilters() &^ r.Class().Filters
	if missing == 0 {
		return nil
	}
	return &plan.Unenforced{Err: fmt.Errorf("the proxy is closed: policies apply to it that need %s, which it lacks; replace it by a "+
		"complete Envoy, or remove the policies", strings.Join(missing.Names(), ", "))}
}

// closed refuses every request, without the filters that the proxy lacks.
func closed() []*managerv3.HttpFilter {
	return []*managerv3.HttpFilter{{Name: "envoy.filters.http.fault", ConfigType: &managerv3.HttpFilter_TypedConfig{
		TypedConfig: typedconfig.Any(&faultv3.HTTPFault{Abort: &faultv3.FaultAbort{
			ErrorType:  &faultv3.FaultAbort_HttpStatus{HttpStatus: 403},
			Percentage: &typev3.FractionalPercent{Numerator: 100},
		}}),
	}}}
}

// patched reports whether an EnvoyFilter for HTTP filters of the class needs the filters of policies themselves.
func patched(r *input.Reader) bool {
	for _, side := range r.Sides() {
		if side == mesh.Outbound {
			continue
		}
		for _, f := range r.EnvoyFilters(mesh.At(mesh.PatchedListeners, side)) {
			if slices.ContainsFunc(f.Patches, needsFilters) && r.Selected(f) {
				return true
			}
		}
	}
	return false
}

// needsFilters reports whether a patch changes a filter of policies, or puts another one where slots leave no place: in
// the middle of what one slot holds.
func needsFilters(p *mesh.Patch) bool {
	if p.Spec.GetApplyTo() != networking.EnvoyFilter_HTTP_FILTER {
		return false
	}
	name := p.Spec.GetMatch().GetListener().GetFilterChain().GetFilter().GetSubFilter().GetName()
	switch p.Operation {
	case networking.EnvoyFilter_Patch_ADD, networking.EnvoyFilter_Patch_INSERT_FIRST:
		return false // before or after all of them
	case networking.EnvoyFilter_Patch_INSERT_BEFORE:
		return name == extAuthzFilter // which comes after its shadow rules
	case networking.EnvoyFilter_Patch_INSERT_AFTER:
		return name == extAuthzFilter || name == rbacFilter // after which others may come
	}
	if name == "" {
		// Without a name, a patch is for the filters of its value's type.
		if value, ok := p.Value.(*managerv3.HttpFilter); ok {
			name = value.GetName()
			switch value.GetTypedConfig().MessageName() {
			case proto.MessageName(&httprbacv3.RBAC{}):
				name = rbacFilter
			case proto.MessageName(extAuthz()):
				name = extAuthzFilter
			case proto.MessageName(jwtAuthn()):
				name = matcher.JWTFilter
			}
		}
	}
	return IsFilter(name)
}

// IsFilter reports whether a name is that of an HTTP filter of policies.
func IsFilter(name string) bool {
	return name == rbacFilter || name == extAuthzFilter || name == matcher.JWTFilter
}

// Held returns, by slot, the names of the filters in it. A patch that puts another filter before or after one of them
// finds the slot by it, and nothing where no policy needs the filter, as with Istio.
func Held(r *input.Reader) map[string][]string {
	out := map[string][]string{}
	set := r.ConnectionRules() // which have the names of all policies
	for _, p := range set.Custom {
		if len(p.Enforced.Policies) == 0 {
			continue // all of it is dry run, which asks nobody
		}
		out[customSlot] = append(out[customSlot], rbacFilter)
		if _, err := provider(r, p.Name); err == nil {
			out[customSlot] = append(out[customSlot], extAuthzFilter)
		}
	}
	if slices.ContainsFunc(r.RequestAuthentications(), verifies) {
		out[jwtSlot] = []string{matcher.JWTFilter}
	}
	for _, g := range []authz.Group{set.Audit, set.Deny, set.Allow} {
		if len(g.Enforced.Policies)+len(g.DryRun.Policies) > 0 {
			out[authzSlot] = []string{rbacFilter}
		}
	}
	return out
}

func authzFilters(r *input.Reader) ([]filter, error) {
	set, err := httpRules(r.Rules(), http)
	if err != nil {
		return nil, err
	}
	return each(set, func(m *httprbacv3.RBAC) filter { return filter{rbacFilter, m} }), nil
}

// httpRules translates the rules of AUDIT, DENY and ALLOW, each into the configuration of a filter.
func httpRules(set *authz.Set, d dialect) ([]*httprbacv3.RBAC, error) {
	list, err := actions(set, d)
	return each(list, func(a action) *httprbacv3.RBAC {
		return &httprbacv3.RBAC{
			Rules: a.enforced, ShadowRules: a.tried, ShadowRulesStatPrefix: a.dryRunPrefix, TrackPerRuleStats: d == http,
		}
	}), err
}

// action has the rules of AUDIT, DENY or ALLOW, translated; enforced or tried may be nil. dryRunPrefix is for tried.
type action struct {
	enforced, tried *rbacv3.RBAC
	dryRunPrefix    string
}

// actions translates the rules of the actions that there are policies of, in the order of evaluation.
func actions(set *authz.Set, d dialect) ([]action, error) {
	var out []action
	for _, of := range []struct {
		action       rbacv3.RBAC_Action
		group        authz.Group
		dryRunPrefix string
	}{
		{rbacv3.RBAC_LOG, set.Audit, ""},
		{rbacv3.RBAC_DENY, set.Deny, dryRunDenyPrefix},
		{rbacv3.RBAC_ALLOW, set.Allow, dryRunAllowPrefix},
	} {
		enforced, err := rbac(of.action, of.group.Enforced, "", d)
		if err != nil {
			return nil, err
		}
		tried, err := rbac(of.action, of.group.DryRun, "", d)
		if err != nil {
			return nil, err
		}
		if enforced == nil && tried == nil {
			continue
		}
		if tried == nil {
			of.dryRunPrefix = ""
		}
		out = append(out, action{enforced, tried, of.dryRunPrefix})
	}
	return out, nil
}

// NetworkFilters lists the network filters before the TCP proxy of a filter chain that a policy may guard.
func NetworkFilters(r *input.Reader) ([]*listenerv3.Filter, error) {
	out, err := networkFilters(r)
	if err != nil {
		return nil, &plan.Unenforced{Err: err}
	}
	return out, nil
}

func networkFilters(r *input.Reader) ([]*listenerv3.Filter, error) {
	out, err := customNetworkFilters(r)
	if err != nil {
		return nil, err
	}
	list, err := actions(r.ConnectionRules(), tcp)
	if err != nil {
		return nil, err
	}
	for _, a := range list {
		out = append(out, networkFilter(networkRBACFilter, &networkrbacv3.RBAC{
			StatPrefix: tcpStatPrefix, Rules: a.enforced, ShadowRules: a.tried, ShadowRulesStatPrefix: a.dryRunPrefix,
		}))
	}
	return out, nil
}

func networkFilter(name string, m proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: typedconfig.Any(m)}}
}

// Proxyless returns the configurations of the RBAC filters of a proxyless gRPC server. gRPC verifies no token and asks
// no provider: what depends on one is denied.
func Proxyless(r *input.Reader) ([]*httprbacv3.RBAC, error) {
	set := r.Rules()
	var out []*httprbacv3.RBAC
	for _, p := range set.Custom {
		denied, err := rbac(rbacv3.RBAC_DENY, p.Enforced, "", grpc)
		if err != nil {
			return nil, err
		}
		if denied != nil {
			out = append(out, &httprbacv3.RBAC{Rules: denied})
		}
	}
	if m := proxylessTokens(r.RequestAuthentications()); m != nil {
		out = append(out, m)
	}
	set = &authz.Set{Deny: set.Deny, Allow: set.Allow}
	rules, err := httpRules(set, grpc)
	if err != nil {
		return nil, err
	}
	for _, m := range rules {
		m.ShadowRules, m.ShadowRulesStatPrefix = nil, ""
		if m.GetRules() != nil {
			out = append(out, m)
		}
	}
	return out, nil
}

// errorOf names the object of an error.
func errorOf(kind string, key mesh.Key, err error) error {
	return fmt.Errorf("%s %s/%s: %w", kind, key.Namespace, key.Name, err)
}
