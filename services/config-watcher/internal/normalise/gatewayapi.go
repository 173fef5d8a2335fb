package normalise

import (
	"cmp"

	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// Judged is what has changed of the objects of the Gateway API, see package gatewayapi.
type Judged struct {
	// Statuses are those that have changed, by object; nil for an object without one.
	Statuses map[object.Key]*gatewayapi.Status
	// Resources are the objects whose resource has changed or is gone.
	Resources []object.Key
	// Wanted are the Secrets and ConfigMaps that are referred to and may be read, sorted; it counts if Rewanted is
	// true.
	Wanted   []object.Key
	Rewanted bool
	// Ended are the accesses of gatewayapi.Result.
	Ended map[gatewayapi.Access]struct{}
}

// judgedKind is every kind of the Gateway API, and what objects of it refer to and no other does.
var judgedKind = &rules[object.Object]{index: (*Mesh).judge}

// hiddenJudgedKind are those kinds that nobody but package gatewayapi reads.
var hiddenJudgedKind = &rules[object.Object]{is: traits{unreported: true}, index: (*Mesh).judge}

func addJudgedKinds(to map[kindName]kind) {
	for _, name := range []string{gatewayapi.GatewayClass, gatewayapi.Gateway, gatewayapi.ListenerSet, gatewayapi.HTTPRoute,
		gatewayapi.GRPCRoute, gatewayapi.TLSRoute, gatewayapi.TCPRoute, gatewayapi.UDPRoute, gatewayapi.BackendTLSPolicy,
		gatewayapi.ReferenceGrant} {
		to[kindName{gatewayapi.Group, name}] = judgedKind
	}
	to[kindName{kinds.GroupFairlead, object.KindCredentialState}] = hiddenJudgedKind
}

// judge hands an object to package gatewayapi, which reads Services and Namespaces too; now is nil if it is gone.
func (m *Mesh) judge(old, now *object.Object) { m.gateways.Put(cmp.Or(now, old).Key, now) }

// rebuildGatewayAPI recomputes what objects of the Gateway API mean.
func (m *Mesh) rebuildGatewayAPI() {
	if m.cfg.Now != nil {
		m.gateways.Advance(m.cfg.Now())
	}
	r := m.gateways.Rebuild()
	m.delta.Judged = Judged{Statuses: r.Statuses, Rewanted: r.Wanted, Ended: r.Ended}
	if r.Wanted {
		m.delta.Judged.Wanted = m.gateways.Wanted()
	}
	for k, config := range r.Resources {
		var body proto.Message
		if config != nil {
			body = config
		}
		m.emit(resource.Of(k), body)
		m.delta.Judged.Resources = append(m.delta.Judged.Resources, k)
	}
}

// TimePassed is a change of nothing. With it Apply only looks at the clock, by which certificates expire.
func TimePassed() Change {
	return Change{Key: object.Key{Group: kinds.GroupFairlead, Kind: object.KindCredentialState, Name: "time"}}
}
