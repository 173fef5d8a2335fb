package serve

import (
	"container/list"
	"slices"
	"sync"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/pkg/clock"
)

// Bounds of onDemandMemory.
const (
	maxRememberedWorkloads = 4096
	maxRememberedNames     = 1024 // for each workload
	maxRememberedBytes     = 16 << 20
	rememberFor            = 30 * time.Minute
)

// onDemand reports whether the proxy holds only the clusters and virtual hosts that it requests by name.
func (st *stream) onDemand() bool { return st.class.Key().OnDemand }

// limitHosts returns those of the requested virtual hosts that the stream may subscribe to. The others are answered
// with "not found".
func (st *stream) limitHosts(hosts *subscription, names []string) []string {
	room := st.server.maxOnDemandHosts - hosts.names.len()
	admitted := make([]string, 0, min(max(room, 0), len(names)))
	for _, name := range names {
		switch {
		case name == "*" || hosts.names.has(name):
			admitted = append(admitted, name)
		case room > 0:
			admitted = append(admitted, name)
			room--
		case len(name) <= st.server.maxNameBytes && (st.refusedHosts.has(name) || st.chargeName(name) == ""):
			st.server.metrics.refusedHosts.Inc()
			st.refusedHosts.add(name)
			if !st.hostLimitLogged {
				st.hostLimitLogged = true
				st.server.log.Warn("proxy asks for more virtual hosts on demand than one stream may hold, further ones are answered with not found",
					"node", st.node.ID, "limit", st.server.maxOnDemandHosts, "host", name)
			}
		default:
			st.server.metrics.refusedHosts.Inc()
		}
	}
	return admitted
}

// subscribeHeld subscribes an on-demand client to the resources that it holds and has not named in its request: it has
// requested them on an earlier stream.
func (st *stream) subscribeHeld(sub *subscription, held map[string]string) {
	if !st.onDemand() || len(held) == 0 {
		return
	}
	current := st.class.Snapshot().Type(sub.url)
	var names []string
	for name := range held {
		if item, _ := current.Get(name); !item.Wildcard && !sub.names.has(name) && len(name) <= st.server.maxNameBytes {
			names = append(names, name)
		}
	}
	st.subscribeWithinLimits(sub, names)
}

// subscribeRemembered subscribes an on-demand client that holds nothing to what its workload has requested on earlier
// streams.
func (st *stream) subscribeRemembered(sub *subscription) {
	if !st.onDemand() {
		return
	}
	names := st.server.onDemandNames.names(st.proxyKey(), sub.url)
	st.subscribeWithinLimits(sub, slices.DeleteFunc(names, sub.names.has))
	for _, name := range names {
		st.markDirtyIfHeld(sub, name)
	}
}

// subscribeWithinLimits subscribes to names that the client has not requested on this stream, as far as the limits
// allow.
func (st *stream) subscribeWithinLimits(sub *subscription, names []string) {
	slices.Sort(names)
	if sub.url == resource.VirtualHostType {
		names = names[:min(len(names), max(st.server.maxOnDemandHosts-sub.names.len(), 0))]
	}
	for i, name := range names {
		if st.countName(name) != nil {
			st.uncountName(name)
			names = names[:i]
			break
		}
	}
	sub.names.add(names)
	st.plan(sub, names)
	if st.chargeNewNames(sub, names) != nil {
		st.unsubscribe(sub, slices.Clone(names)) // there is no room, and the client has not requested them
		return
	}
	st.remember(sub, names)
}

// remember keeps names that an on-demand client has requested and that exist, for its next stream.
func (st *stream) remember(sub *subscription, names []string) {
	if len(names) > 0 && st.onDemand() && (sub.url == resource.VirtualHostType || sub.url == resource.ClusterType) {
		st.server.onDemandNames.remember(st.proxyKey(), sub.url, names)
	}
}

// onDemandMemory keeps what on-demand workloads have requested, so that a restarted proxy is sent it at once. It is
// bounded and drops the workload first that has had no stream and no new name for longest.
type onDemandMemory struct {
	clock clock.Clock

	mu        sync.Mutex
	workloads map[proxyKey]*list.Element
	// order has the most recently used workload in front.
	order *list.List
	bytes int
}

// rememberedWorkload is what one workload has requested, by type.
type rememberedWorkload struct {
	id    proxyKey
	names map[string]*nameList
	count int
	bytes int
	at    time.Time
}

func newOnDemandMemory(c clock.Clock) *onDemandMemory {
	return &onDemandMemory{clock: c, workloads: map[proxyKey]*list.Element{}, order: list.New()}
}

func (m *onDemandMemory) remember(id proxyKey, url string, names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.workloads[id]
	if !ok {
		e = m.order.PushFront(&rememberedWorkload{id: id, names: map[string]*nameList{}})
		m.workloads[id] = e
	}
	m.order.MoveToFront(e)
	w := e.Value.(*rememberedWorkload)
	w.at = m.clock.Now()
	if w.names[url] == nil {
		w.names[url] = &nameList{}
	}
	for _, name := range names {
		if w.count >= maxRememberedNames {
			break
		}
		if !w.names[url].has(name) {
			w.names[url].add([]string{name})
			w.count++
			w.bytes += len(name) + nameOverhead
			m.bytes += len(name) + nameOverhead
		}
	}
	for back := m.order.Back(); back != nil && back != e &&
		(m.order.Len() > maxRememberedWorkloads || m.bytes > maxRememberedBytes); back = m.order.Back() {
		m.forget(back)
	}
}

// names lists what is remembered. The list is the caller's.
func (m *onDemandMemory) names(id proxyKey, url string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.workloads[id]
	if !ok {
		return nil
	}
	w := e.Value.(*rememberedWorkload)
	if m.clock.Now().Sub(w.at) > rememberFor {
		m.forget(e)
		return nil
	}
	if w.names[url] == nil {
		return nil
	}
	return slices.Clone(w.names[url].all())
}

// streamEnded notes that a stream of the workload has ended: its names are remembered for rememberFor from now.
func (m *onDemandMemory) streamEnded(id proxyKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.workloads[id]; ok {
		e.Value.(*rememberedWorkload).at = m.clock.Now()
	}
}

func (m *onDemandMemory) forget(e *list.Element) {
	w := m.order.Remove(e).(*rememberedWorkload)
	delete(m.workloads, w.id)
	m.bytes -= w.bytes
}
