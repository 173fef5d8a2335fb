package mcpserver

import (
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/mcp"
)

// whole is a type that a client of the state of the world has asked for.
type whole struct {
	kind *kinds.Kind // nil for a type that nobody knows
	// sent is the version that was sent last, next when another may be sent.
	sent, nonce string
	next        time.Time
}

// StreamAggregatedResources implements the state of the world: each list is all objects of a kind. A client's first
// request for a type is a subscription whatever its nonce, since istiod invents one; later ones are answers.
func (s *Server) StreamAggregatedResources(ads discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	ctx := ads.Context()
	log, err := s.begin(ctx, "sotw")
	if err != nil {
		return err
	}
	st := s.newStream(log)
	defer st.timer.Stop()
	requests := rpc.Requests(ads)
	types := map[string]*whole{}
	for {
		changed := s.cfg.Table.Changed()
		var at due
		for url, w := range types {
			now := s.cfg.Clock.Now()
			newest := s.cfg.Table.state(w.kind)
			switch {
			case newest.version == w.sent:
				continue
			case now.Before(w.next):
				at.add(w.next)
				continue
			}
			w.sent, w.nonce, w.next = newest.version, st.nextNonce(), now.Add(pace)
			if err := ads.SendMsg(&frame{state: newest, url: url, nonce: w.nonce}); err != nil {
				return err
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
				types[url] = &whole{kind: mcp.ParseURL(url)}
			case m.GetErrorDetail() != nil && m.GetResponseNonce() == known.nonce:
				st.rejected(url, m.GetErrorDetail().GetMessage())
			}
		}
	}
}
