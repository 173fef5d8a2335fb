package mcpserver

import (
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

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
	st, err := s.begin(ads.Context(), "sotw")
	if err != nil {
		return err
	}
	defer st.leave()
	types := map[string]*whole{}
	flush := func() (next due, err error) {
		now := s.cfg.Clock.Now()
		for url, w := range types {
			newest := s.cfg.Table.state(w.kind)
			if newest.version == w.sent {
				continue
			}
			if now.Before(w.next) {
				next.later(w.next)
				continue
			}
			w.sent, w.nonce, w.next = newest.version, st.nextNonce(), now.Add(pace)
			if err := ads.SendMsg(&frame{state: newest, url: url, nonce: w.nonce}); err != nil {
				return due{}, err
			}
			st.metrics.sent(kindOf(w.kind), len(newest.encoded()))
		}
		return next, nil
	}
	return follow(ads.Context(), st, rpc.Requests(ads), flush, func(m *discovery.DiscoveryRequest) error {
		st.named(m.GetNode())
		url := m.GetTypeUrl()
		known := types[url]
		if known == nil {
			types[url] = &whole{kind: mcp.ParseURL(url)}
			return admit(url, len(types))
		}
		if m.GetErrorDetail() != nil && m.GetResponseNonce() == known.nonce {
			st.rejected(url, m.GetErrorDetail().GetMessage())
		}
		return nil
	})
}
