package serve

import (
	"slices"
	"strings"
	"sync"

	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
)

// reports keeps which streams' status may have changed since the reporter looked, so that a report costs what has changed.
type reports struct {
	notifier tlsconf.Notifier

	mu    sync.Mutex
	dirty []*stream
	// gone are nodes whose last stream has ended.
	gone map[string]struct{}
	// nodes are the open streams of each node, oldest first.
	nodes map[string][]*stream
}

// touch notes that a stream's status may be another one.
func (r *reports) touch(s *stream) {
	if s.reported.Swap(true) {
		return
	}
	r.mu.Lock()
	r.dirty = append(r.dirty, s)
	r.mu.Unlock()
	r.notifier.Notify()
}

// opened is called when a stream's node is known.
func (r *reports) opened(s *stream) {
	r.mu.Lock()
	r.nodes[s.node.ID] = append(r.nodes[s.node.ID], s)
	delete(r.gone, s.node.ID)
	r.mu.Unlock()
	r.touch(s)
}

// closed is called when a stream whose node is known has ended.
func (r *reports) closed(s *stream) {
	id := s.node.ID
	r.mu.Lock()
	var newest *stream
	left := slices.DeleteFunc(r.nodes[id], func(other *stream) bool { return other == s })
	if len(left) == 0 {
		delete(r.nodes, id)
		r.gone[id] = struct{}{}
	} else {
		r.nodes[id], newest = left, left[len(left)-1]
	}
	r.mu.Unlock()
	if newest != nil {
		r.touch(newest)
	}
	r.notifier.Notify()
}

// take returns the streams to report and the nodes that have left, both once.
func (r *reports) take(all bool) (streams []*stream, gone []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.dirty {
		s.reported.Store(false)
		if of := r.nodes[s.node.ID]; !all && len(of) > 0 && of[len(of)-1] == s {
			streams = append(streams, s)
		}
	}
	r.dirty = nil
	if all {
		for _, of := range r.nodes {
			streams = append(streams, of[len(of)-1])
		}
	}
	for id := range r.gone {
		gone = append(gone, id)
	}
	clear(r.gone)
	return streams, gone
}

// Changed is closed at the next change of some proxy's status, or of the revision served. Take it before Report.
func (s *Server) Changed() <-chan struct{} { return s.reports.notifier.Changed() }

// Served returns the revision that is served from; nil before the first.
func (s *Server) Served() *configv1.Revision { return s.engine.Served() }

// Report returns what the last Report has not: statuses that may be others, and nodes that have left; or, for all, every status. It costs
// what has changed. Both lists are sorted. It is for one caller, the reporter.
func (s *Server) Report(all bool) (statuses []*configv1.ProxyStatus, gone []string) {
	streams, gone := s.reports.take(all)
	for _, st := range streams {
		if status := st.status(); status != nil {
			statuses = append(statuses, status)
		}
	}
	sortStatuses(statuses)
	slices.Sort(gone)
	return statuses, gone
}

// Statuses lists the connected proxies, sorted by node id. Of several streams of one node the newest counts.
func (s *Server) Statuses() []*configv1.ProxyStatus {
	s.reports.mu.Lock()
	streams := make([]*stream, 0, len(s.reports.nodes))
	for _, of := range s.reports.nodes {
		streams = append(streams, of[len(of)-1])
	}
	s.reports.mu.Unlock()
	statuses := make([]*configv1.ProxyStatus, 0, len(streams))
	for _, st := range streams {
		if status := st.status(); status != nil {
			statuses = append(statuses, status)
		}
	}
	sortStatuses(statuses)
	return statuses
}

func sortStatuses(statuses []*configv1.ProxyStatus) {
	slices.SortFunc(statuses, func(a, b *configv1.ProxyStatus) int { return strings.Compare(a.GetNodeId(), b.GetNodeId()) })
}

// noteFailures makes the reporter look at the proxies of classes in which other resources cannot be built than before.
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
			s.reports.touch(st)
		}
	}
}

func (s *stream) in(classes map[*plan.Class]bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return classes[s.class]
}
