package serve

import (
	"context"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// respond makes the response to an open watch, if there is anything to say, and hands it to the server's loop.
func (s *stream) respond(sub *subscription) {
	if len(sub.dirty) == 0 && !sub.owed && (len(sub.deferred) == 0 || s.referred(sub)) {
		return
	}
	snapshot := s.class.Snapshot()
	current := snapshot.Type(sub.url)
	sub.free(current)
	if sub.resend && len(sub.dirty) > 0 {
		sub.touchAll(current)
	}
	out := &response{revision: snapshot.Revision}
	if !s.referred(sub) {
		for name := range sub.deferred {
			sub.touch(name)
		}
	}
	s.collect(sub, current, out)
	if !s.delta && !sub.wildcard {
		out.removed = nil // the state of the world cannot say that a resource asked for by name is gone
	}
	owed := sub.owed
	sub.owed, sub.answered = false, true
	if len(out.blobs) == 0 && len(out.removed) == 0 && !owed {
		return
	}
	ok, updated := false, out.blobs
	if s.delta {
		ok = s.handDelta(sub, out)
	} else {
		ok = s.handWorld(sub, current, out)
	}
	if !ok {
		// The loop's buffer holds one response per type, so this needs a client that opens types by the dozen.
		for _, b := range updated {
			sub.ask(b.Name())
		}
		sub.owed = owed || len(out.removed) > 0
		return
	}
	sub.open, sub.outstanding, sub.resend = nil, out, false
	if sub.url == resource.ClusterType {
		s.followClusters(updated)
	}
}

// collect moves what dirty names stand for into the response.
func (s *stream) collect(sub *subscription, current *plan.TypeSnapshot, out *response) {
	later := s.referred(sub)
	for _, name := range keys(sub.dirty) {
		delete(sub.dirty, name)
		_, waiting := sub.fresh[name]
		delete(sub.fresh, name)
		item, _ := current.Get(name)
		switch {
		case sub.wants(name, item) && item.Blob != nil:
			if sub.withheld[name] == item.Blob.Version() {
				continue
			}
			delete(sub.absent, name)
			out.blobs = append(out.blobs, item.Blob)
		case later && !waiting:
			sub.deferred[name] = struct{}{}
		default:
			if _, asked := sub.names[name]; asked {
				sub.absent[name] = struct{}{}
			}
			out.removed = append(out.removed, name)
		}
	}
}

// followClusters makes sure that the endpoints of updated clusters go out again, changed or not: Envoy warms an updated cluster and does
// not ask.
func (s *stream) followClusters(updated []*store.Blob) {
	eds, ok := s.types[resource.EndpointType]
	if !ok {
		// A client that reconnects may name the endpoints it holds only after it was sent the clusters.
		for _, b := range updated {
			if b.EndpointsName != "" {
				s.warming[b.EndpointsName] = struct{}{}
			}
		}
		return
	}
	for _, b := range updated {
		if _, asked := eds.names[b.EndpointsName]; asked && b.EndpointsName != "" {
			eds.touch(b.EndpointsName)
			delete(eds.withheld, b.EndpointsName)
		}
	}
}

// warm marks the endpoints that a new subscription must be sent because their clusters were, on this stream.
func (s *stream) warm(sub *subscription) {
	if sub.url != resource.EndpointType {
		return
	}
	for name := range s.warming {
		if _, asked := sub.names[name]; asked {
			sub.touch(name)
		}
	}
	clear(s.warming)
}

// handDelta gives a delta response to the server's loop. The message is the stream's own, because the loop writes the nonce into it; the
// resources in it are shared.
func (s *stream) handDelta(sub *subscription, out *response) bool {
	m := &discovery.DeltaDiscoveryResponse{
		SystemVersionInfo: s.class.Snapshot().Type(sub.url).Version(), TypeUrl: sub.url, RemovedResources: out.removed,
		Resources: make([]*discovery.Resource, 0, len(out.blobs)),
	}
	for _, b := range out.blobs {
		m.Resources = append(m.Resources, b.Resource)
		out.size += b.Size() + len(b.Name())
	}
	for _, name := range out.removed {
		out.size += len(name)
	}
	select {
	case sub.open.deltaTo <- &deltaResponse{request: sub.open.delta, message: m, ctx: s.ctx}:
		return true
	default:
		return false
	}
}

// handWorld gives a state-of-the-world response to the server's loop: clusters and listeners always whole, other types what has changed.
func (s *stream) handWorld(sub *subscription, current *plan.TypeSnapshot, out *response) bool {
	if sub.wildcard {
		out.blobs = s.whole(sub, current)
	}
	m := &discovery.DiscoveryResponse{
		VersionInfo: worldVersion(sub, current), TypeUrl: sub.url, Resources: make([]*anypb.Any, 0, len(out.blobs)),
	}
	for _, b := range out.blobs {
		m.Resources = append(m.Resources, b.Resource.GetResource())
		out.size += b.Size()
	}
	select {
	case sub.open.worldTo <- &worldResponse{request: sub.open.world, message: m, ctx: s.ctx}:
		return true
	default:
		return false
	}
}

// whole lists all that the subscription covers. In place of a rejected version stands the last one that was acknowledged: leaving it out
// would remove it.
func (s *stream) whole(sub *subscription, current *plan.TypeSnapshot) []*store.Blob {
	var blobs []*store.Blob
	current.Scan(func(name string, item plan.Item) bool {
		if item.Blob == nil || !sub.wants(name, item) {
			return true
		}
		b := item.Blob
		if sub.withheld[name] == b.Version() {
			b = sub.good[name]
		}
		if b != nil {
			blobs = append(blobs, b)
		}
		return true
	})
	return blobs
}

// worldVersion is the version of the state that a state-of-the-world client holds after a response: a hash of the resources subscribed to.
func worldVersion(sub *subscription, current *plan.TypeSnapshot) string {
	if sub.wildcard && len(sub.names) == 0 && len(sub.withheld) == 0 {
		return current.Version()
	}
	var blobs []*store.Blob
	if sub.wildcard {
		current.Scan(func(name string, item plan.Item) bool {
			if item.Blob != nil && sub.wants(name, item) && sub.withheld[name] != item.Blob.Version() {
				blobs = append(blobs, item.Blob)
			}
			return true
		})
		return plan.VersionOf(blobs)
	}
	for name := range sub.names {
		if item, _ := current.Get(name); item.Blob != nil && sub.withheld[name] != item.Blob.Version() {
			blobs = append(blobs, item.Blob)
		}
	}
	return plan.VersionOf(blobs)
}

// deltaResponse and worldResponse carry a finished message through go-control-plane's loops.
type deltaResponse struct {
	request *cache.DeltaRequest
	message *discovery.DeltaDiscoveryResponse
	ctx     context.Context
}

func (r *deltaResponse) GetDeltaDiscoveryResponse() (*discovery.DeltaDiscoveryResponse, error) {
	return r.message, nil
}
func (r *deltaResponse) GetDeltaRequest() *discovery.DeltaDiscoveryRequest { return r.request }
func (r *deltaResponse) GetSystemVersion() (string, error)                 { return r.GetResponseVersion(), nil }
func (r *deltaResponse) GetResponseVersion() string                        { return r.message.GetSystemVersionInfo() }
func (r *deltaResponse) GetContext() context.Context                       { return r.ctx }

// What the client holds is this package's own business, and the loop writes into the map: it gets an empty one.
func (r *deltaResponse) GetNextVersionMap() map[string]string    { return map[string]string{} }
func (r *deltaResponse) GetReturnedResources() map[string]string { return map[string]string{} }

type worldResponse struct {
	request *cache.Request
	message *discovery.DiscoveryResponse
	ctx     context.Context
}

func (r *worldResponse) GetDiscoveryResponse() (*discovery.DiscoveryResponse, error) {
	return r.message, nil
}
func (r *worldResponse) GetRequest() *discovery.DiscoveryRequest { return r.request }
func (r *worldResponse) GetVersion() (string, error)             { return r.GetResponseVersion(), nil }
func (r *worldResponse) GetResponseVersion() string              { return r.message.GetVersionInfo() }
func (r *worldResponse) GetContext() context.Context             { return r.ctx }

func (r *worldResponse) GetReturnedResources() map[string]string { return map[string]string{} }

var (
	_ cache.DeltaResponse = (*deltaResponse)(nil)
	_ cache.Response      = (*worldResponse)(nil)
	_ cache.ConfigWatcher = (*stream)(nil)
)
