package running

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// gatewaysOf lists the gateways that a VirtualService or one of its matches names, as "mesh" or "<namespace>/<name>",
// each once.
func gatewaysOf(vs *networking.VirtualService, namespace string) []string {
	var out []string
	known := map[string]bool{}
	eachGateway(vs, func(_, name string) {
		if name = contract.GatewayName(name, namespace); !known[name] {
			known[name] = true
			out = append(out, name)
		}
	})
	return out
}

// eachGateway calls f for every gateway that a VirtualService names, with its JSON path. A VirtualService that names
// none has "mesh".
func eachGateway(vs *networking.VirtualService, f func(field, name string)) {
	each := func(field string, names []string) {
		for i, name := range names {
			f(fmt.Sprintf("%s.gateways[%d]", field, i), name)
		}
	}
	if len(vs.GetGateways()) == 0 {
		f("spec.gateways", contract.MeshGateway)
	}
	each("spec", vs.GetGateways())
	for i, in := range vs.GetHttp() {
		for j, m := range in.GetMatch() {
			each(fmt.Sprintf("spec.http[%d].match[%d]", i, j), m.GetGateways())
		}
	}
	for i, in := range vs.GetTls() {
		for j, m := range in.GetMatch() {
			each(fmt.Sprintf("spec.tls[%d].match[%d]", i, j), m.GetGateways())
		}
	}
	for i, in := range vs.GetTcp() {
		for j, m := range in.GetMatch() {
			each(fmt.Sprintf("spec.tcp[%d].match[%d]", i, j), m.GetGateways())
		}
	}
}

// checkGateways finds Gateways that a VirtualService names and that do not exist.
func checkGateways(r *reader) {
	eachGateway(r.object.Body.(*networking.VirtualService), func(field, name string) {
		full := contract.GatewayName(name, r.namespace())
		if full == contract.MeshGateway || strings.Contains(full, object.GeneratedIngressInfix) {
			return // always there, or made from an Ingress
		}
		ns, rest, _ := strings.Cut(full, "/")
		if r.config("Gateway", ns, rest) != nil {
			return
		}
		reason := fmt.Sprintf("there is no Gateway %s", full)
		remedy := "create it, or correct the name"
		switch {
		case !r.namespaceExists(ns):
			reason += "; " + noNamespace(ns)
		case !strings.Contains(name, "/"):
			remedy = fmt.Sprintf("create it, or write <namespace>/%s if it is in another namespace", name)
		}
		r.report(finding.GatewayNotFound, field, name, reason, remedy)
	})
}

// checkSelector finds Gateways that select no workload.
func checkSelector(r *reader) {
	selector := r.object.Body.(*networking.Gateway).GetSelector()
	if len(selector) > 0 && len(r.selected(selector)) == 0 {
		r.report(finding.NothingSelected, "spec.selector", nil,
			fmt.Sprintf("no workload of the mesh has the labels %s", object.LabelText(selector)),
			"start the gateway's workload, or write the labels that it has")
	}
}

// checkServerHosts finds namespaces in the hosts of servers that do not exist.
func checkServerHosts(r *reader) {
	for i, server := range r.object.Body.(*networking.Gateway).GetServers() {
		for j, host := range server.GetHosts() {
			if ns, _, found := strings.Cut(host, "/"); found {
				r.checkNamespace(fmt.Sprintf("spec.servers[%d].hosts[%d]", i, j), host, ns)
			}
		}
	}
}

// checkExportTo finds namespaces in exportTo that do not exist.
func checkExportTo(r *reader) {
	for i, ns := range object.ExportTo(r.object) {
		field := fmt.Sprintf("spec.exportTo[%d]", i)
		if r.object.Key.Group == "" {
			field = "metadata.annotations[networking.istio.io/exportTo]"
		}
		r.checkNamespace(field, ns, strings.TrimSpace(ns))
	}
}

// checkConfined finds objects that the tenancy keeps in their namespace although their exportTo names others.
func checkConfined(r *reader) {
	why := r.mesh.tenancy.Confined(r.object, r.settings().GetRootNamespace())
	if why != "" && len(object.ExportTo(r.object)) > 0 && normalise.LeavesNamespace(r.object, r.settings()) {
		r.report(finding.ConfinedToNamespace, "spec.exportTo", strings.Join(object.ExportTo(r.object), ","),
			"the mesh has tenants, and "+why+": it has effects in its own namespace alone",
			"write exportTo: [\".\"], or have an administrator put it into the root namespace")
	}
}

func (r *reader) checkNamespace(field, value, ns string) {
	switch ns {
	case "", ".", allNamespaces, "~":
		return
	}
	if !r.namespaceExists(ns) {
		r.report(finding.NamespaceNotFound, field, value, noNamespace(ns), "create it, or correct the name")
	}
}

