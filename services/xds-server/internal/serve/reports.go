package serve

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"fairlead.dev/pkg/notify"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/ondemand"
)

// proxyKey is valid once the stream has sent its node.
func (st *stream) proxyKey() ondemand.Proxy {
	return ondemand.Proxy{Node: st.node.ID, Identity: st.node.Identity}
}

// reports keeps which streams may have another status than at the last Report, so that a report costs what has changed.
type reports struct {
	notifier notify.Notifier

	mu sync.Mutex
	// dirty are the streams that were marked since the last take.
	dirty map[*stream]struct{}
	// gone are the keys whose last stream has ended.
	gone map[ondemand.Proxy]struct{}
	// nodes has the open streams of each node id, oldest first.
	nodes map[string][]*stream
}

// markChanged notes that the status of a stream may have changed, and notifies the reporter.
func (r *reports) markChanged(st *stream) {
	if st.reportQueued.Swap(true) {
		return
	}
	r.mu.Lock()
	r.dirty[st] = struct{}{}
	r.mu.Unlock()
	r.notifier.Notify()
}

// opened is called when a stream has sent its node.
func (r *reports) opened(st *stream) {
	r.mu.Lock()
	r.nodes[st.node.ID] = append(r.nodes[st.node.ID], st)
	delete(r.gone, st.proxyKey())
	r.mu.Unlock()
	r.markChanged(st)
}

// closed is called when a stream that has sent its node ends.
func (r *reports) closed(st *stream) {
	id := st.node.ID
	r.mu.Lock()
	delete(r.dirty, st)
	var next *stream
	remaining := slices.DeleteFunc(r.nodes[id], func(other *stream) bool { return other == st })
	if len(remaining) == 0 {
		delete(r.nodes, id)
	} else {
		r.nodes[id] = remaining
	}
	for _, other := range newest(remaining) {
		if other.proxyKey() == st.proxyKey() {
			next = other
		}
	}
	if next == nil {
		r.gone[st.proxyKey()] = struct{}{}
	}
	r.mu.Unlock()
	if next != nil {
		r.markChanged(next)
	}
	r.notifier.Notify()
}

// newest returns the newest stream of each identity among the streams of one node id. Two Pods of one service account
// with one node id share a status, the Pods of two accounts do not.
func newest(of []*stream) []*stream {
	if len(of) < 2 {
		return of
	}
	var found []*stream
	for _, st := range slices.Backward(of) {
		if !slices.ContainsFunc(found, func(other *stream) bool { return other.node.Identity == st.node.Identity }) {
			found = append(found, st)
		}
	}
	return found
}

// take returns the streams to report, each once, and the node ids whose stream has ended. If one identity has left a
// node id, the other identities of the node id are reported again, because the receiver forgets everything about a node
// id that has left.
func (r *reports) take(all bool) (streams []*stream, gone []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	goneNodes := map[string]bool{}
	for who := range r.gone {
		goneNodes[who.Node] = true
	}
	clear(r.gone)
	for st := range r.dirty {
		st.reportQueued.Store(false)
		if id := st.node.ID; !all && !goneNodes[id] && slices.Contains(newest(r.nodes[id]), st) {
			streams = append(streams, st)
		}
	}
	r.dirty = map[*stream]struct{}{}
	for id := range goneNodes {
		gone = append(gone, id)
		if !all {
			streams = append(streams, newest(r.nodes[id])...)
		}
	}
	if all {
		for _, of := range r.nodes {
			streams = append(streams, newest(of)...)
		}
	}
	return streams, gone
}

// Changed is closed at the next change of some status or of the served revision. Take the channel before Report.
func (s *Server) Changed() <-chan struct{} { return s.reports.notifier.Changed() }

// Served returns the revision that is served; nil before the first.
func (s *Server) Served() *configv1.Revision { return s.engine.Served().Revision }

// Report returns the statuses that may have changed since the last call, and the node ids whose stream has ended; with
// all, every status. Both lists are sorted. Only the reporter calls it.
func (s *Server) Report(all bool) (statuses []*configv1.ProxyStatus, gone []string) {
	streams, gone := s.reports.take(all)
	slices.Sort(gone)
	return statusesOf(streams), gone
}

// Statuses lists the connected proxies, sorted by node id and identity. If a node id and identity have several streams,
// the newest counts.
func (s *Server) Statuses() []*configv1.ProxyStatus {
	s.reports.mu.Lock()
	streams := make([]*stream, 0, len(s.reports.nodes))
	for _, of := range s.reports.nodes {
		streams = append(streams, newest(of)...)
	}
	s.reports.mu.Unlock()
	return statusesOf(streams)
}

// statusesOf lists the statuses of streams, sorted by node id and identity.
func statusesOf(streams []*stream) []*configv1.ProxyStatus {
	statuses := make([]*configv1.ProxyStatus, 0, len(streams))
	for _, st := range streams {
		if status := st.status(); status != nil {
			statuses = append(statuses, status)
		}
	}
	slices.SortFunc(statuses, func(a, b *configv1.ProxyStatus) int {
		return cmp.Or(strings.Compare(a.GetNodeId(), b.GetNodeId()), strings.Compare(a.GetIdentity(), b.GetIdentity()))
	})
	return statuses
}

// noteFailures is called after each Apply. It marks the proxies of classes whose build errors have changed.
func (s *Server) noteFailures() {
	if len(s.failing) == 0 && s.engine.Failing() == 0 {
		return
	}
	failing := map[*plan.Class]string{}
	other := map[*plan.Class]bool{}
	for _, c := range s.engine.Classes() {
		text := ""
		for _, f := range c.Failures("") {
			text += f.TypeURL + " " + f.Name + " " + f.Err.Error() + "\n"
		}
		if text != "" {
			failing[c] = text
		}
		if s.failing[c] != text {
			other[c] = true
		}
	}
	s.failing = failing
	if len(other) == 0 {
		return
	}
	for _, st := range s.all() {
		if st.in(other) {
			s.reports.markChanged(st)
		}
	}
}

func (st *stream) in(classes map[*plan.Class]bool) bool {
	st.lock()
	defer st.unlock()
	return classes[st.class]
}
