package patch

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	manager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"fairlead.dev/pkg/envoyapi"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// validateNamed applies the rules of the resource's schema, and returns an error if a patch has changed its name.
func validateNamed(want, got string, m proto.Message) error {
	if got != want {
		return fmt.Errorf("name %q is in the place of %q, leave the name out", got, want)
	}
	return envoyapi.Validate(m)
}

// terminalFilters are the types of terminal filters. Envoy requires one at the end of a filter chain and nowhere else.
var terminalFilters = []string{
	"envoy.extensions.filters.http.router.v3.Router",
	"envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
	"envoy.extensions.filters.network.redis_proxy.v3.RedisProxy",
	"envoy.extensions.filters.network.thrift_proxy.v3.ThriftProxy",
	"envoy.extensions.filters.network.dubbo_proxy.v3.DubboProxy",
	"envoy.extensions.filters.network.generic_proxy.v3.GenericProxy",
	"envoy.extensions.filters.network.direct_response.v3.Config",
	"envoy.extensions.filters.network.echo.v3.Echo",
}

func isTerminal(config *anypb.Any) bool {
	return slices.Contains(terminalFilters, string(config.MessageName()))
}

// validateFilterOrder returns an error unless exactly the last filter is terminal.
func validateFilterOrder[T interface {
	GetName() string
	GetTypedConfig() *anypb.Any
}](kind string, filters []T) error {
	for i, f := range filters {
		switch last := i == len(filters)-1; {
		case isTerminal(f.GetTypedConfig()) && !last:
			return fmt.Errorf("%s filter %q comes after %q, which has to be the last one: use INSERT_BEFORE", kind, filters[i+1].GetName(),
				f.GetName())
		case last && f.GetTypedConfig() != nil && !isTerminal(f.GetTypedConfig()):
			return fmt.Errorf("%s filter %q is the last one and passes nothing on", kind, f.GetName())
		}
	}
	return nil
}

func (l listeners) validate(m proto.Message) error {
	out := m.(*listener.Listener)
	if err := validateNamed(l.name, out.GetName(), out); err != nil {
		return err
	}
	if l.built == nil {
		if err := l.validateAddress(out); err != nil {
			return err
		}
	}
	if len(chainsOf(out)) == 0 && out.GetUdpListenerConfig() == nil && out.GetApiListener() == nil {
		return errors.New("the listener has no filter chain left, remove the listener instead")
	}
	seen := map[string]bool{}
	for i, c := range out.GetFilterChains() {
		match, err := proto.MarshalOptions{Deterministic: true}.Marshal(c.GetFilterChainMatch())
		if err != nil {
			return err
		}
		if seen[string(match)] && out.GetFilterChainMatcher() == nil {
			return fmt.Errorf("filter chain %d, %q, has the match of one before it", i, c.GetName())
		}
		seen[string(match)] = true
	}
	for _, c := range chainsOf(out) {
		if err := validateFilterChain(c); err != nil {
			return err
		}
	}
	return nil
}

// validateAddress returns an error for an added listener at the address of another one.
func (l listeners) validateAddress(out *listener.Listener) error {
	at := out.GetAddress().GetSocketAddress()
	for _, name := range []string{resourcename.Listener(at.GetAddress(), at.GetPortValue()), resourcename.VirtualInbound,
		resourcename.VirtualOutbound} {
		m, err := l.inner.Build(l.r, name)
		if m == nil || err != nil {
			continue
		}
		if other := m.(*listener.Listener); proto.Equal(other.GetAddress(), out.GetAddress()) {
			return fmt.Errorf("address %s port %d is that of listener %s", at.GetAddress(), at.GetPortValue(), other.GetName())
		}
	}
	return nil
}

func validateFilterChain(c *listener.FilterChain) error {
	if err := validateFilterOrder("network", c.GetFilters()); err != nil {
		return err
	}
	for _, f := range c.GetFilters() {
		config := &manager.HttpConnectionManager{}
		if !f.GetTypedConfig().MessageIs(config) {
			continue
		}
		if err := f.GetTypedConfig().UnmarshalTo(config); err != nil {
			return err
		}
		if len(config.GetHttpFilters()) == 0 {
			return errors.New("the HTTP connection manager has no filter left")
		}
		if err := validateFilterOrder("HTTP", config.GetHttpFilters()); err != nil {
			return err
		}
		if inline := config.GetRouteConfig(); inline != nil {
			if err := validateRouteConfig(inline.GetName(), inline); err != nil {
				return err
			}
		}
	}
	return nil
}

// validateRouteConfig returns an error for two virtual hosts with the same name or domain.
func validateRouteConfig(name string, out *route.RouteConfiguration) error {
	if err := validateNamed(name, out.GetName(), out); err != nil {
		return err
	}
	hosts, domains := map[string]bool{}, map[string]string{}
	for _, h := range out.GetVirtualHosts() {
		if hosts[h.GetName()] {
			return fmt.Errorf("two virtual hosts are called %q", h.GetName())
		}
		hosts[h.GetName()] = true
		for _, d := range h.GetDomains() {
			d = strings.ToLower(d)
			if other, taken := domains[d]; taken {
				return fmt.Errorf("domain %q is that of virtual host %q and of %q", d, other, h.GetName())
			}
			domains[d] = h.GetName()
		}
	}
	return nil
}

// validateVirtualHost returns an error for domains that the virtual host was not built with, because another virtual
// host may have them.
func validateVirtualHost(name string, out *route.VirtualHost, domains []string) error {
	if err := validateNamed(name, out.GetName(), out); err != nil {
		return err
	}
	for i, d := range out.GetDomains() {
		if slices.Contains(domains, d) && !slices.Contains(out.GetDomains()[:i], d) {
			continue
		}
		return errors.New("domains cannot be patched here, another virtual host may have them: add a virtual host of its own")
	}
	return nil
}

func validateCluster(name string, out *cluster.Cluster) error {
	if err := validateNamed(name, out.GetName(), out); err != nil {
		return err
	}
	kind, plain := out.GetClusterDiscoveryType().(*cluster.Cluster_Type)
	original := plain && kind.Type == cluster.Cluster_ORIGINAL_DST
	switch {
	case out.GetEdsClusterConfig() != nil && plain && kind.Type != cluster.Cluster_EDS:
		return fmt.Errorf("a cluster of type %s cannot have an edsClusterConfig: add a cluster of its own", kind.Type)
	case plain && kind.Type == cluster.Cluster_EDS && out.GetEdsClusterConfig() == nil:
		return errors.New("a cluster of type EDS needs an edsClusterConfig")
	case original && out.GetLbPolicy() != cluster.Cluster_CLUSTER_PROVIDED:
		return errors.New("a cluster of type ORIGINAL_DST needs lbPolicy CLUSTER_PROVIDED")
	case plain && !original && out.GetLbPolicy() == cluster.Cluster_CLUSTER_PROVIDED:
		return fmt.Errorf("a cluster of type %s cannot have lbPolicy CLUSTER_PROVIDED", kind.Type)
	case plain && kind.Type == cluster.Cluster_LOGICAL_DNS && endpoints(out) != 1:
		return fmt.Errorf("a cluster of type LOGICAL_DNS needs one endpoint, it has %d", endpoints(out))
	}
	return nil
}

func endpoints(c *cluster.Cluster) int {
	n := 0
	for _, l := range c.GetLoadAssignment().GetEndpoints() {
		n += len(l.GetLbEndpoints())
	}
	return n
}

func validateExtension(m *core.TypedExtensionConfig) error {
	return validateNamed(m.GetName(), m.GetName(), m)
}
