package endpoint

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
)

func localityName(l *configv1.Locality) string {
	return strings.TrimRight(l.GetRegion()+"/"+l.GetZone()+"/"+l.GetSubzone(), "/")
}

func locality(l *configv1.Locality) *corev3.Locality {
	return &corev3.Locality{Region: l.GetRegion(), Zone: l.GetZone(), SubZone: l.GetSubzone()}
}

func parseLocality(name string) *corev3.Locality {
	parts := strings.SplitN(name, "/", 3)
	parts = append(parts, "", "", "")
	return &corev3.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
}

// LocalitySettings returns the locality settings that apply to a cluster: those of its DestinationRule, or else of the
// mesh; nil if they are disabled.
func LocalitySettings(r *input.Reader, c discovery.Cluster) *networking.LocalityLoadBalancerSetting {
	settings := c.Policy.GetLoadBalancer().GetLocalityLbSetting()
	if settings == nil {
		settings = r.Mesh().GetLocalityLbSetting()
	}
	if settings.GetEnabled() != nil && !settings.GetEnabled().GetValue() {
		return nil
	}
	return settings
}

// UsesLocalityWeights reports whether the cluster's load balancer needs the weights of localities.
func UsesLocalityWeights(r *input.Reader, c discovery.Cluster) bool {
	settings := LocalitySettings(r, c)
	if len(settings.GetDistribute()) > 0 {
		return true
	}
	return c.Policy.GetOutlierDetection() != nil && (len(settings.GetFailover()) > 0 || len(settings.GetFailoverPriority()) > 0)
}

// setPriorities applies the locality settings: shares of traffic (distribute), or priorities by distance (failover,
// failoverPriority). As in Istio, priorities require outlier detection: without it a proxy would never leave the
// nearest endpoints.
func setPriorities(r *input.Reader, c discovery.Cluster, out *endpointv3.ClusterLoadAssignment, endpoints []meshEndpoint) {
	settings := LocalitySettings(r, c)
	key := r.Class()
	switch {
	case c.Policy.GetLoadBalancer().GetLocalityLbSetting() == nil && c.Service.GetTrafficDistribution() != "":
		nearestFirst(r, c, out, endpoints)
	case settings == nil:
	case len(settings.GetDistribute()) > 0:
		distribute(out, parseLocality(key.Locality), settings.GetDistribute())
	case c.Policy.GetOutlierDetection() == nil:
	case len(settings.GetFailoverPriority()) > 0:
		failoverPriority(out, endpoints, r.Labels, settings.GetFailoverPriority())
		if len(settings.GetFailover()) > 0 {
			failover(out, parseLocality(key.Locality), settings.GetFailover())
		}
	default:
		failover(out, parseLocality(key.Locality), settings.GetFailover())
	}
}

// nearestFirst gives priorities for a Service's trafficDistribution, which needs no outlier detection.
func nearestFirst(r *input.Reader, c discovery.Cluster, out *endpointv3.ClusterLoadAssignment, endpoints []meshEndpoint) {
	if mesh.PrefersSameNode(c.Service) {
		failoverPriority(out, endpoints, r.Labels, []string{mesh.LabelHostname})
	}
	failover(out, parseLocality(r.Class().Locality), nil)
}

// within reports whether a locality matches a pattern such as "region1/zone2" or "region1/zone2/*".
func within(l *corev3.Locality, pattern string) bool {
	if pattern == "*" {
		return true
	}
	parts := strings.Split(pattern, "/")
	for i, have := range []string{l.GetRegion(), l.GetZone(), l.GetSubZone()} {
		if i < len(parts) && parts[i] != "*" && parts[i] != have {
			return false
		}
	}
	return true
}

