package serve_test

import (
	"strconv"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/plan/plantest"
)

const vhds = resource.VirtualHostType

// withVirtualHosts is plantest's set with a route configuration for each port. Delta sidecars get its virtual hosts as
// resources of their own, named "<port>/<host>:<port>". A VirtualService of a host changes its virtual host. On demand,
// every requested virtual host exists, and clusters exist by name only. Ports from 9000 have their routes inline.
func withVirtualHosts(set *plantest.Set) []plan.Translator {
	var all []plan.Translator
	for _, t := range set.Translators() {
		switch t.TypeURL() {
		case rds:
			all = append(all, routeConfigTranslator{}, virtualHostTranslator{})
		case cds:
			all = append(all, clustersOnDemand{t})
		default:
			all = append(all, t)
		}
	}
	return all
}

type clustersOnDemand struct{ plan.Translator }

func (t clustersOnDemand) HostNames(r *input.Reader, host string) ([]string, error) {
	if r.Class().OnDemand {
		return nil, nil
	}
	return t.Translator.HostNames(r, host)
}

type routeConfigTranslator struct{}

func (routeConfigTranslator) TypeURL() string                                   { return rds }
func (routeConfigTranslator) Traits() plan.Traits                               { return plan.Traits{} }
func (routeConfigTranslator) Names(*input.Reader) ([]string, error)             { return nil, nil }
func (routeConfigTranslator) HostNames(*input.Reader, string) ([]string, error) { return nil, nil }

func (routeConfigTranslator) Build(r *input.Reader, name string) (proto.Message, error) {
	port, err := strconv.Atoi(name)
	if err != nil {
		return nil, nil //nolint:nilerr // no such route configuration
	}
	rc := &route.RouteConfiguration{Name: name}
	if header := r.Mesh().GetAccessLogFile(); header != "" { // something that changes every route configuration
		rc.InternalOnlyHeaders = []string{header}
	}
	if r.Class().VirtualHosts && port < 9000 {
		rc.Vhds = &route.Vhds{ConfigSource: &core.ConfigSource{
			ResourceApiVersion:    core.ApiVersion_V3,
			ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}},
		}}
	}
	return rc, nil
}

type virtualHostTranslator struct{}

func (virtualHostTranslator) TypeURL() string                       { return vhds }
func (virtualHostTranslator) Traits() plan.Traits                   { return plan.Traits{} }
func (virtualHostTranslator) Names(*input.Reader) ([]string, error) { return nil, nil }

func (virtualHostTranslator) HostNames(r *input.Reader, host string) ([]string, error) {
	if r.Class().OnDemand {
		return nil, nil
	}
	var names []string
	for _, p := range r.Service(host).GetPorts() {
		port := strconv.FormatUint(uint64(p.GetNumber()), 10)
		names = append(names, port+"/"+host+":"+port)
	}
	return names, nil
}

func (virtualHostTranslator) Build(r *input.Reader, name string) (proto.Message, error) {
	routeConfig, authority, _ := strings.Cut(name, "/")
	host, _, _ := strings.Cut(authority, ":")
	if r.Service(host) == nil && !r.Class().OnDemand || strings.HasPrefix(host, "none") {
		return nil, nil
	}
	vh := &route.VirtualHost{Name: name, Domains: []string{authority}}
	if r.Service(host) != nil {
		by := "route"
		for _, vs := range r.VirtualServicesOf("mesh", host) {
			by += " by " + vs.Key.Name
		}
		vh.Routes = []*route.Route{{
			Name:  by,
			Match: &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"}},
			Action: &route.Route_Route{Route: &route.RouteAction{
				ClusterSpecifier: &route.RouteAction_Cluster{Cluster: routeConfig + "|" + host},
			}},
		}}
	}
	return vh, nil
}

// startHosts starts a server with withVirtualHosts.
func startHosts(t testing.TB, resources ...*configv1.Resource) *fixture {
	t.Helper()
	return startWith(t, setup{log: testkit.Logger(t), translators: withVirtualHosts}, resources)
}

// onDemand makes the client hold only what it requests by name.
func (c *deltaClient) onDemand() *deltaClient {
	meta, err := structpb.NewStruct(map[string]any{class.OnDemandMetadata: "true"})
	if err != nil {
		c.t.Fatal(err)
	}
	c.node.Metadata = meta
	return c
}

const (
	hostNameA = "80/" + hostA + ":80"
	hostNameB = "80/" + hostB + ":80"
)

// connectHosts subscribes to a route configuration and to virtual hosts, in Envoy's order, and acknowledges the
// responses.
func (c *deltaClient) connectHosts(want ...string) {
	c.t.Helper()
	c.subscribe(rds, "80")
	c.ack(c.expect(rds, "+80"))
	c.subscribe(vhds)
	c.ack(c.expect(vhds, want...))
}

// silent checks that nothing was sent: it requests something else and takes the next response.
func (c *deltaClient) silent(why string) {
	c.t.Helper()
	c.subscribe(eds, "silence|"+why)
	c.ack(c.expect(eds, "-silence|"+why))
}
