package mcp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/mcp"
	"fairlead.dev/services/config-watcher/internal/object"
)

const (
	// maxServices bounds the services whose endpoints are read, maxEndpoints those of all of them together.
	maxServices  = 20_000
	maxEndpoints = 300_000

	tlsModeLabel = "security.istio.io/tlsMode"
)

// registry makes ServiceEntries with endpoints of the synthetic ones that an istiod tells of Kubernetes' Services: it
// has the endpoints that a stream of EDS brings (eds.go). Source.mu guards it.
type registry struct {
	name     string
	services map[object.Key]*service
	clusters map[string]*cluster
	// round counts changes of the list of ServiceEntries.
	round     uint64
	endpoints int
	wake      chan struct{}
	// impatient is true if clusters without an answer keep the source from being synced no more.
	impatient bool
	// failure is why EDS cannot be read since when; rejected is a message that could not be used.
	failure  error
	since    time.Time
	rejected object.Problems
}

func newRegistry(name string) *registry {
	return &registry{name: name, services: map[object.Key]*service{}, clusters: map[string]*cluster{}, wake: make(chan struct{}, 1)}
}

// template is a synthetic ServiceEntry as the server tells it.
type template struct {
	metadata *mcpv1alpha1.Metadata
	spec     *networking.ServiceEntry
}

// service is a synthetic ServiceEntry that is in the server's list.
type service struct {
	template *template
	clusters []string // by port
	// made is the ServiceEntry with endpoints, out of date if stale.
	made  *entry
	stale bool
	round uint64
}

// cluster is a port of a service, by its name in Envoy.
type cluster struct {
	of        map[object.Key]*service
	answered  bool
	endpoints []endpoint
}

// endpoint is one of a cluster.
type endpoint struct {
	address, locality string
	port, weight      uint32
	mesh              bool // it has a proxy that takes mutual TLS of the mesh
}

// templateOf reads a synthetic ServiceEntry; nil for one that stays without endpoints: a headless Service, whose Pods
// are called by their addresses, or a name in DNS.
func templateOf(entry *anypb.Any) *template {
	decode := proto.UnmarshalOptions{RecursionLimit: 100}
	m, spec := &mcpv1alpha1.Resource{}, &networking.ServiceEntry{}
	if decode.Unmarshal(entry.GetValue(), m) != nil || decode.Unmarshal(m.GetBody().GetValue(), spec) != nil ||
		spec.GetResolution() != networking.ServiceEntry_STATIC || len(spec.GetHosts()) != 1 {
		return nil
	}
	// Names that servers may have come from the Service's annotations there. They are no rule of this mesh.
	spec.SubjectAltNames = nil
	spec.WorkloadSelector, spec.Endpoints = nil, nil
	for _, p := range spec.Ports {
		if p.Name == "" {
			p.Name = "port-" + strconv.FormatUint(uint64(p.Number), 10)
		}
		// An istiod tells a protocol that is to be detected by a word that no ServiceEntry may have.
		p.Protocol = contract.ProtocolName(contract.ParseProtocol(p.Protocol))
	}
	return &template{m.GetMetadata(), spec}
}

// compose returns the entry with endpoints; nil while they are not known.
func (r *registry) compose(desc *kind, key object.Key, e *entry) *entry {
	svc := r.services[key]
	if svc == nil && len(r.services) >= maxServices {
		return &entry{key: key, problems: object.Problems{{Object: key.String(), Reason: fmt.Sprintf(
			"is left out: the endpoints of %d services are read at most", maxServices),
			Remedy: "remove subscribedResources, and make the other cluster a remote one"}}}
	}
	if svc == nil || svc.template != e.template {
		svc = r.replace(key, svc, e.template)
	}
	svc.round = r.round
	if !svc.stale {
		return svc.made
	}
	for _, name := range svc.clusters {
		if !r.clusters[name].answered {
			return svc.made
		}
	}
	svc.made, svc.stale = r.make(desc, svc), false
	return svc.made
}

// clusterName is that of a service's port in Envoy, as istiod has it.
func clusterName(port uint32, host string) string { return fmt.Sprintf("outbound|%d||%s", port, host) }

// replace takes over what the server tells of a service; before is nil for a new one. What is known of its endpoints
// stays.
func (r *registry) replace(key object.Key, before *service, t *template) *service {
	svc := &service{template: t, stale: true}
	for _, p := range t.spec.GetPorts() {
		name := clusterName(p.GetNumber(), t.spec.GetHosts()[0])
		svc.clusters = append(svc.clusters, name)
		if r.clusters[name] == nil {
			r.clusters[name] = &cluster{of: map[object.Key]*service{}}
			notify.Wake(r.wake)
		}
		r.clusters[name].of[key] = svc
	}
	if before != nil {
		svc.made = before.made
		r.leave(key, before)
	}
	r.services[key] = svc
	return svc
}

// leave takes a service from its clusters, and forgets those that nobody has any more.
func (r *registry) leave(key object.Key, svc *service) {
	for _, name := range svc.clusters {
		c := r.clusters[name]
		if c == nil || c.of[key] != svc {
			continue // a port that is twice in the list, or of the service that replaces it
		}
		delete(c.of, key)
		if len(c.of) == 0 {
			r.endpoints -= len(c.endpoints)
			delete(r.clusters, name)
			notify.Wake(r.wake)
		}
	}
}

