package subscription

import (
	"slices"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/nameset"
	"fairlead.dev/services/xds-server/internal/serve/wire"
	"fairlead.dev/services/xds-server/internal/store"
)

// subscription is one xDS type on one stream. It does not store what the client holds: that is the snapshot of the
// class, except for the names in dirty and deferred.
type subscription struct {
	url string

	wildcard bool
	// unnamed is true while an empty list of names stands for everything (the legacy wildcard).
	unnamed bool
	// planned is true once the class has planned the resources that it lists of this type.
	planned bool
	// names are the subscribed names, without "*".
	names nameset.List
	// chargedNames are the names among them that the class does not list; the account is charged for these.
	chargedNames nameset.List
	// absent names were answered with "there is no such resource".
	absent nameset.Set

	// dirty names may differ from what the client holds. Those in requested are answered even if the resource does not
	// exist or has not changed.
	dirty, requested nameset.Set
	// owed names are charged although they are not subscribed to; see owe.
	owed nameset.Set
	// deferred names are removals that wait until nothing refers to the resource any more; deferredAt is the state that
	// brought the last of them.
	deferred   nameset.Set
	deferredAt plan.Point
	// newClusters are clusters that the client does not have yet: what refers to them waits until it does.
	newClusters nameset.Set
	// responseDue is true while a response must go out even if it is empty: the first one of a wildcard, and for
	// virtual hosts the first one of each route configuration.
	responseDue bool
	// answered is true once a first response was made, or none was needed because the client holds everything.
	answered bool

	// outstanding is the response that was handed out and is not acknowledged yet; nil if there is none. Nothing else
	// of the type is sent meanwhile.
	outstanding *Response

	// rejectedVersions, by name, are not sent again. With rejectedTogether, one NACK has blamed all of them without
	// naming one, and a change of one lifts the rejection of all.
	rejectedVersions map[string]string
	rejectedTogether bool
	// resendAll is true after a NACK: it is unknown what the client holds, and the next response carries the whole
	// type.
	resendAll bool
	// unconfirmedRemovals were removed by a rejected response: the client may still hold them.
	unconfirmedRemovals nameset.Set
	rejection           *configv1.Rejection

	// ahead are responses that were made from a snapshot with changes of which the client was not told yet.
	ahead []*Response

	// ackedBlobs is what a sotw client holds; nil for delta. See noteAcked.
	ackedBlobs map[string]*store.Blob

	sent, acked *configv1.Revision
	// held is set while something waits: the state up to which the client holds everything; zero if there is none.
	held  plan.Point
	bytes uint64
}

// Response is handed out by Flush and is outstanding until the client has acknowledged or rejected it.
type Response struct {
	TypeURL string
	// Version is the version_info of a sotw response, the system_version_info of a delta one.
	Version string
	Blobs   []*store.Blob
	// Removed are the names of resources that are gone; a sotw response cannot name them. Missing are virtual hosts
	// that are answered with "not found".
	Removed, Missing []string
	// Revision is that of the resources, Size their bytes and those of the names.
	Revision *configv1.Revision
	Size     int
	// First is true for the first response of its type.
	First bool
	// SentAt is zero until the response is sent. Rejection is set after a NACK.
	SentAt    time.Time
	Rejection *configv1.Rejection

	nonce string // "" until it is sent
	// at is the state of the snapshot that the response was made from.
	at plan.Point
	// held is set if the client holds everything up to this state once it acknowledges the response.
	held plan.Point
	// routeConfigs are those that the client holds only because of this response; for virtual hosts, those whose
	// virtual hosts it contains.
	routeConfigs []string
	// owed are names that owe has charged.
	owed []string
	// byName is what find looks up in a long response; nil before.
	byName map[string]*store.Blob
}

// find returns the resource of a name, nil if the response removes it, and whether the response mentions the name at
// all. A nil response mentions none.
func (r *Response) find(name string) (blob *store.Blob, mentioned bool) {
	if r == nil {
		return nil, false
	}
	const few = 16
	if r.byName == nil && len(r.Blobs)+len(r.Removed) > few {
		r.byName = make(map[string]*store.Blob, len(r.Blobs)+len(r.Removed))
		for _, removed := range r.Removed {
			r.byName[removed] = nil
		}
		for _, blob := range r.Blobs {
			r.byName[blob.Name()] = blob
		}
	}
	if r.byName != nil {
		blob, mentioned = r.byName[name]
		return blob, mentioned
	}
	if i := slices.IndexFunc(r.Blobs, func(blob *store.Blob) bool { return blob.Name() == name }); i >= 0 {
		return r.Blobs[i], true
	}
	return nil, slices.Contains(r.Removed, name)
}

// namedTypes are requested by name only: for them an empty list of names is not the legacy wildcard.
var namedTypes = []string{
	resource.EndpointType, resource.RouteType, resource.ScopedRouteType, resource.VirtualHostType, resource.SecretType,
	resource.RuntimeType, resource.ExtensionConfigType,
}

// updateWildcard applies a request to the wildcard: "*", or no name at all as long as none was ever requested. A
// request subscribes first and unsubscribes then.
func (sub *subscription) updateWildcard(req *wire.Request, isNew bool) {
	if isNew && !slices.Contains(namedTypes, sub.url) {
		sub.unnamed, sub.wildcard = true, req.NameTally.Count() == 0
	}
	if sub.unnamed && req.NameTally.Count() == 0 {
		return
	}
	sub.unnamed = false
	sub.wildcard = (req.Wildcard() || req.Delta && sub.wildcard) && !slices.Contains(req.Unsubscribe, "*")
}

// wants reports whether the subscription covers the resource. For virtual hosts, see covers.
func (sub *subscription) wants(name string, item plan.Item) bool {
	return sub.wildcard && item.Wildcard || sub.names.Has(name)
}

// complete reports whether a sotw response of the type lists everything that the subscription covers, so that the
// client removes what is left out. This holds for clusters and listeners, even when they are requested by name, and for
// all wildcards.
func (sub *subscription) complete() bool {
	return sub.wildcard || sub.url == resource.ClusterType || sub.url == resource.ListenerType
}

// clean reports whether the client holds everything it should.
func (sub *subscription) clean() bool {
	return sub.dirty.Len() == 0 && sub.deferred.Len() == 0 && sub.outstanding == nil && !sub.responseDue && sub.rejection == nil
}

// pending reports whether a response is outstanding or must be sent. Deferred removals do not count.
func (sub *subscription) pending() bool {
	return sub != nil && (sub.outstanding != nil || sub.dirty.Len() > 0 || sub.responseDue)
}
