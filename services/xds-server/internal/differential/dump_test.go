package differential_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	admin "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/services/xds-server/internal/envoytest"
)

// configuration is what a proxy has in use, by type and name. Virtual hosts are in their route configuration, whether
// they came with it or by VHDS.
type configuration map[string]map[string]proto.Message

func newConfiguration() configuration {
	c := configuration{}
	for _, url := range []string{resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType,
		resource.ExtensionConfigType} {
		c[url] = map[string]proto.Message{}
	}
	return c
}

// expected is the configuration that the resources make.
func expected(resources map[string]map[string]string) (configuration, error) {
	c := newConfiguration()
	for url, byName := range resources {
		if url == resource.VirtualHostType {
			continue
		}
		for name, content := range byName {
			m, err := (&anypb.Any{TypeUrl: url, Value: []byte(content)}).UnmarshalNew()
			if err != nil {
				return nil, err
			}
			c[url][name] = m
		}
	}
	for name, content := range resources[resource.VirtualHostType] {
		host := &route.VirtualHost{}
		if err := proto.Unmarshal([]byte(content), host); err != nil {
			return nil, err
		}
		table, ok := c[resource.RouteType][name[:strings.LastIndexByte(name, '/')]].(*route.RouteConfiguration)
		if !ok {
			return nil, fmt.Errorf("virtual host %s has no route configuration", name)
		}
		table.VirtualHosts = append(table.VirtualHosts, host)
	}
	for _, m := range c[resource.RouteType] {
		sortHosts(m.(*route.RouteConfiguration))
	}
	for _, m := range c[resource.EndpointType] {
		flatten(m.(*endpoint.ClusterLoadAssignment))
	}
	return c, nil
}

func sortHosts(rc *route.RouteConfiguration) {
	slices.SortFunc(rc.GetVirtualHosts(), func(a, b *route.VirtualHost) int { return strings.Compare(a.GetName(), b.GetName()) })
}

// flatten reduces a load assignment to what Envoy's dump shows of it: every endpoint with its locality and priority,
// sorted.
func flatten(a *endpoint.ClusterLoadAssignment) {
	a.Policy = nil
	var out []*endpoint.LocalityLbEndpoints
	for _, group := range a.GetEndpoints() {
		for _, e := range group.GetLbEndpoints() {
			if e.GetHealthStatus() == core.HealthStatus_HEALTHY {
				e.HealthStatus = core.HealthStatus_UNKNOWN
			}
			e.LoadBalancingWeight, e.GetEndpoint().HealthCheckConfig = nil, nil
			out = append(out, &endpoint.LocalityLbEndpoints{
				Locality: group.GetLocality(), Priority: group.GetPriority(), LbEndpoints: []*endpoint.LbEndpoint{e},
			})
			if proto.Size(group.GetLocality()) == 0 {
				out[len(out)-1].Locality = nil
			}
		}
	}
	key := func(g *endpoint.LocalityLbEndpoints) string {
		return fmt.Sprint(g.GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetAddress(), " ",
			g.GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetPortValue(), " ", g.GetLocality().GetZone())
	}
	slices.SortFunc(out, func(x, y *endpoint.LocalityLbEndpoints) int { return strings.Compare(key(x), key(y)) })
	a.Endpoints, a.NamedEndpoints = out, nil
}

var errWarming = errors.New("still warming")

// inUse reads what Envoy has in use. It fails while some of it is still warming. It reads the endpoints of EDS clusters
// only.
func inUse(e *envoytest.Process) (configuration, error) {
	c := newConfiguration()
	each := func(field string, f func(*anypb.Any) error) error {
		code, raw, err := e.Get("/config_dump?include_eds&resource=" + url.QueryEscape(field))
		if err != nil || code == http.StatusNotFound { // nothing of this kind
			return err
		}
		dump := &admin.ConfigDump{}
		if err := protojson.Unmarshal(raw, dump); err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		for _, entry := range dump.GetConfigs() {
			if err := f(entry); err != nil {
				return err
			}
		}
		return nil
	}
	assigned := map[string]bool{}
	return c, errors.Join(
		each("dynamic_warming_clusters", func(a *anypb.Any) error {
			m := &admin.ClustersConfigDump_DynamicCluster{}
			return errors.Join(fmt.Errorf("%w: %v", errWarming, a), a.UnmarshalTo(m))
		}),
		each("dynamic_active_clusters", func(a *anypb.Any) error {
			m, body := &admin.ClustersConfigDump_DynamicCluster{}, &cluster.Cluster{}
			if err := errors.Join(a.UnmarshalTo(m), m.GetCluster().UnmarshalTo(body)); err != nil {
				return err
			}
			c[resource.ClusterType][body.GetName()] = body
			if body.GetType() == cluster.Cluster_EDS {
				assigned[assignment(body)] = true
			}
			return nil
		}),
		each("dynamic_listeners", func(a *anypb.Any) error {
			m, body := &admin.ListenersConfigDump_DynamicListener{}, &listener.Listener{}
			if err := a.UnmarshalTo(m); err != nil {
				return err
			}
			switch {
			case m.GetErrorState() != nil:
				return fmt.Errorf("listener %s: %s", m.GetName(), m.GetErrorState().GetDetails())
			case m.GetWarmingState() != nil:
				return fmt.Errorf("%w: listener %s", errWarming, m.GetName())
			case m.GetActiveState() == nil: // draining
				return nil
			}
			err := m.GetActiveState().GetListener().UnmarshalTo(body)
			c[resource.ListenerType][m.GetName()] = body
			return err
		}),
		each("dynamic_route_configs", func(a *anypb.Any) error {
			m, body := &admin.RoutesConfigDump_DynamicRouteConfig{}, &route.RouteConfiguration{}
			if err := errors.Join(a.UnmarshalTo(m), m.GetRouteConfig().UnmarshalTo(body)); err != nil {
				return err
			}
			sortHosts(body)
			c[resource.RouteType][body.GetName()] = body
			return nil
		}),
		each("ecds_filters", func(a *anypb.Any) error {
			m, body := &admin.EcdsConfigDump_EcdsFilterConfig{}, &core.TypedExtensionConfig{}
			if err := errors.Join(a.UnmarshalTo(m), m.GetEcdsFilter().UnmarshalTo(body)); err != nil {
				return err
			}
			c[resource.ExtensionConfigType][body.GetName()] = body
			return nil
		}),
		each("dynamic_endpoint_configs", func(a *anypb.Any) error {
			m, body := &admin.EndpointsConfigDump_DynamicEndpointConfig{}, &endpoint.ClusterLoadAssignment{}
			if err := errors.Join(a.UnmarshalTo(m), m.GetEndpointConfig().UnmarshalTo(body)); err != nil {
				return err
			}
			if assigned[body.GetClusterName()] {
				flatten(body)
				c[resource.EndpointType][body.GetClusterName()] = body
			}
			return nil
		}),
	)
}

func assignment(c *cluster.Cluster) string {
	if name := c.GetEdsClusterConfig().GetServiceName(); name != "" {
		return name
	}
	return c.GetName()
}

// diff describes the differences between two configurations for people; "" if there are none.
func (c configuration) diff(got configuration) string {
	var out []string
	for url, byName := range c {
		for name, m := range byName {
			if have, ok := got[url][name]; !ok {
				out = append(out, url+" "+name+" is missing")
			} else if d := cmp.Diff(m, have, protocmp.Transform()); d != "" {
				out = append(out, url+" "+name+" is another (-want +got):\n"+d)
			}
		}
		for name := range got[url] {
			if _, ok := byName[name]; !ok {
				out = append(out, url+" "+name+" should not be there")
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}
