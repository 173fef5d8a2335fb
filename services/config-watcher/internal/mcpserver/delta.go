package mcpserver

import (
	"slices"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/mcp"
)

// maxDeltaBytes bounds the resources of one message of delta. A larger difference is several messages.
const maxDeltaBytes = 2 << 20

// difference is a type that a client of delta has asked for.
type difference struct {
	kind *kinds.Kind // nil for a type that nobody knows
	// sent is the version of the kind that was sent last, has those of the objects that the client has.
	sent string
	has  map[string]string
	next time.Time
}

// DeltaAggregatedResources implements delta: after the first, a message has what has changed. A client gets all objects
// of a type that it asks for, whichever names it subscribes to.
func (s *Server) DeltaAggregatedResources(ads discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	st, err := s.begin(ads.Context(), "delta")
	if err != nil {
		return err
	}
	defer st.leave()
	types := map[string]*difference{}
	flush := func() (next due, err error) {
		now := s.cfg.Clock.Now()
		for url, d := range types {
			newest := s.cfg.Table.state(d.kind)
			if newest.version == d.sent {
				continue
			}
			if now.Before(d.next) {
				next.later(d.next)
				continue
			}
			d.next = now.Add(pace)
			for _, m := range d.messages(newest) {
				m.TypeUrl, m.SystemVersionInfo, m.Nonce = url, newest.version, st.nextNonce()
				if err := ads.Send(m); err != nil {
					return due{}, err
				}
				size := 0
				for _, res := range m.Resources {
					size += len(res.Resource.Value)
				}
				st.metrics.sent(kindOf(d.kind), size)
			}
		}
		return next, nil
	}
	return follow(ads.Context(), st, rpc.Requests(ads), flush, func(m *discovery.DeltaDiscoveryRequest) error {
		st.named(m.GetNode())
		url := m.GetTypeUrl()
		if types[url] == nil {
			d := &difference{kind: mcp.ParseURL(url)}
			if d.kind != nil {
				d.has = m.GetInitialResourceVersions()
			}
			types[url] = d
			return admit(url, len(types))
		}
		if m.GetErrorDetail() != nil {
			st.rejected(url, m.GetErrorDetail().GetMessage())
		}
		return nil
	})
}

// messages are the difference between what the client has and a state, at least one. The client has the state then.
func (d *difference) messages(to *state) []*discovery.DeltaDiscoveryResponse {
	out := []*discovery.DeltaDiscoveryResponse{{}}
	size := 0
	now := make(map[string]string, len(to.resources))
	for _, r := range to.resources {
		now[r.name] = r.version
		if d.has[r.name] == r.version {
			continue
		}
		if size += len(r.raw); size > maxDeltaBytes && len(out[len(out)-1].Resources) > 0 {
			out = append(out, &discovery.DeltaDiscoveryResponse{})
			size = len(r.raw)
		}
		last := out[len(out)-1]
		last.Resources = append(last.Resources, &discovery.Resource{
			Name: r.name, Version: r.version, Resource: &anypb.Any{TypeUrl: mcp.ResourceType, Value: r.raw},
		})
	}
	last := out[len(out)-1]
	for name := range d.has {
		if _, there := now[name]; !there {
			last.RemovedResources = append(last.RemovedResources, name)
		}
	}
	slices.Sort(last.RemovedResources)
	d.has, d.sent = now, to.version
	return out
}
