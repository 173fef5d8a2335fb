package serve

import (
	"slices"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
)

// inbox carries what is large in requests past go-control-plane's loop, which would keep it for as long as the stream lives: names and
// versions, and the node. The loop is left what it needs to tell wildcard subscriptions from others.
type payloadQueue struct {
	queueMu sync.Mutex
	// received are requests that the loop has not come to yet, at most two.
	queued []requestPayload
}

// parcel is the large part of one request.
type requestPayload struct {
	node                   *core.Node
	subscribe, unsubscribe []string
	// asked are the names in place of subscribe where they are many.
	subscribeList *longNames
	initial       *initialVersions
	// data is what held and asked are read from.
	buffers mem.BufferSlice
}

// says reports whether the request changes what is subscribed to.
func (p *requestPayload) changesSubscription() bool {
	return len(p.subscribe)+len(p.unsubscribe)+p.subscribeList.count() > 0
}

// names lists what the request subscribes to.
func (p *requestPayload) subscribed() []string {
	if p.subscribeList != nil {
		return p.subscribeList.decoded()
	}
	return p.subscribe
}

// free gives back the bytes of the request: what was not read until then never is.
func (p *requestPayload) freeBuffers() { p.buffers.Free() }

// Stand-ins for the names of a request. One name says as much as many.
var (
	placeholderNames            = []string{"-"}
	placeholderWildcard         = []string{"*"}
	placeholderWildcardAndNames = []string{"*", "-"}
)

func placeholdersFor(names []string) []string {
	switch {
	case len(names) == 0:
		return nil
	case !slices.Contains(names, "*"):
		return placeholderNames
	case len(names) == 1:
		return placeholderWildcard
	default:
		return placeholderWildcardAndNames
	}
}

func (q *payloadQueue) push(p requestPayload) {
	q.queueMu.Lock()
	defer q.queueMu.Unlock()
	q.queued = append(q.queued, p)
}

// nextParcel returns what belongs to the request that the loop is at: it takes them in the order of arrival.
func (q *payloadQueue) nextPayload() requestPayload {
	q.queueMu.Lock()
	defer q.queueMu.Unlock()
	if len(q.queued) == 0 {
		return requestPayload{}
	}
	p := q.queued[0]
	copy(q.queued, q.queued[1:])
	q.queued[len(q.queued)-1] = requestPayload{}
	q.queued = q.queued[:len(q.queued)-1]
	return p
}

// keepDelta takes the large part out of a request.
func (q *payloadQueue) detachDelta(r *deltaRequest) {
	req := r.DeltaDiscoveryRequest
	if r.initial == nil {
		r.initial = initialVersionsOf(req.GetInitialResourceVersions())
	}
	q.push(requestPayload{
		node: req.GetNode(), subscribe: req.GetResourceNamesSubscribe(), unsubscribe: req.GetResourceNamesUnsubscribe(),
		subscribeList: r.subscribeList, initial: r.initial, buffers: r.buffers,
	})
	req.Node, req.InitialResourceVersions = nil, nil
	switch {
	case r.subscribeList == nil:
		req.ResourceNamesSubscribe = placeholdersFor(req.GetResourceNamesSubscribe())
	case r.subscribeList.wildcard:
		req.ResourceNamesSubscribe = placeholderWildcardAndNames
	default:
		req.ResourceNamesSubscribe = placeholderNames
	}
	if slices.Contains(req.GetResourceNamesUnsubscribe(), "*") {
		req.ResourceNamesUnsubscribe = placeholderWildcard
	} else {
		req.ResourceNamesUnsubscribe = nil
	}
}

// keepWorld takes the large part out of a request.
func (q *payloadQueue) detachSotw(req *discovery.DiscoveryRequest) {
	q.push(requestPayload{node: req.GetNode(), subscribe: req.GetResourceNames()})
	req.Node = nil
	req.ResourceNames = placeholdersFor(req.GetResourceNames())
}
