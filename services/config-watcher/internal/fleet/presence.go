package fleet

import (
	"strings"
	"time"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// routers begin the node ids of gateway proxies.
const routers = "router~"

// count is how many proxies of an identity an xds-server has, and how many of them are gateways.
type count struct{ proxies, routers int }

// left is when the last proxy of an identity went, and whether there was a gateway among those that went last.
type left struct {
	at     time.Time
	router bool
}

// presence is which identities an instance has proxies of, and had until a moment ago.
type presence struct {
	now  map[string]count
	past map[string]left
}

func newPresence() presence { return presence{now: map[string]count{}, past: map[string]left{}} }

// add counts a proxy, unless it is unverified, and reports whether its identity, or a gateway of it, is new.
func (p presence) add(status *configv1.ProxyStatus) bool {
	identity := status.GetIdentity()
	if identity == "" || status.GetUnverified() {
		return false
	}
	before := p.now[identity]
	after := count{before.proxies + 1, before.routers}
	if strings.HasPrefix(status.GetNodeId(), routers) {
		after.routers++
	}
	p.now[identity] = after
	return before.proxies == 0 || before.routers == 0 && after.routers > 0
}

// remove takes add back and reports whether that was the identity's last proxy, or last gateway.
func (p presence) remove(status *configv1.ProxyStatus, at time.Time) bool {
	identity := status.GetIdentity()
	before := p.now[identity]
	if before.proxies == 0 || status.GetUnverified() {
		return false
	}
	after := count{before.proxies - 1, before.routers}
	if strings.HasPrefix(status.GetNodeId(), routers) {
		after.routers--
	}
	if p.now[identity] = after; after.proxies == 0 {
		delete(p.now, identity)
	}
	gone := after.proxies == 0 || before.routers > 0 && after.routers == 0
	if gone {
		p.past[identity] = left{at, before.routers > 0}
	}
	return gone
}

// forget drops what is longer ago than Grace.
func (p presence) forget(now time.Time) {
	for identity, l := range p.past {
		if now.Sub(l.at) >= Grace {
			delete(p.past, identity)
		}
	}
}

// Presence is what an xds-server has reported of an identity.
type Presence struct {
	// Connected is true if it has a proxy of the identity, or had one less than Grace ago. Router is true if one of
	// those is a gateway.
	Connected, Router bool
	// Recheck is when time alone may change the answer; zero for never.
	Recheck time.Time
}

// Connected tells what an instance has reported of an identity; an empty instance means any. It costs a few look-ups
// for each instance.
func (t *Table) Connected(name, identity string) Presence {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out Presence
	if name != "" {
		if in := t.instances[name]; in != nil {
			out.join(in.at(identity, t.clock.Now()))
		}
		return out
	}
	for _, in := range t.instances {
		out.join(in.at(identity, t.clock.Now()))
	}
	return out
}

func (p *Presence) join(o Presence) {
	p.Connected, p.Router = p.Connected || o.Connected, p.Router || o.Router
	if !o.Recheck.IsZero() && (p.Recheck.IsZero() || o.Recheck.Before(p.Recheck)) {
		p.Recheck = o.Recheck
	}
}

// at is what the instance has reported of an identity.
func (in *instance) at(identity string, now time.Time) Presence {
	var lost time.Time
	if in.stream == 0 {
		if lost = in.lostAt.Add(Grace); !now.Before(lost) {
			return Presence{}
		}
	}
	c, l := in.presence.now[identity], in.presence.past[identity]
	out := Presence{Connected: c.proxies > 0, Router: c.routers > 0, Recheck: lost}
	if until := l.at.Add(Grace); !l.at.IsZero() && now.Before(until) {
		out.join(Presence{Connected: true, Router: l.router, Recheck: until})
	}
	return out
}

// IdentitiesChanged is closed when Connected may answer otherwise than before, unless by time alone.
func (t *Table) IdentitiesChanged() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.identities
}

// touchIdentities wakes who waits for IdentitiesChanged. The caller holds t.mu.
func (t *Table) touchIdentities() {
	close(t.identities)
	t.identities = make(chan struct{})
}
