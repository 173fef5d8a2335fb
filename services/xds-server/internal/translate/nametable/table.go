package nametable

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/input"
)

// Registries in name tables. For names of Kubernetes, agents also answer the short forms of cluster DNS.
const (
	kubernetes = "Kubernetes"
	external   = "External"
)

// table has every host that the class may address and that has an address. Agents forward queries for other names to
// their upstream DNS servers.
func table(r *input.Reader) *ndsv1.NameTable {
	services := r.Services()
	out := &ndsv1.NameTable{Table: make(map[string]*ndsv1.NameTable_NameInfo, len(services))}
	for _, svc := range services {
		if svc.GetHeadless() {
			addHeadless(r, out, svc)
		} else {
			add(out, svc.GetHostname(), info(svc, svc.GetName()), addresses(r.VIPs(r.FollowExternalName(svc.GetHostname()))))
		}
	}
	return out
}

// add adds a host that has addresses.
func add(out *ndsv1.NameTable, host string, what *ndsv1.NameTable_NameInfo, ips []string) {
	if len(ips) > 0 {
		what.Ips = ips
		out.Table[host] = what
	}
}

func info(svc *configv1.Service, shortname string) *ndsv1.NameTable_NameInfo {
	if svc.GetSource().GetKind() != "Service" {
		return &ndsv1.NameTable_NameInfo{Registry: external}
	}
	if strings.HasSuffix(svc.GetHostname(), contract.ClusterSetSuffix) {
		return &ndsv1.NameTable_NameInfo{Registry: kubernetes} // the short names are those of the ordinary host
	}
	return &ndsv1.NameTable_NameInfo{Registry: kubernetes, Shortname: shortname, Namespace: svc.GetNamespace()}
}

// addresses returns the IP addresses among texts, in canonical form, sorted, each once.
func addresses(texts []string) []string {
	out := make([]string, 0, len(texts))
	for _, text := range texts {
		ip, err := netip.ParseAddr(text)
		if prefix, e := netip.ParsePrefix(text); e == nil && prefix.IsSingleIP() {
			ip, err = prefix.Addr(), nil
		}
		if err == nil && !ip.IsUnspecified() && ip.Zone() == "" {
			out = append(out, ip.String())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// addHeadless adds, as Kubernetes' DNS does, the addresses of a headless service's endpoints on all its ports.
// Endpoints with a host name, such as Pods of a StatefulSet, also get "<host name>.<service>", unless they are in
// another network, where clients cannot reach them by address. Of Pods with one name in several clusters, that of the
// class's own cluster has the name. At the host of all clusters together, each has "<host name>.<cluster>.<service>",
// by KEP-1645.
func addHeadless(r *input.Reader, out *ndsv1.NameTable, svc *configv1.Service) {
	var all []string
	pods, ownPods := map[string][]string{}, map[string][]string{}
	together := strings.HasSuffix(svc.GetHostname(), contract.ClusterSetSuffix)
	for _, port := range svc.GetPorts() {
		for _, shard := range r.Endpoints(svc, port.GetNumber()) {
			for _, e := range shard.GetEndpoints() {
				if e.GetHealth() != configv1.Health_HEALTH_READY && !svc.GetPublishNotReadyAddresses() {
					continue
				}
				all = append(all, e.GetAddress())
				if e.GetHostname() != "" && !inOtherNetwork(r, e) {
					if together {
						pod := e.GetHostname() + "." + strings.ToLower(shard.GetCluster())
						pods[pod] = append(pods[pod], e.GetAddress())
						continue
					}
					of := pods
					if shard.GetCluster() == r.Class().Cluster {
						of = ownPods
					}
					of[e.GetHostname()] = append(of[e.GetHostname()], e.GetAddress())
				}
			}
		}
	}
	maps.Copy(pods, ownPods)
	service, _, _ := strings.Cut(svc.GetHostname(), ".")
	for pod, ips := range pods {
		host := pod + "." + svc.GetHostname()
		if _, taken := out.GetTable()[host]; !taken {
			add(out, host, info(svc, pod+"."+service), addresses(ips))
		}
	}
	add(out, svc.GetHostname(), info(svc, svc.GetName()), addresses(all))
}

// inOtherNetwork reports whether the endpoint's network is known to differ from the class's.
func inOtherNetwork(r *input.Reader, e *configv1.Endpoint) bool {
	own := r.Class().Network
	return own != "" && e.GetNetwork() != "" && e.GetNetwork() != own
}
