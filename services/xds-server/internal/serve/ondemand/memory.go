// Package ondemand remembers which names the proxies that hold only what they call (on demand) have requested, so that
// a restarted proxy is sent them at once.
package ondemand

import (
	"container/list"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/xds-server/internal/serve/nameset"
)

// Bounds of a Memory.
const (
	maxRememberedWorkloads = 4096
	maxRememberedNames     = 1024 // for each workload
	maxRememberedBytes     = 16 << 20
	rememberFor            = 30 * time.Minute
	// nameOverhead is what a name counts beside its text.
	nameOverhead = 64
)

// Proxy identifies a proxy. The streams that different identities open with one node id belong to different proxies, so
// that nobody reads what another has requested.
type Proxy struct{ Node, Identity string }

// Memory keeps what on-demand workloads have requested, so that a restarted proxy is sent it at once. It is
// bounded and drops the workload first that has had no stream and no new name for longest.
type Memory struct {
	clock clock.Clock

	mu        sync.Mutex
	workloads map[Proxy]*list.Element
	// order has the most recently used workload in front.
	order *list.List
	bytes int
}

// rememberedWorkload is what one workload has requested, by type.
type rememberedWorkload struct {
	id    Proxy
	names map[string]*nameset.List
	count int
	bytes int
	at    time.Time
}

// New makes an empty Memory.
func New(c clock.Clock) *Memory {
	return &Memory{clock: c, workloads: map[Proxy]*list.Element{}, order: list.New()}
}

// Remember adds names of a type that a proxy has requested and that exist.
func (m *Memory) Remember(id Proxy, url string, names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.workloads[id]
	if !ok {
		e = m.order.PushFront(&rememberedWorkload{id: id, names: map[string]*nameset.List{}})
		m.workloads[id] = e
	}
	m.order.MoveToFront(e)
	w := e.Value.(*rememberedWorkload)
	w.at = m.clock.Now()
	if w.names[url] == nil {
		w.names[url] = &nameset.List{}
	}
	for _, name := range names {
		if w.count >= maxRememberedNames {
			break
		}
		if !w.names[url].Has(name) {
			w.names[url].Add([]string{name})
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

// Names lists what is remembered. The list is the caller's.
func (m *Memory) Names(id Proxy, url string) []string {
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
	return slices.Clone(w.names[url].Names())
}

// StreamEnded notes that a stream of the workload has ended: its names are remembered for rememberFor from now.
func (m *Memory) StreamEnded(id Proxy) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.workloads[id]; ok {
		e.Value.(*rememberedWorkload).at = m.clock.Now()
	}
}

func (m *Memory) forget(e *list.Element) {
	w := m.order.Remove(e).(*rememberedWorkload)
	delete(m.workloads, w.id)
	m.bytes -= w.bytes
}
