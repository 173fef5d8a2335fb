// Package plantest is a small set of translators for tests of the engine. They make real xDS types from real look-ups,
// with little content.
package plantest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Set is one translator per type and counts what they build. Clusters are named "<port>|<host>"; those of services
// outside the mesh depend on the workload's label app; the cluster that the label uses names is listed for the workload
// in particular. Endpoints have the name of their cluster. Each port number of the visible services has one listener
// "<port>" and one route configuration "<port>".
type Set struct {
	mu     sync.Mutex
	builds map[string]int
	// broken names fail with the given error. ErrPanic panics, ErrInvalid builds what does not validate, and a
	// *plan.Incomplete comes with the message.
	broken map[string]error
}

// New returns a set that works.
func New() *Set { return &Set{builds: map[string]int{}, broken: map[string]error{}} }

// ErrPanic and ErrInvalid make Break panic, or build a message that does not validate.
var (
	ErrPanic   = errors.New("panic")
	ErrInvalid = errors.New("invalid")
)

// Break makes the resource of a name fail; nil mends it.
func (s *Set) Break(name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken[name] = err
}

// Builds returns how often each "<type> <name>" was built since the last call. Lists of names count as "<type> *",
// those of a host as "<type> *<host>".
func (s *Set) Builds() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.builds
	s.builds = map[string]int{}
	return b
}

// Translators lists one per type.
func (s *Set) Translators() []plan.Translator {
	return []plan.Translator{
		&translator{set: s, url: resource.ClusterType, names: clusterNames, build: buildCluster},
		&translator{set: s, url: resource.EndpointType, build: buildEndpoints},
		&translator{set: s, url: resource.ListenerType, names: ports, build: buildListener},
		&translator{set: s, url: resource.RouteType, build: buildRoutes},
	}
}

type translator struct {
	set   *Set
	url   string
	names func(*input.Reader, string) []string
	build func(*input.Reader, string) proto.Message
}

func (t *translator) TypeURL() string { return t.url }

func (t *translator) Traits() plan.Traits { return plan.Traits{} }

func (t *translator) count(name string) error {
	t.set.mu.Lock()
	defer t.set.mu.Unlock()
	t.set.builds[t.url[strings.LastIndexByte(t.url, '.')+1:]+" "+name]++
	return t.set.broken[name]
}

func (t *translator) Names(r *input.Reader) ([]string, error) {
	if t.names == nil {
		return nil, nil
	}
	if uses := r.Labels()["uses"]; t.url == resource.ClusterType && uses != "" {
		return []string{uses}, t.count("*")
	}
	return nil, t.count("*")
}

func (t *translator) HostNames(r *input.Reader, host string) ([]string, error) {
	if t.names == nil {
		return nil, nil
	}
	names := t.names(r, host)
	return names, t.count("*" + host)
}

func (t *translator) Build(r *input.Reader, name string) (proto.Message, error) {
	m := t.build(r, name)
	switch err := t.count(name); {
	case errors.Is(err, ErrPanic):
		panic("as asked")
	case errors.Is(err, ErrInvalid):
		return &cluster.Cluster{Name: name, LbPolicy: -1}, nil
	case err != nil && !isIncomplete(err):
		return nil, err
	case m == nil:
		return nil, err
	default:
		return m, err
	}
}

func isIncomplete(err error) bool {
	_, ok := errors.AsType[*plan.Incomplete](err)
	return ok
}

// ClusterName is the name of a service port's cluster and endpoints.
func ClusterName(port uint32, host string) string { return fmt.Sprintf("%d|%s", port, host) }

func split(name string) (uint32, string) {
	port, host, _ := strings.Cut(name, "|")
	n, _ := strconv.ParseUint(port, 10, 32)
	return uint32(n), host
}

func clusterNames(r *input.Reader, host string) []string {
	var names []string
	for _, p := range r.Service(host).GetPorts() {
		names = append(names, ClusterName(p.GetNumber(), host))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func buildCluster(r *input.Reader, name string) proto.Message {
	port, host := split(name)
	s := r.Service(host)
	if s == nil || !slices.ContainsFunc(s.GetPorts(), func(p *configv1.ServicePort) bool { return p.GetNumber() == port }) {
		return nil
	}
	c := &cluster.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS},
		EdsClusterConfig: &cluster.Cluster_EdsClusterConfig{
			EdsConfig: &core.ConfigSource{ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}}},
		},
		AltStatName: s.GetNamespace(),
	}
	if s.GetMeshExternal() {
		c.AltStatName += r.Labels()["app"]
	}
	if rule := r.DestinationRule(host); rule != nil {
		c.ConnectTimeout = rule.Spec.GetTrafficPolicy().GetConnectionPool().GetTcp().GetConnectTimeout()
	}
	for _, f := range r.EnvoyFilters(mesh.At(mesh.PatchedClusters, mesh.Outbound)) {
		if r.Selected(f) {
			c.AltStatName += " " + f.Name()
		}
	}
	return c
}

func buildEndpoints(r *input.Reader, name string) proto.Message {
	port, host := split(name)
	if r.Service(host) == nil {
		return nil
	}
	a := &endpoint.ClusterLoadAssignment{ClusterName: name}
	for _, set := range r.Endpoints(r.Service(host), port) {
		group := &endpoint.LocalityLbEndpoints{}
		for _, e := range set.GetEndpoints() {
			group.LbEndpoints = append(group.LbEndpoints, &endpoint.LbEndpoint{HostIdentifier: &endpoint.LbEndpoint_Endpoint{
				Endpoint: &endpoint.Endpoint{Address: address(e.GetAddress(), e.GetPort())},
			}})
		}
		a.Endpoints = append(a.Endpoints, group)
	}
	return a
}

func address(host string, port uint32) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: host, PortSpecifier: &core.SocketAddress_PortValue{PortValue: port},
	}}}
}

func ports(r *input.Reader, host string) []string {
	var names []string
	for _, p := range r.Service(host).GetPorts() {
		names = append(names, strconv.FormatUint(uint64(p.GetNumber()), 10))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func buildListener(r *input.Reader, name string) proto.Message {
	port, _ := split(name)
	return &listener.Listener{
		Name: name, Address: address("127.0.0.1", port), StatPrefix: r.InboundMTLS(port).String(),
	}
}

func buildRoutes(r *input.Reader, name string) proto.Message {
	if !slices.ContainsFunc(r.Services(), func(s *configv1.Service) bool { return slices.Contains(ports(r, s.GetHostname()), name) }) {
		return nil
	}
	rc := &route.RouteConfiguration{Name: name}
	for _, vs := range r.VirtualServices(contract.MeshGateway) {
		rc.VirtualHosts = append(rc.VirtualHosts, &route.VirtualHost{
			Name: vs.Key.Namespace + "/" + vs.Key.Name, Domains: vs.Spec.GetHosts(),
		})
	}
	return rc
}
