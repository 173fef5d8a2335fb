package meshclient

import (
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/proxyname"
)

// Proxyless is the kind of a Pod, in the run directory's words and here, whose application is a proxyless gRPC client:
// it has an agent and no Envoy.
const Proxyless = "proxyless"

// ProxyName is the part "<pod>.<namespace>" of a node id.
func ProxyName(nodeID string) string {
	parts := strings.Split(nodeID, "~")
	if len(parts) != 4 {
		return nodeID
	}
	return parts[2]
}

// ProxyType is the first part of a node id, "sidecar" or "router"; "proxyless" for a proxyless gRPC client, which
// xds-server marks with "#".
func ProxyType(nodeID string) string {
	if strings.Contains(nodeID, "#") {
		return Proxyless
	}
	kind, _, _ := strings.Cut(nodeID, "~")
	return kind
}

// PodName is the name of the proxy's workload, without its namespace.
func PodName(p *configv1.ProxyStatus) string {
	return strings.TrimSuffix(ProxyName(p.GetNodeId()), "."+p.GetNamespace())
}

// MatchProxies returns the proxies that a name means, at least one. Where a verified proxy has a name, unverified ones
// of the same name are left out: anybody may claim it.
func MatchProxies(all []*configv1.ProxyStatus, wanted proxyname.Wanted) ([]*configv1.ProxyStatus, error) {
	all = VerifiedFirst(all)
	found, err := wanted.Find(ProxyRefs(all))
	if err != nil {
		return nil, err
	}
	kept := make([]*configv1.ProxyStatus, 0, len(found))
	for _, i := range found {
		p := all[i]
		impostor := p.GetUnverified() && slices.ContainsFunc(kept, func(other *configv1.ProxyStatus) bool {
			return !other.GetUnverified() && ProxyName(other.GetNodeId()) == ProxyName(p.GetNodeId())
		})
		if !impostor {
			kept = append(kept, p)
		}
	}
	return kept, nil
}

// MatchOneProxy is MatchProxies for commands that need a single proxy.
func MatchOneProxy(all []*configv1.ProxyStatus, wanted proxyname.Wanted) (*configv1.ProxyStatus, error) {
	all = VerifiedFirst(all)
	i, err := wanted.One(ProxyRefs(all))
	if err != nil {
		return nil, err
	}
	return all[i], nil
}

// VerifiedFirst sorts proxies whose identity the mesh knows before others.
func VerifiedFirst(all []*configv1.ProxyStatus) []*configv1.ProxyStatus {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *configv1.ProxyStatus) int {
		switch {
		case a.GetUnverified() == b.GetUnverified():
			return 0
		case a.GetUnverified():
			return 1
		}
		return -1
	})
	return all
}

// ProxyRefs are proxies as candidates for a name.
func ProxyRefs(all []*configv1.ProxyStatus) []proxyname.Proxy {
	list := make([]proxyname.Proxy, 0, len(all))
	for _, p := range all {
		name, namespace, _ := strings.Cut(ProxyName(p.GetNodeId()), ".")
		if p.GetNamespace() != "" {
			name, namespace = PodName(p), p.GetNamespace()
		}
		list = append(list, proxyname.Proxy{Name: name, Namespace: namespace})
	}
	return list
}

// ServerName is the xds-server's process that a proxy is connected to: "xds-server-0" of "xds-server-0/7c1f".
func ServerName(p *configv1.ProxyStatus) string {
	name, _, _ := strings.Cut(p.GetXdsServer(), "/")
	return name
}
