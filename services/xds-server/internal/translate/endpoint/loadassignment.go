package endpoint

import (
	"cmp"
	"path"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
)

// Endpoint metadata by which a cluster chooses between mesh mTLS and plaintext.
const (
	TransportSocketMatch = "envoy.transport_socket_match"
	TLSModeKey           = "tlsMode"
	TLSModeIstio         = "istio"
)

// meshEndpoint is an endpoint of the mesh with the labels, locality and cluster of its shard.
type meshEndpoint struct {
	*configv1.Endpoint
	labels   map[string]string
	locality *configv1.Locality
	cluster  string
	// away is true for an endpoint of a cluster that is away for long, and is not the client's own.
	away bool
	// mtls is true if a proxy terminates mesh mTLS at the endpoint.
	mtls bool
	// factor multiplies the weight; 0 counts as 1.
	factor uint32
	// more are further addresses of the endpoint.
	more []string
}

func (m meshEndpoint) weight() uint32 { return max(m.GetWeight(), 1) * max(m.factor, 1) }

// label returns a label's value. For topology labels the mesh's own data takes precedence over the workload's labels.
func (m meshEndpoint) label(key string) (string, bool) {
	if v := class.Topology(key, m.locality, m.GetNetwork(), m.cluster); v != "" {
		return v, true
	}
	v, ok := m.labels[key]
	return v, ok
}

// matches reports whether the endpoint has all the labels.
func (m meshEndpoint) matches(labels map[string]string) bool {
	for key, want := range labels {
		if v, ok := m.label(key); !ok || v != want {
			return false
		}
	}
	return true
}

// Assignment builds the load assignment of a cluster. Its bytes depend on the endpoints alone, not on the order of the
// shards.
func Assignment(r *input.Reader, c discovery.Cluster) *endpointv3.ClusterLoadAssignment {
	out := &endpointv3.ClusterLoadAssignment{ClusterName: c.String()}
	others := networks{reader: r}
	endpoints := usable(r, c, endpointsOf(r, c), &others)
	if c.AutoPassthrough {
		// Connections carry mesh TLS, which only a proxy can terminate.
		endpoints = slices.DeleteFunc(endpoints, func(m meshEndpoint) bool { return !m.mtls })
	}
	if r.Class().Type == class.Proxyless {
		endpoints = slices.DeleteFunc(endpoints, isPipe) // gRPC rejects endpoints that are sockets
	}
	if len(endpoints) == 0 && len(c.Service.GetSelector()) == 0 && (c.Kind == discovery.StrictDNS || c.Kind == discovery.LogicalDNS) {
		endpoints = ownName(c)
	}
	if c.Kind == discovery.LogicalDNS && len(endpoints) > 1 {
		// Envoy accepts one name for such a cluster.
		endpoints = endpoints[:1]
	}
	if c.Kind == discovery.EDS {
		endpoints = others.replaceByGateways(c, endpoints)
	}
	fresh, away := awayLast(endpoints)
	for _, list := range [][]meshEndpoint{fresh, away} {
		part := &endpointv3.ClusterLoadAssignment{Endpoints: byLocality(list)}
		setPriorities(r, c, part, list)
		appendLast(out, part)
	}
	return out
}

func endpointsOf(r *input.Reader, c discovery.Cluster) []meshEndpoint {
	var out []meshEndpoint
	for _, shard := range r.Endpoints(c.Service, c.Port) {
		modes := map[mode]bool{}
		for _, e := range shard.GetEndpoints() {
			m := meshEndpoint{Endpoint: e, cluster: shard.GetCluster(), away: shard.GetAway() && shard.GetCluster() != r.Class().Cluster}
			if int(e.GetLabelSet()) < len(shard.GetLabelSets()) {
				m.labels = shard.GetLabelSets()[e.GetLabelSet()].GetLabels()
			}
			if int(e.GetLocality()) < len(shard.GetLocalities()) {
				m.locality = shard.GetLocalities()[e.GetLocality()]
			}
			m.mtls = e.GetTlsMode() == configv1.TlsMode_TLS_MODE_ISTIO && acceptsMTLS(r, c, m, modes)
			out = append(out, m)
		}
	}
	slices.SortStableFunc(out, func(a, b meshEndpoint) int {
		return cmp.Or(trueLast(a.away, b.away), strings.Compare(localityName(a.locality), localityName(b.locality)),
			strings.Compare(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetPort(), b.GetPort()))
	})
	return out
}

// mode identifies the endpoints of a shard and namespace that have the same PeerAuthentication mode.
type mode struct{ labelSet, port uint32 }

