package mcpserver

import (
	"slices"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
	sent, nonce string
	has         map[string]string
	next        time.Time
}

// DeltaAggregatedResources implements delta: after the first, a message has what has changed. A client gets all objects
// of a type that it asks for, whichever names it subscribes to.
func (s *Server) DeltaAggregatedResources(ads discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	ctx := ads.Context()
	log, err := s.begin(ctx, "delta")
	if err != nil {
		return err
	}
	st := s.newStream(log)
	defer st.timer.Stop()
	requests := rpc.Requests(ads)
	types := map[string]*difference{}
	for {
		changed := s.cfg.Table.Changed()
		var at due
		for url, d := range types {
			now := s.cfg.Clock.Now()
			newest := s.cfg.Table.state(d.kind)
			switch {
			case newest.version == d.sent:
				continue
			case now.Before(d.next):
				at.add(d.next)
				continue
			}
			d.next = now.Add(pace)
			for _, m := range d.messages(newest) {
				m.TypeUrl, m.SystemVersionInfo, m.Nonce = url, newest.version, st.nextNonce()
				d.nonce = m.Nonce
				if err := ads.Send(m); err != nil {
					return err
				}
			}
		}
		st.wait(at)
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-s.cfg.Stop:
			return status.Error(codes.Unavailable, "config-watcher is stopping")
		case <-changed:
		case <-st.timer.C():
		case r := <-requests:
			if r.Err != nil {
				return rpc.EndOf(r.Err)
			}
			m := r.Message
			st.named(m.GetNode())
			url := m.GetTypeUrl()
			switch known := types[url]; {
			case known == nil:
				if err := admit(url, len(types)); err != nil {
					return err
				}
				d := &difference{kind: mcp.ParseURL(url), has: map[string]string{}}
				if d.kind != nil {
					d.has = m.GetInitialResourceVersions()
				}
				if d.has == nil {
					d.has = map[string]string{}
				}
				types[url] = d
			case m.GetErrorDetail() != nil:
				st.rejected(url, m.GetErrorDetail().GetMessage())
			}
		}
	}
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
