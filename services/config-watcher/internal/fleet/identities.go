package fleet

import (
	"slices"
	"strings"
	"time"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// GatewayPrefix is the prefix of the node IDs of gateway proxies.
const GatewayPrefix = "router~"

// count is the number of proxies of an identity on an xds-server, and the number of gateways among them.
type count struct{ proxies, gateways int }

// departure is when the last proxy of an identity left, and whether a gateway was among the last ones.
type departure struct {
	at      time.Time
	gateway bool
}

// presence records the identities whose proxies are connected to an instance, or left it less than LostServerGrace ago.
type presence struct {
	now  map[string]count
	past map[string]departure
}

func newPresence() presence { return presence{now: map[string]count{}, past: map[string]departure{}} }

// add counts a proxy, unless it is unverified. It reports whether the identity, or a gateway of it, is new.
func (p presence) add(status *configv1.ProxyStatus) bool {
	identity := status.GetIdentity()
	if identity == "" || status.GetUnverified() {
		return false
	}
	before := p.now[identity]
	after := count{before.proxies + 1, before.gateways}
	if strings.HasPrefix(status.GetNodeId(), GatewayPrefix) {
		after.gateways++
	}
	p.now[identity] = after
	return before.proxies == 0 || before.gateways == 0 && after.gateways > 0
}

// remove reverses add. It reports whether the proxy was the identity's last one, or its last gateway.
func (p presence) remove(status *configv1.ProxyStatus, at time.Time) bool {
	identity := status.GetIdentity()
	before := p.now[identity]
	if before.proxies == 0 || status.GetUnverified() {
		return false
	}
	after := count{before.proxies - 1, before.gateways}
	if strings.HasPrefix(status.GetNodeId(), GatewayPrefix) {
		after.gateways--
	}
	if p.now[identity] = after; after.proxies == 0 {
		delete(p.now, identity)
	}
	gone := after.proxies == 0 || before.gateways > 0 && after.gateways == 0
	if gone {
		p.past[identity] = departure{at, before.gateways > 0}
	}
	return gone
}

// forget drops departures that are older than LostServerGrace.
func (p presence) forget(now time.Time) {
	for identity, l := range p.past {
		if now.Sub(l.at) >= LostServerGrace {
			delete(p.past, identity)
		}
	}
}

// Presence is what an xds-server has reported about an identity.
type Presence struct {
	// Connected is true if a proxy of the identity is connected or was less than LostServerGrace ago; Gateway is true
	// if one of those is a gateway.
	Connected, Gateway bool
	// Recheck is when the answer may change without a report; zero for never.
	Recheck time.Time
}

// Connected returns what an instance has reported about an identity; name "" means any instance. It costs a few map
// look-ups for each instance.
func (t *Table) Connected(name, identity string) Presence {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out Presence
	if name != "" {
		if in := t.instances[name]; in != nil {
			out.join(in.presenceOf(identity, t.clock.Now()))
		}
		return out
	}
	for _, in := range t.instances {
		out.join(in.presenceOf(identity, t.clock.Now()))
	}
	return out
}

func (p *Presence) join(o Presence) {
	p.Connected, p.Gateway = p.Connected || o.Connected, p.Gateway || o.Gateway
	if !o.Recheck.IsZero() && (p.Recheck.IsZero() || o.Recheck.Before(p.Recheck)) {
		p.Recheck = o.Recheck
	}
}

// presenceOf is what the instance has reported about an identity.
func (in *instance) presenceOf(identity string, now time.Time) Presence {
	var lost time.Time
	if in.stream == 0 {
		if lost = in.lostAt.Add(LostServerGrace); !now.Before(lost) {
			return Presence{}
		}
	}
	c, l := in.presence.now[identity], in.presence.past[identity]
	out := Presence{Connected: c.proxies > 0, Gateway: c.gateways > 0, Recheck: lost}
	if until := l.at.Add(LostServerGrace); !l.at.IsZero() && now.Before(until) {
		out.join(Presence{Connected: true, Gateway: l.gateway, Recheck: until})
	}
	return out
}

// GatewayNamespaces lists the namespaces of the gateways that are connected, sorted.
func (t *Table) GatewayNamespaces() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for _, in := range t.instances {
		for identity, c := range in.presence.now {
			if c.gateways > 0 {
				out = append(out, namespaceOf(identity))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// IdentitiesChanged is closed when an answer of Connected may have changed because of a report.
func (t *Table) IdentitiesChanged() <-chan struct{} { return t.identities.Changed() }
