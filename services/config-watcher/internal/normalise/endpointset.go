package normalise

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/normalise/ipaddress"
	"fairlead.dev/services/config-watcher/internal/normalise/locality"
	"fairlead.dev/services/config-watcher/internal/normalise/share"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// rebuildEndpoints recomputes the EndpointSets of a hostname, and forgets a hostname that nobody owns.
func (m *Mesh) rebuildEndpoints(k hostKey) {
	h := m.hosts[k]
	if h == nil {
		return // EndpointSlices of a Service that is not there
	}
	var keys []resource.Key
	for _, es := range m.endpointSets(h) {
		key := resource.Key{Kind: resource.KindEndpointSet, Namespace: k.Namespace, Name: contract.EndpointSetName(es)}
		keys = append(keys, key)
		m.emit(key, es)
	}
	for _, old := range h.endpoints {
		if !slices.Contains(keys, old) {
			m.emit(old, nil)
		}
	}
	if h.endpoints = keys; h.owners.Len()+h.joiners.Len() == 0 {
		delete(m.hosts, k)
	}
}

// endpointSets builds an EndpointSet for every port number of a hostname and each cluster (of UDP, which UDPRoutes of
// the Gateway API may lead to, only if there is no TCP port of that number); an empty one of the own cluster for a port
// without endpoints there, so that xds-server knows that nothing serves it. Services whose proxies connect to the
// address or name that the client asked for have no sets, except headless ones.
func (m *Mesh) endpointSets(h *host) []*configv1.EndpointSet {
	var out []*configv1.EndpointSet
	claimants, services := h.claimants()
	for _, svc := range h.services {
		if svc.Resolution == configv1.Resolution_RESOLUTION_DYNAMIC_DNS || svc.Resolution == configv1.Resolution_RESOLUTION_PASSTHROUGH &&
			!svc.Headless {
			continue
		}
		byNode, visible := m.byNode(svc), m.visibleClaimants(claimants, svc.ExportedTo)
		for _, port := range udpLast(svc.Ports) {
			built := slices.ContainsFunc(out, func(s *configv1.EndpointSet) bool { return s.Port == port.Number && s.Audience == svc.Audience })
			if built {
				continue
			}
			b := setBuilder{svc: svc, port: port, byNode: byNode}
			for _, o := range visible {
				switch {
				case o.service != nil:
					for _, same := range services {
						m.addService(&b, same)
					}
				case o.object.Key.Name == svc.Name && svc.Source.Kind == "ServiceEntry" || resolutions[o.entry.Resolution] == svc.Resolution:
					m.addEntry(&b, o)
				}
			}
			m.addJoined(&b, h)
			for _, cluster := range b.clusters() {
				set := b.build(cluster, m.clusterID(cluster))
				set.Away, set.ClusterOnly = m.isAway(cluster), isClusterOnly(svc.Hostname, cluster, services)
				out = append(out, set)
			}
		}
	}
	return out
}

// udpLast sorts the ports of UDP behind the others, which otherwise keep their order.
func udpLast(ports []*configv1.ServicePort) []*configv1.ServicePort {
	isUDP := func(p *configv1.ServicePort) bool { return p.Protocol == configv1.Protocol_PROTOCOL_UDP }
	if !slices.ContainsFunc(ports, isUDP) {
		return ports
	}
	return slices.Concat(lists.Filter(ports, func(p *configv1.ServicePort) bool { return !isUDP(p) }), lists.Filter(ports, isUDP))
}

// candidate is one endpoint before its labels and locality are replaced by indices into the set's lists.
type candidate struct {
	endpoint *configv1.Endpoint
	// pod is true for a Pod: that it has the address is known from the cluster, and not from what somebody wrote.
	pod      bool
	labels   map[string]string
	locality *configv1.Locality
	cluster  string // empty for the own one
}

