package gatewayapi

import (
	"fmt"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// claims are the ports and hostnames that listeners of a Gateway and its ListenerSets have.
type claims struct{ ports map[portOf]*claimed }

// portOf is a port of TCP or of UDP.
type portOf struct {
	udp  bool
	port uint32
}

// claimed is a port. Listeners of one family stand side by side on it; those of TCP and UDP stand alone.
type claimed struct {
	family family
	byHost map[string]*listener
	// first is the listener that has decided the family. Only State.conflicts knows it.
	first *listener
}

type family byte

const (
	plain family = iota + 1
	encrypted
	opaque
	// mixed is that of a port whose listeners conflict.
	mixed
)

func (l *listener) family() family {
	switch l.protocol {
	case configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP:
		return plain
	case configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS, configv1.ListenerProtocol_LISTENER_PROTOCOL_TLS:
		return encrypted
	default:
		return opaque
	}
}

func (l *listener) portOf() portOf {
	return portOf{l.protocol == configv1.ListenerProtocol_LISTENER_PROTOCOL_UDP, l.port}
}

// add claims for the listeners of one object. Of those that conflict with each other none wins; against listeners that
// were added before they lose, and these do not hear of it. A listener that is refused or has lost claims nothing. One
// that conflicts with another of its object does: a further object must not take over what is broken.
func (c *claims) add(listeners []*listener) {
	if c.ports == nil {
		c.ports = map[portOf]*claimed{}
	}
	own := map[portOf][]*listener{}
	for _, l := range listeners {
		if l.protocol == 0 || l.refused != nil {
			continue
		}
		at := l.portOf()
		if before := c.ports[at]; before != nil {
			if reason, lost := l.losesTo(before); lost {
				by := "listeners of another protocol have the port"
				if other := before.byHost[l.hostname]; other != nil {
					by = fmt.Sprintf("listener %s of %s %s has it", other.id.Listener, other.id.owner().Kind, nameOf(other.id.owner()))
				}
				l.conflicts(reason, by)
				continue
			}
		}
		own[at] = append(own[at], l)
	}
	for at, list := range own {
		c.share(at, list)
	}
}

// losesTo finds a conflict with listeners of objects that come first.
func (l *listener) losesTo(before *claimed) (gatewayv1.ListenerConditionReason, bool) {
	other := before.byHost[l.hostname]
	switch {
	case before.family != l.family(), other != nil && (before.family == opaque || other.protocol != l.protocol):
		return gatewayv1.ListenerReasonProtocolConflict, true
	case other != nil:
		return gatewayv1.ListenerReasonHostnameConflict, true
	default:
		return "", false
	}
}

// share finds conflicts between listeners of one object that have one port.
func (c *claims) share(at portOf, list []*listener) {
	claim := c.ports[at]
	if claim == nil {
		claim = &claimed{family: list[0].family(), byHost: map[string]*listener{}}
		c.ports[at] = claim
	}
	byHost := map[string][]*listener{}
	for _, l := range list {
		byHost[l.hostname] = append(byHost[l.hostname], l)
		if l.family() != claim.family {
			claim.family = mixed
		}
	}
	for host, same := range byHost {
		claim.byHost[host] = same[0]
		for _, l := range same {
			switch {
			case claim.family == mixed:
				l.conflicts(gatewayv1.ListenerReasonProtocolConflict, "the Gateway or ListenerSet has listeners of several protocols there")
			case len(same) == 1:
			case claim.family == opaque || slices.ContainsFunc(same, func(o *listener) bool { return o.protocol != l.protocol }):
				l.conflicts(gatewayv1.ListenerReasonProtocolConflict, "the Gateway or ListenerSet has another listener there")
			default:
				l.conflicts(gatewayv1.ListenerReasonHostnameConflict, "the Gateway or ListenerSet has another listener there")
			}
		}
	}
}

func (l *listener) conflicts(reason gatewayv1.ListenerConditionReason, message string) {
	if l.conflict == nil {
		l.conflict = l.conflictWith(reason, message, "")
	}
}

// conflictWith is a conflict; remedy ends what is said about other ports and hostnames.
func (l *listener) conflictWith(reason gatewayv1.ListenerConditionReason, message, remedy string) *finding {
	other := ""
	if reason == gatewayv1.ListenerReasonHostnameConflict {
		other = " or hostname"
	}
	return &finding{
		string(reason), fmt.Sprintf("port %d, hostname %q: %s; choose another port%s%s", l.port, l.hostname, message, other, remedy),
	}
}

// overlaps marks the listeners with TLS of which another one of the port takes a part of the hostnames.
func (c *claims) overlaps() {
	for _, port := range c.ports {
		if port.family != encrypted {
			continue
		}
		for host, l := range port.byHost {
			for wider := range widerHosts(host) {
				if other := port.byHost[wider]; other != nil && other.conflict == nil && l.conflict == nil {
					l.overlapping, other.overlapping = true, true
				}
			}
		}
	}
}

// widerHosts yields the wildcards that cover a hostname, and "" last.
func widerHosts(host string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		if host == "" {
			return
		}
		rest := strings.TrimPrefix(host, "*.")
		for {
			_, after, found := strings.Cut(rest, ".")
			if !found {
				break
			}
			if rest = after; !yield("*." + rest) {
				return
			}
		}
		yield("")
	}
}