// acceptsMTLS reports whether PeerAuthentication lets the endpoint's proxy accept mTLS: with DISABLE it accepts
// plaintext only. known caches the answers for a shard.
func acceptsMTLS(r *input.Reader, c discovery.Cluster, m meshEndpoint, known map[mode]bool) bool {
	id := mode{m.GetLabelSet(), m.GetPort()}
	accepts, ok := known[id]
	if !ok {
		namespace, _, _ := strings.Cut(m.GetWorkload(), "/")
		if namespace == "" {
			namespace = c.Service.GetNamespace()
		}
		accepts = r.PeerMTLS(namespace, m.labels, m.GetPort()) != input.Disable
		known[id] = accepts
	}
	return accepts
}

// usable returns the endpoints that receive traffic, belong to the subset, and have an address that the cluster can
// use: Envoy would reject a load assignment with one name among its addresses.
func usable(r *input.Reader, c discovery.Cluster, endpoints []meshEndpoint, others *networks) []meshEndpoint {
	type endpointAddress struct {
		// network is set for endpoints of other networks, which may have the same addresses.
		network, address string
		port             uint32
	}
	seen := map[endpointAddress]bool{}
	out := endpoints[:0]
	for _, m := range endpoints {
		if !takesTraffic(c, m) || !m.matches(c.SubsetSpec.GetLabels()) || !isOnClientNode(r, c, m) || !isInClientCluster(r, c, m) {
			continue
		}
		away := c.Kind == discovery.EDS && len(others.gateways(m)) > 0
		if !away && (m.GetAddress() == "" || c.Kind == discovery.EDS && !isPipe(m) && !m.selectAddresses(r.Class().Families)) {
			continue
		}
		at := endpointAddress{address: m.GetAddress(), port: m.GetPort()}
		if away {
			at.network = m.GetNetwork()
		}
		if at.address == "" || !seen[at] {
			seen[at] = true
			out = append(out, m)
		}
	}
	return out
}

func takesTraffic(c discovery.Cluster, m meshEndpoint) bool {
	switch m.GetHealth() {
	case configv1.Health_HEALTH_READY, configv1.Health_HEALTH_DRAINING:
		return true
	default:
		return c.Service.GetPublishNotReadyAddresses()
	}
}

// isOnClientNode reports whether clients may use the endpoint: of a service with internalTrafficPolicy Local, only
// endpoints of the clients' own node.
func isOnClientNode(r *input.Reader, c discovery.Cluster, m meshEndpoint) bool {
	if !c.Service.GetNodeLocal() {
		return true
	}
	node := m.labels[mesh.LabelHostname]
	return node != "" && node == r.Labels()[mesh.LabelHostname]
}

// isInClientCluster reports whether clients may use the endpoint: of a cluster-local service, only endpoints of the
// clients' own cluster.
func isInClientCluster(r *input.Reader, c discovery.Cluster, m meshEndpoint) bool {
	return !c.Service.GetClusterLocal() || m.cluster == r.Class().Cluster
}

// selectAddresses sets the address that a proxy of these IP families connects to, and further addresses for a proxy
// with both; ok is false if there is none.
func (m *meshEndpoint) selectAddresses(f class.Families) (ok bool) {
	if len(m.GetAdditionalAddresses()) == 0 {
		return f.Has(m.GetAddress())
	}
	all := slices.DeleteFunc(append([]string{m.GetAddress()}, m.GetAdditionalAddresses()...), func(a string) bool { return !f.Has(a) })
	if len(all) == 0 {
		return false
	}
	if all[0] != m.GetAddress() {
		m.Endpoint = proto.CloneOf(m.Endpoint)
		m.Address = all[0]
	}
	m.more = all[1:]
	return true
}

// ownName returns the service's hostname as the endpoint of a DNS service that lists none.
func ownName(c discovery.Cluster) []meshEndpoint {
	if strings.HasPrefix(c.Hostname, "*") || c.SubsetSpec != nil && len(c.SubsetSpec.GetLabels()) > 0 {
		return nil
	}
	return []meshEndpoint{{Endpoint: &configv1.Endpoint{
		Address: c.Hostname, Port: c.Port, Health: configv1.Health_HEALTH_READY, TlsMode: configv1.TlsMode_TLS_MODE_DISABLED,
	}}}
}

// isPipe reports whether the address is the path or the abstract name of a unix socket.
func isPipe(m meshEndpoint) bool {
	return strings.HasPrefix(m.GetAddress(), "/") || strings.HasPrefix(m.GetAddress(), "@")
}

// byLocality groups endpoints, which are sorted by locality.
func byLocality(endpoints []meshEndpoint) []*endpointv3.LocalityLbEndpoints {
	var out []*endpointv3.LocalityLbEndpoints
	last := ""
	for i, m := range endpoints {
		name := localityName(m.locality)
		if i == 0 || name != last {
			out = append(out, &endpointv3.LocalityLbEndpoints{Locality: locality(m.locality), LoadBalancingWeight: wrapperspb.UInt32(0)})
			last = name
		}
		group := out[len(out)-1]
		group.LbEndpoints = append(group.LbEndpoints, lbEndpoint(m))
		group.LoadBalancingWeight.Value += m.weight()
	}
	return out
}

