package normalise

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/auth"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// No EndpointSet holds an endpoint of a banned identity.
var identityBanKind = &rules[object.Object]{
	is: traits{unreported: true, meshWide: true},
	index: func(m *Mesh, old, now *object.Object) {
		if old != nil {
			identity := old.Body.(*object.Ban).Identity
			if m.bans[identity]--; m.bans[identity] == 0 {
				delete(m.bans, identity)
			}
		}
		if now != nil {
			m.bans[now.Body.(*object.Ban).Identity]++
		}
	},
	touch: (*Mesh).touchIdentity,
	build: func(_ *Mesh, o *object.Object) (proto.Message, error) {
		b := o.Body.(*object.Ban)
		out := &configv1.IdentityBan{Identity: b.Identity, Reason: b.Reason, Source: sourceRef(o)}
		if !b.Until.IsZero() {
			out.Until = timestamppb.New(b.Until)
		}
		return out, nil
	},
}

// touchIdentity marks every EndpointSet that may hold an endpoint of the identity of a ban.
func (m *Mesh) touchIdentity(o *object.Object) {
	namespace, account, ok := auth.ParseWorkload(o.Body.(*object.Ban).Identity)
	if !ok {
		return
	}
	for k, e := range m.stored {
		if k.Namespace != namespace {
			continue
		}
		switch v := e.value.(type) {
		case *instance:
			if v.account == account {
				m.touchInstance(v)
			}
		case *owner: // a ServiceEntry may list endpoints of its own, with their service accounts
			for _, h := range v.hosts {
				m.dirty.endpoints.Add(h)
			}
		}
	}
}
