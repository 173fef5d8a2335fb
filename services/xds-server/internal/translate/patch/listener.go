package patch

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	manager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// listeners patches a listener, its filter chains and their filters, and the route configuration inside an inbound
// listener.
type listeners struct {
	site
	// built is the listener before the patches; nil for one that a patch adds.
	built   *listener.Listener
	inbound bool
}

func newListeners(s site, m proto.Message) resource {
	built, _ := m.(*listener.Listener)
	return listeners{s, built, built != nil && sideOfListener(s, built) == mesh.Inbound}
}

func sideOfListener(s site, m proto.Message) string {
	switch {
	case s.r.Class().Type == class.Router:
		return mesh.Gateways
	case m.(*listener.Listener).GetTrafficDirection() == core.TrafficDirection_INBOUND:
		return mesh.Inbound
	default:
		return mesh.Outbound
	}
}

func (l listeners) concerns(p *mesh.Patch) bool {
	switch p.Spec.GetApplyTo() {
	case networking.EnvoyFilter_LISTENER:
		if p.Operation == networking.EnvoyFilter_Patch_ADD {
			return p.Value.(*listener.Listener).GetName() == l.name
		}
		return l.is(p) && l.onPort(p, nil)
	case networking.EnvoyFilter_LISTENER_FILTER:
		return l.is(p) && l.onPort(p, nil)
	case networking.EnvoyFilter_FILTER_CHAIN:
		adds := p.Operation == networking.EnvoyFilter_Patch_ADD
		return l.is(p) && (adds && l.onPort(p, nil) || l.anyChain(p))
	case networking.EnvoyFilter_NETWORK_FILTER, networking.EnvoyFilter_HTTP_FILTER:
		return l.is(p) && l.anyChain(p)
	default:
		return l.inbound // routes that are part of it
	}
}

// is reports whether the patch's match admits the listener, regardless of its port.
func (l listeners) is(p *mesh.Patch) bool {
	m := p.Spec.GetMatch()
	if m.GetObjectTypes() != nil && m.GetListener() == nil {
		return p.Spec.GetApplyTo() == networking.EnvoyFilter_LISTENER_FILTER // for which Istio looks at no other match
	}
	name := m.GetListener().GetName()
	return name == "" || name == l.name
}

// onPort reports whether the patch's match admits the port of the listener, or in virtualInbound the port of the filter
// chain.
func (l listeners) onPort(p *mesh.Patch, chain *listener.FilterChain) bool {
	port := p.Spec.GetMatch().GetListener().GetPortNumber()
	return port == 0 || port == l.built.GetAddress().GetSocketAddress().GetPortValue() ||
		l.name == resourcename.VirtualInbound && chain != nil && port == chain.GetFilterChainMatch().GetDestinationPort().GetValue()
}

func (l listeners) anyChain(p *mesh.Patch) bool {
	return slices.ContainsFunc(l.built.GetFilterChains(), func(c *listener.FilterChain) bool { return l.inChain(p, c) }) ||
		l.built.GetDefaultFilterChain() != nil && l.inChain(p, l.built.GetDefaultFilterChain())
}

// inChain reports whether the patch's match admits a filter chain.
func (l listeners) inChain(p *mesh.Patch, chain *listener.FilterChain) bool {
	m, match := p.Spec.GetMatch().GetListener().GetFilterChain(), chain.GetFilterChainMatch()
	if !l.onPort(p, chain) ||
		m.GetName() != "" && m.GetName() != chain.GetName() ||
		m.GetSni() != "" && !slices.Contains(match.GetServerNames(), m.GetSni()) ||
		m.GetTransportProtocol() != "" && m.GetTransportProtocol() != match.GetTransportProtocol() ||
		m.GetDestinationPort() != 0 && m.GetDestinationPort() != match.GetDestinationPort().GetValue() {
		return false
	}
	if m.GetApplicationProtocols() == "" {
		return true
	}
	for wanted := range strings.SplitSeq(m.GetApplicationProtocols(), ",") {
		if !slices.Contains(match.GetApplicationProtocols(), strings.TrimSpace(wanted)) {
			return false
		}
	}
	return true
}

func (l listeners) patch(m proto.Message, patches []*use) (proto.Message, error) {
	out := m.(*listener.Listener)
	for _, u := range of(patches, networking.EnvoyFilter_LISTENER, func(*use) bool { return true }) {
		switch op := u.Operation; {
		case op == networking.EnvoyFilter_Patch_ADD:
			return nil, u.errorf("there is a listener %q already, give it a name of its own or use MERGE", l.name)
		case op == networking.EnvoyFilter_Patch_REMOVE:
			u.done = true
			return nil, nil
		case isMerge(op):
			if err := merge(u, out); err != nil {
				return nil, err
			}
		}
	}
	var err error
	filters := of(patches, networking.EnvoyFilter_LISTENER_FILTER, func(*use) bool { return true })
	if out.ListenerFilters, err = listenerFilters.edit(out.GetListenerFilters(), filters); err != nil {
		return nil, err
	}
	if err := l.chains(out, patches); err != nil {
		return nil, err
	}
	return out, nil
}

var listenerFilters = list[*listener.ListenerFilter]{
	matches: func(u *use, f *listener.ListenerFilter) bool {
		name := u.Spec.GetMatch().GetListener().GetListenerFilter()
		return name == "" || name == f.GetName()
	},
	selects: func(u *use) bool { return u.Spec.GetMatch().GetListener().GetListenerFilter() != "" },
}

