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
type inbox struct {
	mail sync.Mutex
	// received are requests that the loop has not come to yet, at most two.
	received []parcel
}

// parcel is the large part of one request.
type parcel struct {
	node                   *core.Node
	subscribe, unsubscribe []string
	// asked are the names in place of subscribe where they are many.
	asked *asking
	held  *holding
	// data is what held and asked are read from.
	data mem.BufferSlice
}

// says reports whether the request changes what is subscribed to.
func (p *parcel) says() bool { return len(p.subscribe)+len(p.unsubscribe)+p.asked.count() > 0 }

// names lists what the request subscribes to.
func (p *parcel) names() []string {
	if p.asked != nil {
		return p.asked.all()
	}
	return p.subscribe
}

// free gives back the bytes of the request: what was not read until then never is.
func (p *parcel) free() { p.data.Free() }

// Stand-ins for the names of a request. One name says as much as many.
var (
	standIn             = []string{"-"}
	standInWildcard     = []string{"*"}
	standInWildcardMore = []string{"*", "-"}
)

func standInFor(names []string) []string {
	switch {
	case len(names) == 0:
		return nil
	case !slices.Contains(names, "*"):
		return standIn
	case len(names) == 1:
		return standInWildcard
	default:
		return standInWildcardMore
	}
}

func (b *inbox) put(p parcel) {
	b.mail.Lock()
	defer b.mail.Unlock()
	b.received = append(b.received, p)
}

// nextParcel returns what belongs to the request that the loop is at: it takes them in the order of arrival.
func (b *inbox) nextParcel() parcel {
	b.mail.Lock()
	defer b.mail.Unlock()
	if len(b.received) == 0 {
		return parcel{}
	}
	p := b.received[0]
	copy(b.received, b.received[1:])
	b.received[len(b.received)-1] = parcel{}
	b.received = b.received[:len(b.received)-1]
	return p
}

// keepDelta takes the large part out of a request.
func (b *inbox) keepDelta(r *deltaRequest) {
	req := r.DeltaDiscoveryRequest
	if r.held == nil {
		r.held = held(req.GetInitialResourceVersions())
	}
	b.put(parcel{
		node: req.GetNode(), subscribe: req.GetResourceNamesSubscribe(), unsubscribe: req.GetResourceNamesUnsubscribe(),
		asked: r.asked, held: r.held, data: r.data,
	})
	req.Node, req.InitialResourceVersions = nil, nil
	switch {
	case r.asked == nil:
		req.ResourceNamesSubscribe = standInFor(req.GetResourceNamesSubscribe())
	case r.asked.wildcard:
		req.ResourceNamesSubscribe = standInWildcardMore
	default:
		req.ResourceNamesSubscribe = standIn
	}
	if slices.Contains(req.GetResourceNamesUnsubscribe(), "*") {
		req.ResourceNamesUnsubscribe = standInWildcard
	} else {
		req.ResourceNamesUnsubscribe = nil
	}
}

// keepWorld takes the large part out of a request.
func (b *inbox) keepWorld(req *discovery.DiscoveryRequest) {
	b.put(parcel{node: req.GetNode(), subscribe: req.GetResourceNames()})
	req.Node = nil
	req.ResourceNames = standInFor(req.GetResourceNames())
}
