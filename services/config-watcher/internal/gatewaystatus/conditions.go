// Package gatewaystatus writes the status of Gateways: which proxies have acknowledged a Gateway, and which of its
// servers are served. Updater.Run reads the fleet and writes to the store; Evaluate computes the conditions of one
// Gateway.
package gatewaystatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/normalise"
)

// Gateway is one Gateway of the mesh, from whichever source.
type Gateway struct {
	Namespace, Name string
	Generation      int64
	Spec            *networking.Gateway
	// Age orders Gateways that want one port: the smaller string is the older Gateway.
	Age string
	// Proxies are the connected proxies that the Gateway selects, by node ID.
	Proxies []Proxy
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
func (p Proxy) name() string {
	if p.Workload != "" {
		return p.Namespace + "/" + p.Workload
	}
	return p.NodeID
}

// Reasons of conditions and of servers.
const (
	reasonAccepted   = "Accepted"
	reasonProgrammed = "Programmed"
	reasonNoProxy    = "NoProxy"
	reasonPending    = "Pending"
	reasonRejected   = "Rejected"
	reasonConflict   = "PortConflict"
	reasonCredential = "CredentialMissing"
	reasonResolved   = "Resolved"
)

// Server is the status of one server.
type Server struct {
	Name, Port, Hosts string
	// Reason is reasonProgrammed, or the reason why the server is not served.
	Reason, Message string
}

// Condition is one condition of a Gateway.
type Condition struct {
	Type            string
	Holds           bool
	Reason, Message string
}

// Status is the status of a Gateway.
type Status struct {
	Conditions []Condition
	Servers    []Server
}

// Evaluate returns the status of a Gateway among all Gateways. hasCredential reports whether a credential exists.
func Evaluate(g *Gateway, all []*Gateway, hasCredential func(credential.Ref) bool) Status {
	var out Status
	accepted := Condition{"Accepted", true, reasonAccepted, "the Gateway is valid and part of the mesh"}
	resolved := Condition{"ResolvedRefs", true, reasonResolved, "every credential is there"}
	programmed := programmedOn(g)
	for _, spec := range g.Spec.GetServers() {
		s := Server{
			Name: cmp.Or(spec.GetName(), spec.GetPort().GetName()), Port: fmt.Sprintf("%d/%s", spec.GetPort().GetNumber(), strings.ToUpper(spec.GetPort().GetProtocol())),
			Hosts: strings.Join(spec.GetHosts(), ", "), Reason: programmed.Reason, Message: programmed.Message,
		}
		if other := conflicting(g, spec, all); other != "" {
			s.Reason, s.Message = reasonConflict, "Gateway "+other+" is older and uses the port for another protocol"
			accepted = Condition{"Accepted", false, reasonConflict, fmt.Sprintf("server %s: %s", s.Name, s.Message)}
		} else if missing := missingCredentials(g, spec.GetTls(), hasCredential); missing != "" {
			s.Reason, s.Message = reasonCredential, missing
			resolved = Condition{"ResolvedRefs", false, reasonCredential, fmt.Sprintf("server %s: %s", s.Name, missing)}
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
	case len(g.Proxies) == 0:
		return Condition{"Programmed", false, reasonNoProxy, "no connected gateway has the labels of spec.selector"}
	case len(rejected) > 0:
		return Condition{"Programmed", false, reasonRejected, listed(rejected)}
	case len(pending) > 0:
		return Condition{"Programmed", false, reasonPending, "not acknowledged yet by " + listed(pending)}
	default:
		return Condition{"Programmed", true, reasonProgrammed, "acknowledged by " + listed(has)}
	}
}

// maxListed bounds the names in a message.
const maxListed = 10

func listed(names []string) string {
	slices.Sort(names)
	if more := len(names) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// conflicting names the older Gateway that uses the server's port for another kind of connections; "" if there is none.
// Only Gateways that share a proxy conflict.
func conflicting(g *Gateway, spec *networking.Server, all []*Gateway) string {
	for _, other := range all {
		if other == g || other.Age >= g.Age {
			continue
		}
		meets := slices.ContainsFunc(other.Spec.GetServers(), func(s *networking.Server) bool {
			return s.GetPort().GetNumber() == spec.GetPort().GetNumber() && s.GetBind() == spec.GetBind() && normalise.ServerKind(s) != normalise.ServerKind(spec)
		})
		if meets && sharesProxy(g, other) { // in this order: there may be many Gateways, each on many proxies
			return other.Namespace + "/" + other.Name
		}
	}
	return ""
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
	case len(names) > 0 && (tls.GetMode() == networking.ServerTLSSettings_MUTUAL || tls.GetMode() == networking.ServerTLSSettings_OPTIONAL_MUTUAL):
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