// compare orders candidates by address. The first of several with one address counts: a Pod before a WorkloadEntry, and
// of two Pods the one that is ready, because an ended Pod's address is given to another. It must not depend on the
// order in which objects came.
func (c candidate) compare(o candidate) int {
	x, y := c.endpoint, o.endpoint
	if order := cmp.Or(strings.Compare(x.Address, y.Address), cmp.Compare(x.Port, y.Port), strings.Compare(x.Network, y.Network),
		trueFirst(c.pod, o.pod), cmp.Compare(x.Health, y.Health), strings.Compare(x.Workload, y.Workload)); order != 0 {
		return order
	}
	return cmp.Or(strings.Compare(labelText(c.labels), labelText(o.labels)), cmp.Compare(x.TlsMode, y.TlsMode),
		strings.Compare(x.Identity, y.Identity),
		cmp.Compare(x.Weight, y.Weight), strings.Compare(x.Hostname, y.Hostname), slices.Compare(x.AdditionalAddresses, y.AdditionalAddresses),
		strings.Compare(locality.Text(c.locality), locality.Text(o.locality)))
}

// setBuilder collects the endpoints of one port of a Service, of which each cluster's make an EndpointSet.
type setBuilder struct {
	svc   *configv1.Service
	port  *configv1.ServicePort
	items []candidate
	// byNode is true if endpoints carry the label of their node, see Mesh.byNode.
	byNode bool
}

// clusters are those that have endpoints; the own one comes first, whether it has any or not.
func (b *setBuilder) clusters() []string {
	out := []string{""}
	for _, c := range b.items {
		if !slices.Contains(out, c.cluster) {
			out = append(out, c.cluster)
		}
	}
	slices.Sort(out)
	return out
}

// build makes the EndpointSet of a cluster, which is called id.
func (b *setBuilder) build(cluster, id string) *configv1.EndpointSet {
	out := &configv1.EndpointSet{Hostname: b.svc.Hostname, Port: b.port.Number, Cluster: id, Audience: b.svc.Audience}
	items := b.items
	if slices.ContainsFunc(items, func(c candidate) bool { return c.cluster != cluster }) {
		items = lists.Filter(items, func(c candidate) bool { return c.cluster == cluster })
	}
	slices.SortFunc(items, candidate.compare)
	labels, localities := map[string]uint32{}, map[string]uint32{}
	for i, c := range items {
		if last := items[max(i-1, 0)].endpoint; i > 0 && c.endpoint.Address != "" && c.endpoint.Address == last.Address &&
			c.endpoint.Port == last.Port && c.endpoint.Network == last.Network {
			continue // the same address twice, such as a Pod that two objects list
		}
		lt := labelText(c.labels)
		ln, ok := labels[lt]
		if !ok {
			ln = uint32(len(out.LabelSets))
			labels[lt] = ln
			out.LabelSets = append(out.LabelSets, &configv1.LabelSet{Labels: c.labels})
		}
		loc, zt := c.locality, locality.Text(c.locality)
		if loc == nil {
			loc = &configv1.Locality{}
		}
		zn, ok := localities[zt]
		if !ok {
			zn = uint32(len(out.Localities))
			localities[zt] = zn
			out.Localities = append(out.Localities, proto.Clone(loc).(*configv1.Locality))
		}
		c.endpoint.LabelSet, c.endpoint.Locality = ln, zn
		out.Endpoints = append(out.Endpoints, c.endpoint)
	}
	return out
}

func labelText(labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		b.WriteString(k)
		b.WriteByte(0)
		b.WriteString(labels[k])
		b.WriteByte(0)
	}
	return b.String()
}

// add makes an endpoint of an instance on a port of the instance. Its address is the first one; the first address of
// the other IP family is its additional address. It returns the endpoint of a banned identity too, but leaves it out of
// the set.
func (m *Mesh) add(b *setBuilder, in *instance, addresses []string, port uint32, health configv1.Health) *configv1.Endpoint {
	address := addresses[0]
	if strings.HasPrefix(address, "/") || strings.HasPrefix(address, "@") {
		port = 0
	}
	e := &configv1.Endpoint{
		Address: address, Port: port, Network: m.networkOf(in), Health: health, TlsMode: in.tlsMode,
		Identity: m.identity(in.key.Namespace, in.account), Weight: in.weight,
	}
	if in.key.Name != "" {
		e.Workload = in.key.Namespace + "/" + in.key.Name
	}
	if other := slices.IndexFunc(addresses, func(a string) bool {
		return ipaddress.Family(a) != "" && ipaddress.Family(a) != ipaddress.Family(address)
	}); other > 0 &&
		ipaddress.Family(address) != "" {
		e.AdditionalAddresses = []string{addresses[other]}
	}
	if m.bans[e.Identity] > 0 {
		return e
	}
	labels := in.labels
	if b.byNode {
		labels = merged(labels, nodeLabels(in))
	}
	b.items = append(b.items, candidate{e, in.isPod(), labels, m.localityOf(in), in.key.Cluster})
	return e
}