// chains patches the filter chains. Filter chains that a patch adds are not patched.
func (l listeners) chains(out *listener.Listener, patches []*use) error {
	edits := list[*listener.FilterChain]{
		matches: func(u *use, c *listener.FilterChain) bool { return l.inChain(u.Patch, c) },
		selects: func(*use) bool { return false },
	}
	all := of(patches, networking.EnvoyFilter_FILTER_CHAIN, func(*use) bool { return true })
	adds := of(all, networking.EnvoyFilter_FILTER_CHAIN, func(u *use) bool { return u.Operation == networking.EnvoyFilter_Patch_ADD })
	others := of(all, networking.EnvoyFilter_FILTER_CHAIN, func(u *use) bool { return u.Operation != networking.EnvoyFilter_Patch_ADD })
	var err error
	if out.FilterChains, err = edits.edit(out.GetFilterChains(), others); err != nil {
		return err
	}
	if byDefault := out.GetDefaultFilterChain(); byDefault != nil {
		kept, err := edits.edit([]*listener.FilterChain{byDefault}, others)
		if err != nil {
			return err
		}
		if out.DefaultFilterChain = nil; len(kept) > 0 {
			out.DefaultFilterChain = kept[0]
		}
	}
	for _, c := range chainsOf(out) {
		if err := l.filters(c, patches); err != nil {
			return err
		}
	}
	out.FilterChains, err = edits.edit(out.GetFilterChains(), adds)
	return err
}

// chainsOf lists the filter chains, including the default one.
func chainsOf(l *listener.Listener) []*listener.FilterChain {
	all := slices.Clone(l.GetFilterChains())
	if l.GetDefaultFilterChain() != nil {
		all = append(all, l.GetDefaultFilterChain())
	}
	return all
}

func filterMatch(u *use) *networking.EnvoyFilter_ListenerMatch_FilterMatch {
	return u.Spec.GetMatch().GetListener().GetFilterChain().GetFilter()
}

// isFilter reports whether a patch is for a filter: the filter that its match names, or if it names none, every filter
// of the type of its value.
func isFilter[T interface {
	GetName() string
	GetTypedConfig() *anypb.Any
}](u *use, name string, f T) bool {
	if name != "" {
		return name == f.GetName()
	}
	value, ok := u.Value.(T)
	return ok && value.GetTypedConfig() != nil && value.GetTypedConfig().MessageName() == f.GetTypedConfig().MessageName()
}

var networkFilters = list[*listener.Filter]{
	matches: func(u *use, f *listener.Filter) bool {
		return isFilter(u, filterMatch(u).GetName(), f)
	},
	selects: func(u *use) bool { return filterMatch(u).GetName() != "" },
	end: func(filters []*listener.Filter) int {
		return beforeLast(len(filters), func(i int) bool { return isTerminal(filters[i].GetTypedConfig()) })
	},
}

var httpFilters = list[*manager.HttpFilter]{
	matches: func(u *use, f *manager.HttpFilter) bool {
		return isFilter(u, filterMatch(u).GetSubFilter().GetName(), f)
	},
	selects: func(u *use) bool { return filterMatch(u).GetSubFilter().GetName() != "" },
	end: func(filters []*manager.HttpFilter) int {
		return beforeLast(len(filters), func(i int) bool { return isTerminal(filters[i].GetTypedConfig()) })
	},
}

// httpFilters are those of a connection manager. Filters of policies are found by their names though slots hold them.
func (l listeners) httpFilters(patches []*use) list[*manager.HttpFilter] {
	edits := httpFilters
	named := func(u *use) bool { return policy.IsFilter(filterMatch(u).GetSubFilter().GetName()) }
	if !slices.ContainsFunc(patches, named) {
		return edits
	}
	held := policy.Held(l.r)
	edits.matches = func(u *use, f *manager.HttpFilter) bool {
		return httpFilters.matches(u, f) || slices.Contains(held[f.GetName()], filterMatch(u).GetSubFilter().GetName())
	}
	return edits
}

// beforeLast returns the index at which ADD inserts: before the last item if that has to stay the last one.
func beforeLast(n int, isLast func(int) bool) int {
	if n > 0 && isLast(n-1) {
		return n - 1
	}
	return n
}

// filters patches the network filters of a filter chain, and the HTTP filters and routes of its HTTP connection
// manager.
func (l listeners) filters(c *listener.FilterChain, patches []*use) error {
	here := func(u *use) bool { return l.inChain(u.Patch, c) }
	var err error
	if c.Filters, err = networkFilters.edit(c.GetFilters(), of(patches, networking.EnvoyFilter_NETWORK_FILTER, here)); err != nil {
		return err
	}
	http := of(patches, networking.EnvoyFilter_HTTP_FILTER, here)
	for _, f := range c.GetFilters() {
		config := &manager.HttpConnectionManager{}
		if !f.GetTypedConfig().MessageIs(config) {
			continue
		}
		if err := f.GetTypedConfig().UnmarshalTo(config); err != nil {
			return err
		}
		mine := of(http, networking.EnvoyFilter_HTTP_FILTER, func(u *use) bool {
			name := filterMatch(u).GetName()
			return name == "" || name == f.GetName()
		})
		if config.HttpFilters, err = l.httpFilters(mine).edit(config.GetHttpFilters(), mine); err != nil {
			return err
		}
		if inline := config.GetRouteConfig(); inline != nil && l.inbound {
			if err := inboundRoutes(l.site, inline, patches); err != nil {
				return err
			}
		}
		f.ConfigType = &listener.Filter_TypedConfig{TypedConfig: typedconfig.Any(config)}
	}
	return nil
}
