package serve

import (
	"container/list"
	"slices"
	"sync"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/pkg/clock"
)

// Bounds of what is remembered of workloads that hold only what they call.
const (
	learntWorkloads = 4096
	learntNames     = 1024 // per workload
	learntBytes     = 16 << 20
	learntFor       = 30 * time.Minute
)

// onDemand reports whether the proxy holds only what it asks for.
func (s *stream) onDemand() bool { return s.class.Key().OnDemand }

// admitHosts says which of the virtual hosts asked for by name are subscribed to; those beyond the limit are answered with "not found" and
// not kept.
func (s *stream) admitHosts(hosts *subscription, names []string) []string {
	room := s.server.maxOnDemandHosts - hosts.names.len()
	admitted := make([]string, 0, min(max(room, 0), len(names)))
	for _, name := range names {
		switch {
		case name == "*" || hosts.names.has(name):
			admitted = append(admitted, name)
		case room > 0:
			admitted = append(admitted, name)
			room--
		case len(name) <= s.server.maxNameBytes && (s.expired.has(name) || s.charge(name) == ""):
			s.server.metrics.refusedHosts.Inc()
			s.expired.add(name)
			if !s.warned {
				s.warned = true
				s.server.log.Warn("proxy asks for more virtual hosts on demand than one stream may hold, further ones are answered with not found",
					"node", s.node.ID, "limit", s.server.maxOnDemandHosts, "host", name)
			}
		default:
			s.server.metrics.refusedHosts.Inc()
		}
	}
	return admitted
}

// adopt subscribes to what an on-demand client says it holds and does not name: it has asked for it in an earlier stream.
func (s *stream) adopt(sub *subscription, held map[string]string) {
	if !s.onDemand() || len(held) == 0 {
		return
	}
	current := s.class.Snapshot().Type(sub.url)
	var names []string
	for name := range held {
		if item, _ := current.Get(name); !item.Wildcard && !sub.names.has(name) && len(name) <= s.server.maxNameBytes {
			names = append(names, name)
		}
	}
	s.take(sub, names)
}

// recall subscribes to what the workload has asked for in earlier streams, for a client that holds nothing.
func (s *stream) recall(sub *subscription) {
	if !s.onDemand() {
		return
	}
	names := s.server.learnt.recall(s.reporter(), sub.url)
	s.take(sub, slices.DeleteFunc(names, sub.names.has))
	for _, name := range names {
		s.touchIfHeld(sub, name)
	}
}

// take subscribes to names as far as the limits allow.
func (s *stream) take(sub *subscription, names []string) {
	slices.Sort(names)
	if sub.url == resource.VirtualHostType {
		names = names[:min(len(names), max(s.server.maxOnDemandHosts-sub.names.len(), 0))]
	}
	for i, name := range names {
		if s.count(name) != nil {
			s.uncount(name)
			names = names[:i]
			break
		}
	}
	sub.names.add(names)
	s.plan(sub, names)
	if s.price(sub, names) != nil {
		s.unsubscribe(sub, slices.Clone(names)) // the client has not asked for them, it only might
		return
	}
	s.learn(sub, names)
}

// learn remembers names that the workload has asked for and that exist.
func (s *stream) learn(sub *subscription, names []string) {
	if len(names) > 0 && s.onDemand() && (sub.url == resource.VirtualHostType || sub.url == resource.ClusterType) {
		s.server.learnt.learn(s.reporter(), sub.url, names)
	}
}

// memory remembers, of workloads that hold only what they call, what they have called: after a restart they are given it at once. It is
// bounded, and loses the workload first that was not heard of for longest.
type memory struct {
	clock clock.Clock

	mu        sync.Mutex
	workloads map[reporter]*list.Element
	// order has the one heard of last in front.
	order *list.List
	bytes int
}

// workload is what one workload has asked for, by type.
type workload struct {
	id    reporter
	names map[string]*nameList
	count int
	bytes int
	at    time.Time
}

func newMemory(c clock.Clock) *memory {
	return &memory{clock: c, workloads: map[reporter]*list.Element{}, order: list.New()}
}

func (m *memory) learn(id reporter, url string, names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.workloads[id]
	if !ok {
		e = m.order.PushFront(&workload{id: id, names: map[string]*nameList{}})
		m.workloads[id] = e
	}
	m.order.MoveToFront(e)
	w := e.Value.(*workload)
	w.at = m.clock.Now()
	if w.names[url] == nil {
		w.names[url] = &nameList{}
	}
	for _, name := range names {
		if w.count >= learntNames {
			break
		}
		if !w.names[url].has(name) {
			w.names[url].add([]string{name})
			w.count++
			w.bytes += len(name) + nameOverhead
			m.bytes += len(name) + nameOverhead
		}
	}
	for back := m.order.Back(); back != nil && back != e && (m.order.Len() > learntWorkloads || m.bytes > learntBytes); back = m.order.Back() {
		m.forget(back)
	}
}

// recall lists what is remembered; the list is the caller's.
func (m *memory) recall(id reporter, url string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.workloads[id]
	if !ok {
		return nil
	}
	w := e.Value.(*workload)
	if m.clock.Now().Sub(w.at) > learntFor {
		m.forget(e)
		return nil
	}
	if w.names[url] == nil {
		return nil
	}
	return slices.Clone(w.names[url].all())
}

// left notes that a stream of the workload has ended: what it has asked for is remembered for a while from now.
func (m *memory) left(id reporter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.workloads[id]; ok {
		e.Value.(*workload).at = m.clock.Now()
	}
}

func (m *memory) forget(e *list.Element) {
	w := m.order.Remove(e).(*workload)
	delete(m.workloads, w.id)
	m.bytes -= w.bytes
}