// addService adds the endpoints of a Kubernetes Service: its EndpointSlices if there are any, otherwise the Pods that
// it selects, and the WorkloadEntries that it selects in either case.
func (m *Mesh) addService(b *setBuilder, o *owner) {
	ownSlices := m.slices.ofService[o.name()]
	for s := range ownSlices.All {
		m.addSlice(b, s, o.service)
	}
	target := b.port
	for _, p := range o.ports {
		if p.Name == b.port.Name {
			target = p // that of its own cluster
		}
	}
	m.instances.selectedBy(o, func(in *instance) {
		addresses := ipaddress.OfFamilies(in.endpointAddresses(), o.service.Spec.IPFamilies)
		if ownSlices.Len() > 0 && in.isPod() || len(addresses) == 0 {
			return
		}
		number, ok := targetPort(in, target)
		if !ok {
			return
		}
		health := in.health
		if o.service.Spec.PublishNotReadyAddresses && health == configv1.Health_HEALTH_NOT_READY {
			health = configv1.Health_HEALTH_READY
		}
		added := m.add(b, in, addresses, number, health)
		if in.subdomain == o.object.Key.Name && b.svc.Headless {
			added.Hostname = in.hostname
		}
	})
}

// targetPort is the port of the instance that a service port leads to; false if the instance has none.
func targetPort(in *instance, port *configv1.ServicePort) (uint32, bool) {
	if !in.isPod() {
		if p, ok := in.ports[port.Name]; ok || in.registered != "" {
			return p, ok // a registry's instance has the ports that it says and no others
		}
	}
	if port.TargetPortName != "" {
		if p, ok := in.ports[port.TargetPortName]; ok {
			return p, true
		}
		return port.Number, !in.isPod()
	}
	return port.TargetPort, true
}

func (m *Mesh) addSlice(b *setBuilder, s *slice, svc *corev1.Service) {
	number, ok := slicePort(s.body, b.port)
	if !ok {
		return
	}
	for _, e := range s.body.Endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		in := m.sliceInstance(s, &e)
		addresses := e.Addresses[:1]
		if all := ipaddress.OfFamilies(in.addresses, svc.Spec.IPFamilies); len(svc.Spec.IPFamilies) > 1 && len(all) > 0 {
			addresses = all // EndpointSlices are of one family each: a Pod with both stands in two, and counts once.
		}
		added := m.add(b, in, addresses, number, sliceHealth(e.Conditions))
		if e.Hostname != nil {
			added.Hostname = *e.Hostname
		}
	}
}

// slicePort finds the slice's port with the name of the service port. The name is empty if it is the Service's only
// port and unnamed.
func slicePort(s *discoveryv1.EndpointSlice, port *configv1.ServicePort) (uint32, bool) {
	for _, p := range s.Ports {
		name := ""
		if p.Name != nil {
			name = *p.Name
		}
		if name != port.Name || p.Port == nil {
			continue
		}
		return uint32(*p.Port), true
	}
	return 0, false
}

// sliceInstance is the Pod that a slice's endpoint refers to, or an instance made from the endpoint itself.
func (m *Mesh) sliceInstance(s *slice, e *discoveryv1.Endpoint) *instance {
	if name, ok := s.pod(e); ok {
		if in := m.pod(name); in != nil {
			return in
		}
	}
	in := &instance{
		key:     object.Key{Namespace: s.service.namespace, Cluster: s.service.cluster},
		tlsMode: configv1.TlsMode_TLS_MODE_DISABLED,
	}
	if e.NodeName != nil {
		in.node = *e.NodeName
	}
	if e.Zone != nil && m.nodeLocality(in) == nil {
		in.locality = &configv1.Locality{Zone: *e.Zone}
	}
	return in
}

