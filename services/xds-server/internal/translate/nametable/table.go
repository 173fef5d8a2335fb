package nametable

import (
	"net/netip"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/input"
)

// Registries as agents know them: to names of Kubernetes they also answer in the short forms of its own DNS.
const (
	kubernetes = "Kubernetes"
	external   = "External"
)

// table has every host that the class may address and that has an address; names that it lacks agents ask their upstream servers for.
func table(r *input.Reader) *ndsv1.NameTable {
	services := r.Services()
	out := &ndsv1.NameTable{Table: make(map[string]*ndsv1.NameTable_NameInfo, len(services))}
	for _, svc := range services {
		if svc.GetHeadless() {
			addHeadless(r, out, svc)
		} else {
			add(out, svc.GetHostname(), info(svc, svc.GetName()), addresses(r.VIPs(r.Concrete(svc.GetHostname()))))
		}
	}
	return out
}

// add puts a host into the table unless it has no address. A service's own host comes before that of a Pod of another service.
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
	return &ndsv1.NameTable_NameInfo{Registry: kubernetes, Shortname: shortname, Namespace: svc.GetNamespace()}
}

// addresses keeps what is one address, in its canonical form, each once, in order.
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

// addHeadless adds, as Kubernetes' DNS does, the addresses behind a headless service over all its ports, and of those that have a host name
// of their own, as Pods of a StatefulSet do, "<host name>.<service>", unless they are in another network, where nobody reaches them by address.
func addHeadless(r *input.Reader, out *ndsv1.NameTable, svc *configv1.Service) {
	var all []string
	pods := map[string][]string{}
	for _, port := range svc.GetPorts() {
		for _, shard := range r.Endpoints(svc.GetHostname(), port.GetNumber()) {
			for _, e := range shard.GetEndpoints() {
				if e.GetHealth() != configv1.Health_HEALTH_READY && !svc.GetPublishNotReadyAddresses() {
					continue
				}
				all = append(all, e.GetAddress())
				if e.GetHostname() != "" && !inOtherNetwork(r, e) {
					pods[e.GetHostname()] = append(pods[e.GetHostname()], e.GetAddress())
				}
			}
		}
	}
	service, _, _ := strings.Cut(svc.GetHostname(), ".")
	for pod, ips := range pods {
		host := pod + "." + svc.GetHostname()
		if _, taken := out.GetTable()[host]; !taken {
			add(out, host, info(svc, pod+"."+service), addresses(ips))
		}
	}
	add(out, svc.GetHostname(), info(svc, svc.GetName()), addresses(all))
}

// inOtherNetwork tells endpoints of another network than the class's, as far as it is known who is where.
func inOtherNetwork(r *input.Reader, e *configv1.Endpoint) bool {
	own := r.Class().Network
	return own != "" && e.GetNetwork() != "" && e.GetNetwork() != own
}
