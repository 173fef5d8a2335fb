package serve

import (
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/quota"
	"fairlead.dev/services/xds-server/internal/serve/subscription"
)

// newClient makes the subscriptions of a stream, whose account is open.
func (s *Server) newClient(st *stream) *subscription.Client {
	return subscription.New(subscription.Config{
		Delta: st.delta, Class: classOf{st}, Account: st.account, Memory: memoryOf{st}, Limits: &s.limits,
		EmptyEndpoints: s.emptyEndpoints, HostRefused: st.hostRefused,
		NamesRefused: func(reason string) { _ = st.account.Refuse(st.node.ID, quota.BudgetNames, reason) },
	})
}

// classOf is the class of a stream, as its subscriptions see it. Of the streams of one account, one plans at a time.
type classOf struct{ *stream }

func (c classOf) Plan(url string, listed bool, names []string) {
	c.account.Planning.Lock()
	defer c.account.Planning.Unlock()
	c.class.Plan(c.stream, url, listed, names)
}

func (c classOf) Release(url string, names []string) {
	c.account.Planning.Lock()
	defer c.account.Planning.Unlock()
	c.class.Release(c.stream, url, names)
}

func (c classOf) Snapshot() *plan.Snapshot { return c.class.Snapshot() }

func (c classOf) Failures(url string) []plan.Failure { return c.class.Failures(url) }

func (c classOf) OnDemand() bool { return c.class.Key().OnDemand }

// memoryOf is what the server remembers of a stream's proxy.
type memoryOf struct{ *stream }

func (m memoryOf) Names(url string) []string { return m.server.onDemandNames.Names(m.proxyKey(), url) }

func (m memoryOf) Remember(url string, names []string) {
	m.server.onDemandNames.Remember(m.proxyKey(), url, names)
}

// hostRefused is called for each virtual host that the client requests beyond the limit.
func (st *stream) hostRefused(host string, first bool) {
	st.server.metrics.refusedHosts.Inc()
	if first {
		st.server.log.Warn("proxy asks for more virtual hosts on demand than one stream may hold, further ones are answered with not found",
			"node", st.node.ID, "limit", st.server.limits.MaxOnDemandHosts, "host", host)
	}
}
