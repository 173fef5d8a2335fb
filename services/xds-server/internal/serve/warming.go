package serve

import (
	"maps"
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/store"
)

// followClusters makes sure that the endpoints of updated clusters go out again, changed or not, or are said to be gone: Envoy warms an
// updated cluster and does not ask.
func (s *stream) followClusters(updated []*store.Blob) {
	eds := s.of(resource.EndpointType)
	if eds == nil {
		// A client that reconnects may name the endpoints it holds only after it was sent the clusters.
		s.toWarm(updated)
		return
	}
	for _, b := range updated {
		if b.EndpointsName != "" && eds.names.has(b.EndpointsName) {
			s.ask(eds, b.EndpointsName)
			delete(eds.withheld, b.EndpointsName)
		}
	}
}

// toWarm keeps clusters until the client asks for endpoints.
func (s *stream) toWarm(updated []*store.Blob) {
	if !slices.ContainsFunc(updated, func(b *store.Blob) bool { return b.EndpointsName != "" }) {
		return
	}
	const few = 8
	if s.warming = append(s.warming, updated); len(s.warming) < few {
		return
	}
	once := map[string]*store.Blob{}
	for _, blobs := range s.warming {
		for _, b := range blobs {
			once[b.EndpointsName] = b
		}
	}
	s.warming = [][]*store.Blob{slices.Collect(maps.Values(once))}
}

// followMirrors gives an on-demand client the clusters that the virtual hosts it was sent mirror to.
func (s *stream) followMirrors(updated []*store.Blob) {
	cds := s.of(resource.ClusterType)
	if !s.onDemand() || cds == nil {
		return
	}
	for _, b := range updated {
		for _, name := range b.Mirrors {
			if cds.names.has(name) {
				continue
			}
			s.take(cds, []string{name})
			s.touch(cds, name)
			s.again = true
		}
	}
}

// warm asks for the endpoints that a client waits for when it first subscribes to any, because their clusters were sent on this stream.
func (s *stream) warm(sub *subscription) {
	if sub.url != resource.EndpointType {
		return
	}
	warming := s.warming
	s.warming = nil
	if len(warming) > 0 && sub.names.len() > 0 && len(sub.names.more) == 0 && sub.dirty.is(sub.names.list) && sub.fresh.len()+sub.absent.len() == 0 {
		sub.fresh.fill(sub.names.list) // all that it asks for is sent anyway
		return
	}
	for _, updated := range warming {
		for _, b := range updated {
			if b.EndpointsName != "" && sub.names.has(b.EndpointsName) {
				s.ask(sub, b.EndpointsName)
			}
		}
	}
}
