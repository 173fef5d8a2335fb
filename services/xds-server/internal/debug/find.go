package debug

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"

	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// match is a resource that the operator may have meant.
type match struct {
	url, name string
	// routeConfig is set for a virtual host that is part of a route configuration: its name. The name of the match is
	// then "<route configuration>/<virtual host>".
	routeConfig string
}

// finder looks for resources of one class.
type finder struct {
	class    *plan.Class
	snapshot *plan.Snapshot
	// url is the type to look for; "" means all types.
	url string
}

func newFinder(c *plan.Class, url string) *finder { return &finder{c, c.Snapshot(), url} }

// find lists the resources that the text may mean: a resource's name, or a host with or without port and domain. A name
// that only a cluster and its endpoints have means the cluster.
func (f *finder) find(text string) []match {
	if exact := f.resourcesWhere(func(m match) bool { return m.name == text }); len(exact) > 0 {
		if len(exact) == 2 && exact[0].url == resource.ClusterType && exact[1].url == resource.EndpointType {
			return exact[:1]
		}
		return exact
	}
	host, port := splitHost(text)
	if host == "" && port == 0 {
		return nil
	}
	key := f.class.Key()
	domain := "svc." + key.Common().ClusterDomain
	full := []string{host}
	if host != "" {
		full = append(full, host+"."+key.Namespace+"."+domain, host+"."+domain)
	}
	found := f.resourcesWhere(func(m match) bool {
		// A port alone means the listeners on it, at any address, and the resources for all hosts.
		return m.belongsTo(port, func(h string) bool { return slices.Contains(full, h) || host == "" && m.url == resource.ListenerType })
	})
	if len(found) > 0 || host == "" {
		return found
	}
	return f.resourcesWhere(func(m match) bool {
		return m.belongsTo(port, func(h string) bool { return strings.HasPrefix(h, host+".") })
	})
}

// resourcesWhere lists the resources that satisfy a condition, including virtual hosts inside route configurations.
func (f *finder) resourcesWhere(condition func(match) bool) []match {
	var found []match
	for _, url := range f.snapshot.URLs() {
		if f.url != "" && f.url != url && (url != resource.RouteType || f.url != resource.VirtualHostType) {
			continue
		}
		f.snapshot.Type(url).Scan(func(name string, item plan.Item) bool {
			if m := (match{url: url, name: name}); (f.url == "" || f.url == url) && condition(m) && (item.Blob != nil || f.failed(m)) {
				found = append(found, m)
			}
			if url == resource.RouteType && f.url != resource.RouteType {
				for _, vh := range routeConfiguration(item).GetVirtualHosts() {
					if m := (match{resource.VirtualHostType, name + "/" + vh.GetName(), name}); condition(m) {
						found = append(found, m)
					}
				}
			}
			return true
		})
	}
	slices.SortFunc(found, func(a, b match) int {
		return cmp.Or(cmp.Compare(rank(a.url), rank(b.url)), cmp.Compare(a.url, b.url), cmp.Compare(a.name, b.name))
	})
	return found
}

// failed reports whether the resource could not be built.
func (f *finder) failed(m match) bool {
	return slices.ContainsFunc(f.class.Failures(m.url), func(failure plan.Failure) bool { return failure.Name == m.name })
}

// belongsTo reports whether the resource belongs to a host that the condition accepts, and to the port unless that is
// 0.
func (m match) belongsTo(port uint32, condition func(host string) bool) bool {
	host, number := m.hostAndPort()
	return (port == 0 || port == number) && condition(host)
}

// hostAndPort reads the host and port in a resource's name.
func (m match) hostAndPort() (host string, port uint32) {
	switch m.url {
	case resource.ClusterType, resource.EndpointType:
		if c, ok := resourcename.ParseCluster(m.name); ok {
			return c.Hostname, c.Port
		}
	case resource.VirtualHostType:
		slash := strings.LastIndexByte(m.name, '/')
		var ok bool
		if host, port, ok = resourcename.ParseSniffedRouteConfig(m.name[slash+1:]); !ok {
			// An authority without a port, on demand: the port is the route configuration's.
			host = m.name[slash+1:]
			_, port, _ = resourcename.ParseOutboundRouteConfig(m.name[:max(slash, 0)])
		}
	case resource.RouteType:
		var ok bool
		if host, port, ok = resourcename.ParseSniffedRouteConfig(m.name); ok {
			break
		}
		if host, port, ok = resourcename.ParseOutboundRouteConfig(m.name); ok {
			break
		}
		if port, ok = resourcename.ParseGatewayHTTPRouteConfig(m.name); !ok {
			port, _ = resourcename.ParseGatewayHTTPSRouteConfig(m.name)
		}
	case resource.ListenerType:
		host, port, _ = resourcename.ParseListener(m.name)
		if host == "0.0.0.0" || host == "::" {
			host = ""
		}
	}
	return strings.Trim(host, "[]"), port
}

// splitHost reads host[:port], or a port alone.
func splitHost(text string) (host string, port uint32) {
	if n, err := strconv.ParseUint(text, 10, 16); err == nil {
		return "", uint32(n)
	}
	if h, p, err := net.SplitHostPort(text); err == nil {
		if n, err := strconv.ParseUint(p, 10, 16); err == nil {
			return strings.ToLower(h), uint32(n)
		}
	}
	return strings.ToLower(strings.TrimSuffix(text, ".")), 0
}

// routeConfiguration returns the item's message; nil if it is no route configuration.
func routeConfiguration(item plan.Item) *route.RouteConfiguration {
	if item.Blob == nil {
		return nil
	}
	rc := &route.RouteConfiguration{}
	if err := item.Blob.Resource.GetResource().UnmarshalTo(rc); err != nil {
		return nil
	}
	return rc
}
