package normalise

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/auth"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// bans are the IdentityBans in force. No EndpointSet holds an endpoint of a banned identity.
type bans struct {
	objects map[object.Key]*object.Object
	// count is the number of objects that ban an identity.
	count map[string]int
}

func newBans() bans { return bans{objects: map[object.Key]*object.Object{}, count: map[string]int{}} }

func (b bans) holds(identity string) bool { return b.count[identity] > 0 }

// updateBan takes over an IdentityBan and marks the endpoints of its identity.
func (m *Mesh) updateBan(k object.Key, o *object.Object) {
	m.dirty.bans.add(k)
	if old := m.bans.objects[k]; old != nil {
		identity := old.Body.(*object.Ban).Identity
		if m.bans.count[identity]--; m.bans.count[identity] == 0 {
			delete(m.bans.count, identity)
		}
		delete(m.bans.objects, k)
		m.touchIdentity(identity)
	}
	if o != nil {
		identity := o.Body.(*object.Ban).Identity
		m.bans.objects[k] = o
		m.bans.count[identity]++
		m.touchIdentity(identity)
	}
}

// touchIdentity marks every EndpointSet that may hold an endpoint of the identity.
func (m *Mesh) touchIdentity(identity string) {
	namespace, account, ok := auth.ParseWorkload(identity)
	if !ok {
		return
	}
	for k, in := range m.instances.byKey {
		if k.namespace == namespace && in.account == account {
			m.touchInstance(in)
		}
	}
	// A ServiceEntry may list endpoints of its own, with their service accounts.
	for o, obj := range m.owners {
		if o.kind == "ServiceEntry" && o.namespace == namespace {
			for _, h := range m.hosts(o, obj) {
				m.dirty.endpoints.add(h)
			}
		}
	}
}

// ban builds the IdentityBan resource of an object; nil if the object is gone.
func (m *Mesh) ban(k object.Key) proto.Message {
	o := m.bans.objects[k]
	if o == nil {
		return nil
	}
	b := o.Body.(*object.Ban)
	out := &configv1.IdentityBan{Identity: b.Identity, Reason: b.Reason, Source: sourceRef(o)}
	if !b.Until.IsZero() {
		out.Until = timestamppb.New(b.Until)
	}
	return out
}