func lbEndpoint(m meshEndpoint) *endpointv3.LbEndpoint {
	health := corev3.HealthStatus_HEALTHY
	if m.GetHealth() == configv1.Health_HEALTH_DRAINING {
		health = corev3.HealthStatus_DRAINING
	}
	to := &endpointv3.Endpoint{Address: address(m)}
	for _, a := range m.more {
		to.AdditionalAddresses = append(to.AdditionalAddresses,
			&endpointv3.Endpoint_AdditionalAddress{Address: coreconfig.SocketAddress(a, m.GetPort())})
	}
	return &endpointv3.LbEndpoint{
		HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: to},
		HealthStatus:        health,
		LoadBalancingWeight: wrapperspb.UInt32(m.weight()),
		Metadata:            metadata(m),
	}
}

func address(m meshEndpoint) *corev3.Address {
	if isPipe(m) {
		return coreconfig.Pipe(m.GetAddress())
	}
	return coreconfig.SocketAddress(m.GetAddress(), m.GetPort())
}

// metadata marks endpoints that accept mesh mTLS, and names the workload as Istio's telemetry does.
func metadata(m meshEndpoint) *corev3.Metadata {
	out := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	if m.mtls {
		out.FilterMetadata[TransportSocketMatch] = &structpb.Struct{Fields: map[string]*structpb.Value{
			TLSModeKey: structpb.NewStringValue(TLSModeIstio),
		}}
	}
	if m.GetWorkload() != "" {
		namespace, name := path.Split(m.GetWorkload())
		description := strings.Join([]string{
			name, strings.TrimSuffix(namespace, "/"), canonicalName(m.labels, name), canonicalRevision(m.labels), m.cluster,
		}, ";")
		out.FilterMetadata["istio"] = &structpb.Struct{Fields: map[string]*structpb.Value{
			"workload": structpb.NewStringValue(description),
		}}
	}
	if len(out.GetFilterMetadata()) == 0 {
		return nil
	}
	return out
}

func canonicalName(labels map[string]string, workload string) string {
	for _, key := range []string{"service.istio.io/canonical-name", "app.kubernetes.io/name", "app"} {
		if labels[key] != "" {
			return labels[key]
		}
	}
	return workload
}

func canonicalRevision(labels map[string]string) string {
	for _, key := range []string{"service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"} {
		if labels[key] != "" {
			return labels[key]
		}
	}
	return "latest"
}

// Identities lists, sorted, the SPIFFE IDs that servers of the cluster's port may have, whatever their subset or
// health: a server that becomes ready must not need a new cluster first.
func Identities(r *input.Reader, c discovery.Cluster) []string {
	var out []string
	for _, shard := range r.Endpoints(c.Service, c.Port) {
		for _, e := range shard.GetEndpoints() {
			if e.GetTlsMode() == configv1.TlsMode_TLS_MODE_ISTIO && e.GetIdentity() != "" {
				out = append(out, e.GetIdentity())
			}
		}
	}
	out = append(out, c.Service.GetSubjectAltNames()...)
	slices.Sort(out)
	return slices.Compact(out)
}

// AllTerminateMTLS reports whether every endpoint has a proxy that accepts mTLS; false if there are no endpoints.
func AllTerminateMTLS(r *input.Reader, c discovery.Cluster) bool {
	endpoints := endpointsOf(r, c)
	return len(endpoints) > 0 && !slices.ContainsFunc(endpoints, func(m meshEndpoint) bool { return !m.mtls })
}

// MTLSTurnedOff reports for which of the cluster's endpoints with a proxy PeerAuthentication turns mTLS off: "all",
// "some", or "" for none.
func MTLSTurnedOff(r *input.Reader, c discovery.Cluster) string {
	on, off := false, false
	for _, shard := range r.Endpoints(c.Service, c.Port) {
		modes := map[mode]bool{}
		for _, e := range shard.GetEndpoints() {
			if e.GetTlsMode() != configv1.TlsMode_TLS_MODE_ISTIO {
				continue
			}
			m := meshEndpoint{Endpoint: e}
			if int(e.GetLabelSet()) < len(shard.GetLabelSets()) {
				m.labels = shard.GetLabelSets()[e.GetLabelSet()].GetLabels()
			}
			accepts := acceptsMTLS(r, c, m, modes)
			on, off = on || accepts, off || !accepts
		}
	}
	switch {
	case !off:
		return ""
	case on:
		return "some"
	default:
		return "all"
	}
}