// sliceHealth reads an endpoint's conditions. Kubernetes' rule: without ready the endpoint is ready.
func sliceHealth(c discoveryv1.EndpointConditions) configv1.Health {
	switch {
	case c.Ready == nil || *c.Ready:
		return configv1.Health_HEALTH_READY
	case c.Terminating != nil && *c.Terminating && c.Serving != nil && *c.Serving:
		return configv1.Health_HEALTH_DRAINING
	default:
		return configv1.Health_HEALTH_NOT_READY
	}
}

// addEntry adds the endpoints of a ServiceEntry.
func (m *Mesh) addEntry(b *setBuilder, o *owner) {
	se := o.entry
	i := slices.IndexFunc(se.Ports, func(p *networking.ServicePort) bool { return p.Number == b.port.Number })
	if i < 0 || se.Resolution == networking.ServiceEntry_DYNAMIC_DNS { // which looks up the requested host
		return
	}
	m.addEntryPort(b, o, se.Ports[i])
	dns := se.Resolution == networking.ServiceEntry_DNS || se.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN
	if dns && len(se.Endpoints) == 0 && len(o.selector) == 0 && !strings.HasPrefix(b.svc.Hostname, "*") {
		b.items = append(b.items, candidate{endpoint: &configv1.Endpoint{
			Address: b.svc.Hostname, Port: entryTarget(se.Ports[i]), Health: configv1.Health_HEALTH_READY,
			TlsMode: configv1.TlsMode_TLS_MODE_DISABLED,
		}})
	}
}

// addEntryPort adds the endpoints of one port of a ServiceEntry: those that it lists, and those that it selects.
func (m *Mesh) addEntryPort(b *setBuilder, o *owner, port *networking.ServicePort) {
	own := &configv1.ServicePort{Name: port.Name, TargetPort: entryTarget(port)}
	add := func(in *instance) {
		addresses := in.endpointAddresses()
		if target, ok := targetPort(in, own); ok && len(addresses) > 0 {
			m.add(b, in, addresses, target, in.health)
		}
	}
	for _, we := range o.entry.Endpoints {
		in := fromWorkloadEntry(o.object, we)
		in.key, in.health = object.Key{Namespace: o.object.Key.Namespace}, configv1.Health_HEALTH_READY
		add(in)
	}
	m.instances.selectedBy(o, add)
}

// addJoined adds the endpoints of the oldest registry's ServiceEntry that joins the host, and divides the traffic
// between them and the others by its share. It adds those with an IP address alone, as Services have. Of a ServiceEntry
// with several ports, that with the service port's number counts; else the only port joins the only one.
func (m *Mesh) addJoined(b *setBuilder, h *host) {
	if h.joiners.Len() == 0 || b.svc.Resolution != configv1.Resolution_RESOLUTION_STATIC {
		return
	}
	var joiner *owner
	for o := range h.joiners.All {
		if joiner == nil || object.Older(o.object, joiner.object) {
			joiner = o
		}
	}
	ports := joiner.entry.Ports
	i := slices.IndexFunc(ports, func(p *networking.ServicePort) bool { return p.Number == b.port.Number })
	if i < 0 && len(ports) == 1 && len(b.svc.Ports) == 1 {
		i = 0
	}
	if i < 0 {
		return
	}
	own := len(b.items)
	m.addEntryPort(b, joiner, ports[i])
	joined := slices.DeleteFunc(b.items[own:], func(c candidate) bool { return ipaddress.Family(c.endpoint.Address) == "" })
	b.items = b.items[:own+len(joined)]
	switch percent := joiner.registered.Share; percent {
	case 0:
		b.items = b.items[:own]
	case 100:
		b.items = b.items[own:]
	default:
		weigh(b.items[:own], 100-percent)
		weigh(b.items[own:], percent)
	}
}

// weigh gives candidates the weights by which they get a share of the traffic, in percent.
func weigh(items []candidate, percent uint32) {
	group := lists.Map(items, func(c candidate) share.Endpoint {
		return share.Endpoint{Weight: c.endpoint.Weight, Ready: c.endpoint.Health == configv1.Health_HEALTH_READY}
	})
	for i, w := range share.Weights(group, percent) {
		items[i].endpoint.Weight = w
	}
}
