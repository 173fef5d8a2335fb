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
	url     string
	metrics *typeMetrics

	wildcard bool
	// planned is true once the class was asked for the wildcard set.
	planned bool
	// names asked for.
	names nameList
	// costly are those of names that the account is charged for: the class does not list them.
	chargedNames nameList
	// absent are those of names that were answered with "there is none".
	absent nameSet

	// dirty names may differ from what the client holds. fresh ones among them are answered even if there is nothing to say.
	dirty, requested nameSet
	// deferred names are removals that wait until nothing refers to the resource any more; deferredAt is the revision of the last of them.
	deferred   nameSet
	deferredAt *configv1.Revision
	// arriving are clusters that the client does not have yet: what may refer to them waits for them.
	newClusters nameSet
	// owed is true while the first response must go out even if empty; for virtual hosts, while some route configuration waits for its
	// first ones.
	responseDue bool
	// answered is true once the client has all it needs for a start: a first response was made, or none was necessary.
	answered bool

	open        watch
	outstanding *response
	// cancel is how the loop takes the open watch back.
	cancel func()

	// withheld are versions that were rejected: they are not sent again. If blamed together, a change of one frees all.
	rejectedVersions map[string]string
	rejectedTogether bool
	// resend is true after a NACK: what the client holds is unknown, the next response carries the whole type.
	resendAll bool
	// unsure names were removed by a response that was rejected: the client may still hold them.
	unconfirmedRemovals nameSet
	rejection           *configv1.Rejection

	// good is, for state of the world, what the client holds: see keep.
	ackedBlobs map[string]*store.Blob

	sent, acked *configv1.Revision
	// base is, while something waits, the revision up to which the client holds everything; nil if it never did.
	heldRevision *configv1.Revision
	bytes        uint64
}

// watch is an open request: the server's loop waits for at most one response to it. One of the channels is set.
type watch struct {
	delta   *cache.DeltaRequest
	deltaTo chan cache.DeltaResponse
	sotw    *cache.Request
	sotwTo  chan cache.Response
}

// isOpen reports whether the loop waits.
func (w *watch) isOpen() bool { return w.deltaTo != nil || w.sotwTo != nil }

// response is one that was handed to the server's loop and not acknowledged yet.
type response struct {
	budgetBytes
	message any    // what the loop sends
	nonce   string // "" until it is sent
	blobs   []*store.Blob
	removed []string
	// missing are virtual hosts that are said not to exist.
	missing  []string
	revision *configv1.Revision
	// base is set if the client holds everything up to this revision once it acknowledges; whole if the type was sent from the start.
	heldRevision *configv1.Revision
	// tables are route configurations that the client has only through this response.
	routeConfigs []string
	size         int
	sentAt       time.Time
	// round it was handed out in, see pace.
	round uint64
	span  trace.Span
}

// wants reports whether the item is part of the subscription.
func (sub *subscription) wants(name string, item plan.Item) bool {
	return sub.wildcard && item.Wildcard || sub.names.has(name)
}

// complete reports whether a state-of-the-world response of the type lists all that the subscription covers, so that what it leaves out is
// gone: clusters and listeners do always, also those that are asked for by name, and what else has a wildcard.
func (sub *subscription) complete() bool {
	return sub.wildcard || sub.url == resource.ClusterType || sub.url == resource.ListenerType
}

// clean reports whether the client holds all it should.
func (sub *subscription) clean() bool {
	return sub.dirty.len() == 0 && sub.deferred.len() == 0 && sub.outstanding == nil && !sub.responseDue && sub.rejection == nil
}

// pending reports whether an update is on its way or waits to be sent; removals that can wait do not count.
func (sub *subscription) pending() bool {
	return sub != nil && (sub.outstanding != nil || sub.dirty.len() > 0 || sub.responseDue)
}
