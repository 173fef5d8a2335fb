// Package gatewaystatus says, in the status of each Gateway, what has become of it: which proxies have it, and which of its servers are served.
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

// Gateway is one Gateway of the mesh, whichever source it comes from.
type Gateway struct {
	Namespace, Name string
	Generation      int64
	Spec            *networking.Gateway
	// Older decides between servers that want one port: less is older.
	Age string
	// Proxies are those that the Gateway selects, by node id.
	Proxies []Proxy
}

// Proxy is a connected gateway proxy, with regard to one Gateway.
type Proxy struct {
	NodeID, Namespace, Workload string
	// Acked is true if the proxy has acknowledged the Gateway as it is now.
	Acked bool
	// Rejection is what it says of a listener or route configuration that it has refused since.
	Rejection string
}

// name is the proxy as people know it.
func (p Proxy) name() string {
	if p.Workload != "" {
		return p.Namespace + "/" + p.Workload
	}
	return p.NodeID
}

// Reasons of conditions and of servers that are not served.
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

// Server is what became of one server.
type Server struct {
	Name, Port, Hosts string
	// Reason is reasonProgrammed, or why it is not.
	Reason, Message string
}

// Condition is one of a Gateway's.
type Condition struct {
	Type            string
	Holds           bool
	Reason, Message string
}

// Verdict is what became of a Gateway.
type Verdict struct {
	Conditions []Condition
	Servers    []Server
}

// Held tells whether there is a credential.
type Held func(credential.Ref) bool

// Judge says what became of a Gateway among all others.
func Judge(g *Gateway, all []*Gateway, held Held) Verdict {
	var v Verdict
	accepted := Condition{"Accepted", true, reasonAccepted, "the Gateway is valid and part of the mesh"}
	resolved := Condition{"ResolvedRefs", true, reasonResolved, "every credential is there"}
	programmed := onProxies(g)
	for _, spec := range g.Spec.GetServers() {
		s := Server{
			Name: cmp.Or(spec.GetName(), spec.GetPort().GetName()), Port: fmt.Sprintf("%d/%s", spec.GetPort().GetNumber(), strings.ToUpper(spec.GetPort().GetProtocol())),
			Hosts: strings.Join(spec.GetHosts(), ", "), Reason: programmed.Reason, Message: programmed.Message,
		}
		if other := conflicting(g, spec, all); other != "" {
			s.Reason, s.Message = reasonConflict, "Gateway "+other+" is older and uses the port for another protocol"
			accepted = Condition{"Accepted", false, reasonConflict, fmt.Sprintf("server %s: %s", s.Name, s.Message)}
		} else if missing := missingCredentials(g, spec.GetTls(), held); missing != "" {
			s.Reason, s.Message = reasonCredential, missing
			resolved = Condition{"ResolvedRefs", false, reasonCredential, fmt.Sprintf("server %s: %s", s.Name, missing)}
		}
		v.Servers = append(v.Servers, s)
	}
	v.Conditions = []Condition{accepted, resolved, programmed}
	return v
}

// onProxies says whether every proxy has the Gateway.
func onProxies(g *Gateway) Condition {
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

// mostListed bounds what a message names.
const mostListed = 10

func listed(names []string) string {
	slices.Sort(names)
	if more := len(names) - mostListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostListed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// conflicting names the older Gateway that has the server's port for connections that begin otherwise; "" if there is none. Only Gateways
// that share a proxy meet.
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

// missingCredentials says which credentials of a server some proxy is not served; "" if none.
func missingCredentials(g *Gateway, tls *networking.ServerTLSSettings, held Held) string {
	var missing []string
	look := func(name, what string) {
		if name == "" {
			return
		}
		for _, p := range g.Proxies {
			namespace, ref := reference(name)
			text := ""
			switch {
			case namespace != "" && namespace != p.Namespace:
				text = fmt.Sprintf("Secret %s/%s is not served to gateways of namespace %s", namespace, ref, p.Namespace)
			case !held(credential.Ref{Namespace: p.Namespace, Name: ref}):
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
		look(name, "certificate and key")
	}
	switch authority := tls.GetCaCertCredentialName(); {
	case authority != "":
		look(strings.TrimSuffix(authority, credential.AuthoritySuffix)+credential.AuthoritySuffix, "certificates to verify clients with")
	case len(names) > 0 && (tls.GetMode() == networking.ServerTLSSettings_MUTUAL || tls.GetMode() == networking.ServerTLSSettings_OPTIONAL_MUTUAL):
		look(strings.TrimSuffix(names[0], credential.AuthoritySuffix)+credential.AuthoritySuffix, "certificates to verify clients with")
	}
	return listed(missing)
}

// reference divides a credentialName, which may have a scheme and a namespace.
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
