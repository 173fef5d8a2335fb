package serve

import (
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.opentelemetry.io/otel/trace"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// subscription is one xDS type on one stream. What the client holds is not kept: it is the class's snapshot, except for the names in
// dirty and deferred.
type subscription struct {
	url      string
	wildcard bool
	// planned is true once the class was asked for the wildcard set.
	planned bool
	// names asked for.
	names map[string]struct{}
	// absent are those of names that were answered with "there is none".
	absent map[string]struct{}

	// dirty names may differ from what the client holds. fresh ones among them are answered even if there is nothing to say.
	dirty, fresh map[string]struct{}
	// deferred names are removals that wait until nothing refers to the resource any more.
	deferred map[string]struct{}
	// owed is true while the first response must go out even if empty.
	owed bool
	// answered is true once the client has all it needs for a start: a first response was made, or none was necessary.
	answered bool

	open        *watch
	outstanding *response

	// withheld are versions that were rejected: they are not sent again. If blamed together, a change of one frees all.
	withheld map[string]string
	together bool
	// resend is true after a NACK: what the client holds is unknown, the next response carries the whole type.
	resend bool
	// unsure names were removed by a response that was rejected: the client may still hold them.
	unsure    map[string]struct{}
	rejection *configv1.Rejection

	// good is, for state of the world, what the last acknowledged response contained.
	good map[string]*store.Blob

	sent, acked *configv1.Revision
	bytes       uint64
}

func newSubscription(url string) *subscription {
	return &subscription{
		url: url, names: map[string]struct{}{}, absent: map[string]struct{}{}, dirty: map[string]struct{}{},
		fresh: map[string]struct{}{}, deferred: map[string]struct{}{}, withheld: map[string]string{}, unsure: map[string]struct{}{},
	}
}

// watch is an open request: the server's loop waits for at most one response to it.
type watch struct {
	delta   *cache.DeltaRequest
	deltaTo chan cache.DeltaResponse
	world   *cache.Request
	worldTo chan cache.Response
}

// response is one that was handed to the server's loop and not acknowledged yet.
type response struct {
	nonce    string // "" until it is sent
	blobs    []*store.Blob
	removed  []string
	revision *configv1.Revision
	size     int
	sentAt   time.Time
	span     trace.Span
}

// wants reports whether the item is part of the subscription.
func (b *subscription) wants(name string, item plan.Item) bool {
	if b.wildcard && item.Wildcard {
		return true
	}
	_, ok := b.names[name]
	return ok
}

// touch marks a name as possibly different from what the client holds.
func (b *subscription) touch(name string) {
	b.dirty[name] = struct{}{}
	delete(b.deferred, name)
}

// touchAll marks all that the subscription covers, and what the client may hold although it should not.
func (b *subscription) touchAll(snapshot *plan.TypeSnapshot) {
	for name := range b.names {
		b.touch(name)
	}
	for name := range b.unsure {
		b.touch(name)
	}
	if b.wildcard {
		snapshot.Scan(func(name string, item plan.Item) bool {
			if item.Wildcard {
				b.touch(name)
			}
			return true
		})
	}
}

// ask marks a name that the client waits for: it is sent or said to be absent, whatever the client is thought to hold.
func (b *subscription) ask(name string) {
	b.touch(name)
	b.fresh[name] = struct{}{}
	delete(b.absent, name)
}

// clean reports whether the client holds all it should.
func (b *subscription) clean() bool {
	return len(b.dirty) == 0 && len(b.deferred) == 0 && b.outstanding == nil && !b.owed && b.rejection == nil
}

// pending reports whether an update is on its way or waits to be sent; removals that can wait do not count.
func (b *subscription) pending() bool {
	return b != nil && (b.outstanding != nil || len(b.dirty) > 0 || b.owed)
}

// sendOrder of types on one stream: clusters before what refers to them, and endpoints right after their clusters.
var sendOrder = []string{
	resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType, resource.VirtualHostType,
	resource.SecretType, resource.ExtensionConfigType,
}
