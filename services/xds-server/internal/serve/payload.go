package serve

import (
	"slices"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
)

// payloadQueue carries the large parts of requests past go-control-plane's loop: node, names and versions, which the
// loop would keep until the stream ends. The loop gets placeholders that let it tell wildcard subscriptions from
// others.
type payloadQueue struct {
	queueMu sync.Mutex
	// queued payloads belong to requests that the loop has not handled yet, at most two.
	queued []requestPayload
}

// requestPayload is the large part of one request.
type requestPayload struct {
	node                   *core.Node
	subscribe, unsubscribe []string
	// subscribeList takes the place of subscribe if the names are many.
	subscribeList *longNames
	initial       *initialVersions
	// buffers hold what initial and subscribeList have not decoded yet.
	buffers mem.BufferSlice
}

// changesSubscription reports whether the request subscribes to names or unsubscribes from some.
func (p *requestPayload) changesSubscription() bool {
	return len(p.subscribe)+len(p.unsubscribe)+p.subscribeList.count() > 0
}

// subscribed lists the names that the request subscribes to.
func (p *requestPayload) subscribed() []string {
	if p.subscribeList != nil {
		return p.subscribeList.decoded()
	}
	return p.subscribe
}

// freeBuffers frees the encoded request. initial and subscribeList cannot be decoded any more.
func (p *requestPayload) freeBuffers() { p.buffers.Free() }

// Placeholders for the names of a request: the loop treats many names as it treats one.
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

// nextPayload returns the payload of the request that the loop is handling. Requests are handled in the order of
// arrival.
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

// detachDelta moves the payload of a delta request to the queue.
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

// detachSotw moves the payload of a sotw request to the queue.
func (q *payloadQueue) detachSotw(req *discovery.DiscoveryRequest) {
	q.push(requestPayload{node: req.GetNode(), subscribe: req.GetResourceNames()})
	req.Node = nil
	req.ResourceNames = placeholdersFor(req.GetResourceNames())
}