// serverKind is a port and bind address and the kind of the connections there, see normalise.ServerKind.
type serverKind struct{ port, bind, kind string }

func (k serverKind) topic() topic { return topic{subjectServers, k.port + k.bind, k.kind} }

// serverName is a port and bind address and a host that TLS is terminated for there.
type serverName struct{ port, bind, host string }

func (n serverName) topic() topic { return topic{subjectServerNames, n.port + n.bind, n.host} }

// servers lists the ports and the TLS hosts of a Gateway's servers.
func servers(g *networking.Gateway) (kinds []serverKind, names []serverName) {
	for _, s := range g.GetServers() {
		kinds = append(kinds, kindOf(s))
		if terminates(s) {
			names = append(names, namesOf(s)...)
		}
	}
	return kinds, names
}

func kindOf(s *networking.Server) serverKind {
	return serverKind{portText(s.GetPort().GetNumber()), s.GetBind(), normalise.ServerKind(s)}
}

// terminates reports whether a server terminates TLS. Its hosts then have filter chains even without routes.
func terminates(s *networking.Server) bool {
	return normalise.ServerKind(s) == normalise.BeginsTLS &&
		s.GetTls().GetMode() != networking.ServerTLSSettings_PASSTHROUGH && s.GetTls().GetMode() != networking.ServerTLSSettings_AUTO_PASSTHROUGH
}

// namesOf lists the hosts of a server without their namespaces.
func namesOf(s *networking.Server) []serverName {
	var out []serverName
	for _, host := range s.GetHosts() {
		if _, rest, found := strings.Cut(host, "/"); found {
			host = rest
		}
		out = append(out, serverName{portText(s.GetPort().GetNumber()), s.GetBind(), strings.ToLower(host)})
	}
	return out
}

// checkServersShadowed finds servers, and hosts of servers, that have no effect because of an older Gateway of the same
// workloads.
func checkServersShadowed(r *reader) {
	g := r.object.Body.(*networking.Gateway)
	for i, s := range g.GetServers() {
		if other := r.otherKind(g, s); other != nil {
			r.report(finding.ServerShadowed, fmt.Sprintf("spec.servers[%d].port", i), s.GetPort().GetNumber(),
				fmt.Sprintf("Gateway %s/%s %s and uses the port for another protocol: the server has no effect", other.Key.Namespace, other.Key.Name,
					object.Precedence(other, r.object)),
				"use another port, or the same protocol")
			continue
		}
		if normalise.ServerKind(s) != normalise.BeginsTLS || s.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH {
			continue
		}
		for j, name := range namesOf(s) {
			r.record(subjectServerNames, name.topic().a, name.topic().b)
			if other := r.oldestSharing(g, r.mesh.names[name]); other != nil {
				r.report(finding.ServerShadowed, fmt.Sprintf("spec.servers[%d].hosts[%d]", i, j), s.GetHosts()[j],
					fmt.Sprintf("Gateway %s/%s %s and terminates TLS for the host on port %s: connections for it never come to this server",
						other.Key.Namespace, other.Key.Name, object.Precedence(other, r.object), name.port),
					"take the host out of one of them, or bind the VirtualServices to both Gateways")
			}
		}
	}
}

// otherKind returns the Gateway that uses a server's port for another kind of connections; nil if there is none.
func (r *reader) otherKind(g *networking.Gateway, s *networking.Server) *object.Object {
	own := kindOf(s)
	var taker *object.Object
	for _, kind := range []string{normalise.BeginsHTTP, normalise.BeginsTLS, normalise.BeginsTCP} {
		key := serverKind{own.port, own.bind, kind}
		r.record(subjectServers, key.topic().a, key.topic().b)
		if o := r.oldestSharing(g, r.mesh.servers[key]); kind != own.kind && o != nil && (taker == nil || object.Older(o, taker)) {
			taker = o
		}
	}
	if same := r.oldestSharing(g, r.mesh.servers[own]); taker != nil && same != nil && object.Older(same, taker) {
		return nil // an older Gateway has made the port this kind
	}
	return taker
}

// oldestSharing returns the oldest Gateway of a list that is older than the object and shares a workload with it; nil
// if there is none.
func (r *reader) oldestSharing(g *networking.Gateway, list []*object.Object) *object.Object {
	for _, o := range list[:min(len(list), maxScanned)] {
		if r.effort++; r.effort > maxEffort || !object.Older(o, r.object) {
			return nil
		}
		if r.sharesWorkload(g, o.Body.(*networking.Gateway)) {
			return o
		}
	}
	return nil
}