// distribute gives localities the shares of the first entry that matches the client's locality; localities that it does
// not name get no traffic. The share of a pattern is divided among its localities by their weights.
func distribute(out *endpointv3.ClusterLoadAssignment, own *corev3.Locality,
	settings []*networking.LocalityLoadBalancerSetting_Distribute) {
	for _, entry := range settings {
		if !within(own, entry.GetFrom()) {
			continue
		}
		left := slices.Clone(out.GetEndpoints())
		// A locality belongs to the most specific pattern.
		patterns := slices.SortedFunc(maps.Keys(entry.GetTo()), func(a, b string) int {
			return cmp.Or(-cmp.Compare(specificity(a), specificity(b)), strings.Compare(a, b))
		})
		var named []*endpointv3.LocalityLbEndpoints
		for _, pattern := range patterns {
			var covered []*endpointv3.LocalityLbEndpoints
			total := uint32(0)
			left = slices.DeleteFunc(left, func(l *endpointv3.LocalityLbEndpoints) bool {
				if !within(l.GetLocality(), pattern) {
					return false
				}
				covered = append(covered, l)
				total += l.GetLoadBalancingWeight().GetValue()
				return true
			})
			share := entry.GetTo()[pattern]
			if share == 0 {
				continue
			}
			for _, l := range covered {
				part := float64(l.GetLoadBalancingWeight().GetValue()) * float64(share) / float64(total)
				l.LoadBalancingWeight = wrapperspb.UInt32(uint32(math.Ceil(part)))
			}
			named = append(named, covered...)
		}
		out.Endpoints = slices.DeleteFunc(out.GetEndpoints(), func(l *endpointv3.LocalityLbEndpoints) bool {
			return !slices.Contains(named, l)
		})
		return
	}
}

func specificity(pattern string) int {
	if pattern == "*" {
		return 0
	}
	return len(strings.Split(strings.TrimSuffix(pattern, "/*"), "/"))
}

// failover prefers the client's subzone, then its zone, its region, the region that the settings name, and all others.
func failover(out *endpointv3.ClusterLoadAssignment, own *corev3.Locality, settings []*networking.LocalityLoadBalancerSetting_Failover) {
	const ranks = 5
	for _, l := range out.GetEndpoints() {
		l.Priority = l.GetPriority()*ranks + distance(own, l.GetLocality(), settings)
	}
	compactPriorities(out)
}

func distance(own, other *corev3.Locality, settings []*networking.LocalityLoadBalancerSetting_Failover) uint32 {
	switch {
	case own.GetRegion() != other.GetRegion():
		for _, entry := range settings {
			if entry.GetFrom() == own.GetRegion() {
				if entry.GetTo() != other.GetRegion() {
					return 4
				}
				break
			}
		}
		return 3
	case own.GetZone() != other.GetZone():
		return 2
	case own.GetSubZone() != other.GetSubZone():
		return 1
	default:
		return 0
	}
}

// failoverPriority prefers endpoints with the client's values of the listed labels; the first label counts most. An
// entry "key=value" compares with that value instead of the client's. own, the client's labels, is called only if the
// result depends on it.
func failoverPriority(out *endpointv3.ClusterLoadAssignment, endpoints []meshEndpoint, own func() map[string]string, priority []string) {
	rank := func(m meshEndpoint) uint32 {
		for i, entry := range priority {
			key, want, fixed := strings.Cut(entry, "=")
			if !fixed {
				want = own()[key]
			}
			if value, _ := m.label(key); value != want {
				return uint32(len(priority) - i) //nolint:gosec // a short list
			}
		}
		return 0
	}
	var groups []*endpointv3.LocalityLbEndpoints
	byRank := map[uint32][]meshEndpoint{}
	for _, m := range endpoints {
		byRank[rank(m)] = append(byRank[rank(m)], m)
	}
	for _, p := range slices.Sorted(maps.Keys(byRank)) {
		for _, l := range byLocality(byRank[p]) {
			l.Priority = p
			groups = append(groups, l)
		}
	}
	out.Endpoints = groups
	compactPriorities(out)
}

// compactPriorities renumbers the priorities from 0 without gaps, as Envoy requires.
func compactPriorities(out *endpointv3.ClusterLoadAssignment) {
	used := map[uint32]bool{}
	for _, l := range out.GetEndpoints() {
		used[l.GetPriority()] = true
	}
	rank := map[uint32]uint32{}
	for i, p := range slices.Sorted(maps.Keys(used)) {
		rank[p] = uint32(i) //nolint:gosec // a short list
	}
	for _, l := range out.GetEndpoints() {
		l.Priority = rank[l.GetPriority()]
	}
}
