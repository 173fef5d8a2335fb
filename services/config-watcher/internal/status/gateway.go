package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Gateway is one Gateway of the mesh, from whichever source.
type Gateway struct {
	Namespace, Name string
	Spec            *networking.Gateway
	// Created is the creation time in nanoseconds; 0 for a file without one. Gateways that want one port are ordered by
	// it, then by namespace and name.
	Created int64
	// Proxies are the connected proxies that the Gateway selects, by node ID.
	Proxies []Proxy
	// Unreported is true while no xds-server reports which proxies are connected.
	Unreported bool
}

// Proxy is a connected gateway proxy and its state for one Gateway.
type Proxy struct {
	NodeID, Namespace, Workload string
	// Acked is true if the proxy has acknowledged the Gateway's newest version.
	Acked bool
	// Rejection is the error with which the proxy has rejected a listener or route configuration since that version.
	Rejection string
}

// name names the proxy in messages.
func (p Proxy) name() string { return proxyName(p.NodeID, p.Namespace, p.Workload) }

func proxyName(nodeID, namespace, workload string) string {
	if workload != "" {
		return namespace + "/" + workload
	}
	return nodeID
}

// Server is the status of one server.
type Server struct {
	Name, Port, Hosts string
	// Reason is reasonProgrammed, or the reason why the server is not served.
	Reason, Message string
}

// EvaluateGateway returns the conditions and servers of a Gateway that is in force among all Gateways. hasCredential
// reports whether a credential exists.
func EvaluateGateway(g *Gateway, all []*Gateway, hasCredential func(credential.Ref) bool) Status {
	out := Status{Servers: []Server{}}
	accepted := acceptedCondition("Gateway")
	resolved := Condition{Type: ResolvedRefs, Holds: true, Reason: reasonResolved, Message: "every credential is there"}
	programmed := programmedOn(g)
	for _, spec := range g.Spec.GetServers() {
		s := Server{
			Name:  cmp.Or(spec.GetName(), spec.GetPort().GetName()),
			Port:  fmt.Sprintf("%d/%s", spec.GetPort().GetNumber(), strings.ToUpper(spec.GetPort().GetProtocol())),
			Hosts: strings.Join(spec.GetHosts(), ", "), Reason: programmed.Reason, Message: programmed.Message,
		}
		if other := conflicting(g, spec, all); other != nil {
			s.Reason = reasonConflict
			s.Message = fmt.Sprintf("Gateway %s/%s %s and uses the port for another protocol", other.Namespace, other.Name,
				object.PrecedenceAt(other.Created == g.Created))
			accepted = Condition{Type: Accepted, Reason: reasonConflict, Message: fmt.Sprintf("server %s: %s", s.Name, s.Message)}
		} else if missing := missingCredentials(g, spec.GetTls(), hasCredential); missing != "" {
			s.Reason, s.Message = reasonCredential, missing
			resolved = Condition{Type: ResolvedRefs, Reason: reasonCredential, Message: fmt.Sprintf("server %s: %s", s.Name, missing)}
		}
		out.Servers = append(out.Servers, s)
	}
	out.Conditions = []Condition{accepted, resolved, programmed}
	return out
}

// programmedOn is the condition whether every proxy has acknowledged the Gateway.
func programmedOn(g *Gateway) Condition {
	var pending, rejected, has []string
	for _, p := range g.Proxies {
		switch {
		case p.Rejection != "":
			rejected = append(rejected, p.name()+": "+p.Rejection)
		case !p.Acked:
			pending = append(pending, p.name())
		default:
			has = append(has, p.name())
		}
	}
	switch {
	case len(g.Proxies) == 0 && g.Unreported:
		return unreportedCondition()
	case len(g.Proxies) == 0:
		return Condition{Type: Programmed, Reason: reasonNoProxy, Message: "no connected gateway has the labels of spec.selector"}
	case len(rejected) > 0:
		return Condition{Type: Programmed, Reason: reasonRejected, Message: listed(rejected)}
	case len(pending) > 0:
		return Condition{Type: Programmed, Reason: reasonPending, Message: "not acknowledged yet by " + listed(pending)}
	default:
		return Condition{Type: Programmed, Holds: true, Reason: reasonProgrammed, Message: "acknowledged by " + listed(has)}
	}
}

// conflicting is the older Gateway that uses the server's port for another kind of connections; nil if there is none.
// Only Gateways that share a proxy conflict.
func conflicting(g *Gateway, spec *networking.Server, all []*Gateway) *Gateway {
	for _, other := range all {
		if other == g || !other.precedes(g) {
			continue
		}
		meets := slices.ContainsFunc(other.Spec.GetServers(), func(s *networking.Server) bool {
			return s.GetPort().GetNumber() == spec.GetPort().GetNumber() && s.GetBind() == spec.GetBind() &&
				normalise.ServerKind(s) != normalise.ServerKind(spec)
		})
		if meets && sharesProxy(g, other) { // in this order: there may be many Gateways, each on many proxies
			return other
		}
	}
	return nil
}

// precedes reports whether g wins a port over another Gateway.
func (g *Gateway) precedes(other *Gateway) bool {
	return cmp.Or(cmp.Compare(g.Created, other.Created), strings.Compare(g.Namespace, other.Namespace),
		strings.Compare(g.Name, other.Name)) < 0
}

func sharesProxy(a, b *Gateway) bool {
	return slices.ContainsFunc(a.Proxies, func(p Proxy) bool {
		return slices.ContainsFunc(b.Proxies, func(o Proxy) bool { return o.NodeID == p.NodeID })
	})
}

// missingCredentials names the credentials of a server that some proxy does not get; "" if none is missing.
func missingCredentials(g *Gateway, tls *networking.ServerTLSSettings, hasCredential func(credential.Ref) bool) string {
	var missing []string
	check := func(name, what string) {
		if name == "" {
			return
		}
		for _, p := range g.Proxies {
			namespace, ref := reference(name)
			text := ""
			switch {
			case namespace != "" && namespace != p.Namespace:
				text = fmt.Sprintf("Secret %s/%s is not served to gateways of namespace %s", namespace, ref, p.Namespace)
			case !hasCredential(credential.Ref{Namespace: p.Namespace, Name: ref}):
				text = fmt.Sprintf("Secret %s/%s is not there, or has no %s", p.Namespace, ref, what)
			}
			if text != "" && !slices.Contains(missing, text) {
				missing = append(missing, text)
			}
		}
	}
	names := tls.GetCredentialNames()
	if name := tls.GetCredentialName(); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		check(name, "certificate and key")
	}
	switch authority := tls.GetCaCertCredentialName(); {
	case authority != "":
		check(strings.TrimSuffix(authority, credential.AuthoritySuffix)+credential.AuthoritySuffix, "certificates to verify clients with")
	case len(names) > 0 && (tls.GetMode() == networking.ServerTLSSettings_MUTUAL ||
		tls.GetMode() == networking.ServerTLSSettings_OPTIONAL_MUTUAL):
		check(strings.TrimSuffix(names[0], credential.AuthoritySuffix)+credential.AuthoritySuffix, "certificates to verify clients with")
	}
	return listed(missing)
}

// reference splits a credentialName, which may have a scheme, into namespace and name.
func reference(name string) (namespace, ref string) {
	_, rest, found := strings.Cut(name, "://")
	if !found {
		rest = name
	}
	if namespace, ref, found = strings.Cut(rest, "/"); !found {
		return "", rest
	}
	return namespace, ref
}