// prune forgets the services that the last round has not named.
func (r *registry) prune() {
	for key, svc := range r.services {
		if svc.round != r.round {
			delete(r.services, key)
			r.leave(key, svc)
		}
	}
}

// complete reports whether all endpoints are known, as far as the server tells them.
func (r *registry) complete() bool {
	if r.impatient {
		return true
	}
	for _, c := range r.clusters {
		if !c.answered {
			return false
		}
	}
	return true
}

// make writes the endpoints into the ServiceEntry. An endpoint of a ServiceEntry has all of its ports, so that an
// address counts which has every port that anyone has.
func (r *registry) make(k *kind, svc *service) *entry {
	type place struct {
		endpoint
		ports map[string]uint32
	}
	places, used := map[string]*place{}, 0
	for i, name := range svc.clusters {
		list := r.clusters[name].endpoints
		if len(list) > 0 {
			used++
		}
		for _, e := range list {
			p := places[e.address]
			if p == nil {
				p = &place{endpoint: e, ports: map[string]uint32{}}
				places[e.address] = p
			}
			p.ports[svc.template.spec.Ports[i].Name] = e.port
		}
	}
	spec := proto.CloneOf(svc.template.spec)
	for _, address := range slices.Sorted(maps.Keys(places)) {
		p := places[address]
		if len(p.ports) < used {
			continue
		}
		we := &networking.WorkloadEntry{Address: address, Ports: p.ports, Locality: p.locality, Weight: p.weight}
		if p.mesh {
			we.Labels = map[string]string{tlsModeLabel: "istio"}
		}
		spec.Endpoints = append(spec.Endpoints, we)
	}
	body, err := anypb.New(spec)
	if err != nil {
		return &entry{problems: object.Problems{{Reason: err.Error()}}}
	}
	raw, err := anypb.New(&mcpv1alpha1.Resource{Metadata: svc.template.metadata, Body: body})
	if err != nil {
		return &entry{problems: object.Problems{{Reason: err.Error()}}}
	}
	d := mcp.Decode(k.desc, raw)
	if d.Object != nil {
		d.Object.Source = r.name
	}
	return &entry{key: d.Key, object: d.Object, problems: d.Problems, hold: d.Hold}
}

// update takes over the endpoints of clusters, and returns an error if there are too many.
func (r *registry) update(got map[string][]endpoint) error {
	total := r.endpoints
	for name, list := range got {
		if c := r.clusters[name]; c != nil {
			total += len(list) - len(c.endpoints)
		}
	}
	if total > maxEndpoints {
		return fmt.Errorf("the services have %d endpoints, more than %d", total, maxEndpoints)
	}
	for name, list := range got {
		c := r.clusters[name]
		if c == nil || c.answered && slices.Equal(c.endpoints, list) {
			continue
		}
		c.answered, c.endpoints = true, list
		for _, svc := range c.of {
			svc.stale = true
		}
	}
	r.endpoints = total
	return nil
}

// endpointsOf reads the endpoints of a cluster that take requests. Those of other networks have the addresses of
// gateways there.
func endpointsOf(raw *anypb.Any) (string, []endpoint, error) {
	cla := &endpointv3.ClusterLoadAssignment{}
	if err := (proto.UnmarshalOptions{RecursionLimit: 100}).Unmarshal(raw.GetValue(), cla); err != nil {
		return "", nil, err
	}
	var out []endpoint
	for _, group := range cla.GetEndpoints() {
		parts := []string{group.GetLocality().GetRegion(), group.GetLocality().GetZone(), group.GetLocality().GetSubZone()}
		locality := strings.TrimRight(strings.Join(parts, "/"), "/")
		for _, e := range group.GetLbEndpoints() {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			if h := e.GetHealthStatus().Number(); at.GetAddress() == "" || at.GetPortValue() == 0 || h > 1 {
				continue // neither UNKNOWN nor HEALTHY, or behind a tunnel
			}
			match := e.GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"].GetFields()["tlsMode"]
			out = append(out, endpoint{address: at.GetAddress(), port: at.GetPortValue(), locality: locality,
				weight: e.GetLoadBalancingWeight().GetValue(), mesh: match.GetStringValue() == "istio"})
		}
	}
	return cla.GetClusterName(), out, nil
}

// takeEndpoints takes a message of EDS over. An error rejects it as a whole.
func (s *Source) takeEndpoints(ctx context.Context, m *discovery.DeltaDiscoveryResponse) error {
	got := map[string][]endpoint{}
	var err error
	for _, res := range m.GetResources() {
		name, list, failed := endpointsOf(res.GetResource())
		if failed != nil {
			err = fmt.Errorf("the endpoints of %s cannot be decoded: %w", object.Quote(res.GetName()), failed)
			break
		}
		got[name] = list
	}
	for _, name := range m.GetRemovedResources() {
		got[name] = nil
	}
	s.change(ctx, s.entries, func() {
		r := s.registry
		r.failure, r.rejected = nil, nil
		if err == nil {
			err = r.update(got)
		}
		if err != nil {
			r.rejected = object.Problems{{Reason: err.Error() + ": the last ones stay", Remedy: "correct the MCP server " + s.cfg.Host}}
		}
	})
	s.settle()
	return err
}
