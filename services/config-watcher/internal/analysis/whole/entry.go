package whole

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

// checkEntryAddresses finds ServiceEntries with TCP ports and without addresses: a proxy cannot tell their connections
// from others to the port.
func checkEntryAddresses(r *run) {
	for o, se := range bodies[*networking.ServiceEntry](r, "ServiceEntry") {
		if len(se.GetAddresses()) > 0 || r.allocates(o, se) {
			continue
		}
		for i, p := range se.GetPorts() {
			if name := strings.ToUpper(p.GetProtocol()); name == "" || name == "TCP" {
				r.report(o, finding.EntryAddressesMissing, fmt.Sprintf("spec.ports[%d].protocol", i), name,
					fmt.Sprintf("port %d is TCP, and without addresses proxies take every connection to the port for this host", p.GetNumber()),
					"list addresses, or name a protocol that carries a host, such as HTTP or TLS")
			}
		}
	}
}

// allocates reports whether proxies reach the hosts of a ServiceEntry by addresses that the mesh allocates: those of
// workloads with DNS capture do.
func (r *run) allocates(o *Object, se *networking.ServiceEntry) bool {
	return r.settings.GetDefaultConfig().GetProxyMetadata()["ISTIO_META_DNS_CAPTURE"] == "true" &&
		se.GetResolution() != networking.ServiceEntry_NONE &&
		o.Labels[object.AutoAllocateLabel] != "false" &&
		!slices.ContainsFunc(se.GetHosts(), func(h string) bool { return strings.HasPrefix(h, "*") })
}

// checkEntryProtocols finds ServiceEntries that name different protocols for one port of a host.
func checkEntryProtocols(r *run) {
	type hostPort struct {
		host string
		port uint32
	}
	type use struct {
		o        *Object
		field    string
		protocol string
	}
	by := map[hostPort][]use{}
	for o, se := range bodies[*networking.ServiceEntry](r, "ServiceEntry") {
		for _, host := range se.GetHosts() {
			for i, p := range se.GetPorts() {
				key := hostPort{strings.ToLower(host), p.GetNumber()}
				by[key] = append(by[key], use{o, fmt.Sprintf("spec.ports[%d].protocol", i), strings.ToUpper(p.GetProtocol())})
			}
		}
	}
	for key, uses := range by {
		protocols := map[string]bool{}
		for _, u := range uses {
			protocols[u.protocol] = true
		}
		if len(protocols) < 2 {
			continue
		}
		for _, u := range uses {
			if i := slices.IndexFunc(uses, func(v use) bool { return v.o != u.o && v.protocol != u.protocol }); i >= 0 {
				other := uses[i].o
				r.report(u.o, finding.EntryProtocolsDiffer, u.field, u.protocol,
					fmt.Sprintf("ServiceEntry %s/%s has %s for port %d of host %s: the oldest counts", other.Key.Namespace, other.Key.Name,
						uses[i].protocol, key.port, key.host),
					"use one protocol: "+sentence(slices.Sorted(maps.Keys(protocols))))
			}
		}
	}
}

// networkLabel names the network of a gateway's Service, a namespace or a workload.
const networkLabel = "topology.istio.io/network"

// checkNetworks finds workloads of networks that no gateway leads to.
func checkNetworks(r *run) {
	reached := map[string]bool{}
	for _, o := range r.kind("Service") {
		if s, ok := o.Body.(*corev1.Service); ok && o.Labels[networkLabel] != "" && len(s.Spec.Ports) > 0 {
			reached[o.Labels[networkLabel]] = true
		}
	}
	if o := r.meshConfigOf(); o != nil {
		if c, ok := o.Body.(*corev1.ConfigMap); ok {
			stated, _, _ := meshconfig.ParseNetworks("", []byte(c.Data[kinds.NetworksKey])) // what is wrong with it is reported elsewhere
			for name, n := range stated.GetNetworks() {
				reached[name] = reached[name] || len(n.GetGateways()) > 0
			}
		}
	}
	own := ""
	if root := r.namespaces[r.settings.GetRootNamespace()]; root != nil {
		own = root.Labels[networkLabel]
	}
	told := map[string]bool{}
	for _, w := range r.workloads {
		network := w.labels[networkLabel]
		if e, ok := w.Body.(*networking.WorkloadEntry); ok && e.GetNetwork() != "" {
			network = e.GetNetwork()
		}
		if network == "" || network == own || reached[network] || told[network+w.Key.Namespace] {
			continue
		}
		told[network+w.Key.Namespace] = true
		r.report(w.Object, finding.NetworkWithoutGateway, "", network, "no Service has the label "+networkLabel+"="+network+
			": workloads of other networks cannot reach this one",
			"label the Service of the network's east-west gateway, or correct the network")
	}
}

// checkMeshNetworks finds registries in meshNetworks that nothing has.
func checkMeshNetworks(r *run) {
	o := r.meshConfigOf()
	if o == nil {
		return
	}
	c, ok := o.Body.(*corev1.ConfigMap)
	if !ok {
		return
	}
	for _, found := range registries(c.Data[kinds.NetworksKey]) {
		r.report(o, finding.RegistryUnknown, "data.meshNetworks", found.registry, "no cluster has this name, in network "+found.network,
			"name a cluster, or label the network's gateways and workloads with "+networkLabel)
	}
}

// checkDiscovery finds discoverySelectors that select no namespace.
func checkDiscovery(r *run) {
	o := r.meshConfigOf()
	if o == nil {
		return
	}
	for i, s := range r.settings.GetDiscoverySelectors() {
		selector, err := meshconfig.LabelSelector(s)
		selects := func(ns *Object) bool {
			set := labels.Set{corev1.LabelMetadataName: ns.Key.Name}
			maps.Copy(set, ns.Labels)
			return selector.Matches(set)
		}
		if err != nil || slices.ContainsFunc(r.kind("Namespace"), selects) {
			continue
		}
		r.report(o, finding.DiscoverySelectsNothing, fmt.Sprintf("data.mesh.discoverySelectors[%d]", i), selector.String(),
			"no Namespace has these labels", "correct them, or label the namespaces of the mesh")
	}
}
