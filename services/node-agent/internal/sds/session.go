package sds

import (
	"maps"
	"slices"
)

// session is the subscription of one stream: the names asked for and the versions sent. One goroutine uses it.
type session struct {
	// sent has the version last sent for every subscribed name, or "".
	sent map[string]string
	// files counts the subscriptions to secrets of files.
	files *files
}

func newSession(f *files) *session { return &session{sent: map[string]string{}, files: f} }

// end ends the subscription; the stream's handler calls it last.
func (s *session) end() { s.replace(nil) }

// available lists the subscribed secrets that exist: files, and those of own, the workload's.
func (s *session) available(own []*resource) []*resource {
	out := slices.DeleteFunc(own, func(r *resource) bool {
		_, ok := s.sent[r.name]
		return !ok
	})
	for _, name := range s.subscribed() {
		if r := s.files.get(name); r != nil {
			out = append(out, r)
		}
	}
	return out
}

// subscribe adds names; held has the versions that the client holds.
func (s *session) subscribe(names []string, held map[string]string) {
	for _, n := range names {
		// A repeated subscription asks for the resource again (xDS protocol, "subscribing to resources").
		if _, had := s.sent[n]; !had {
			s.files.use(n)
		}
		s.sent[n] = held[n]
	}
}

func (s *session) unsubscribe(names []string) {
	for _, n := range names {
		if _, had := s.sent[n]; had {
			s.files.drop(n)
			delete(s.sent, n)
		}
	}
}

// replace makes names the whole subscription, as a state-of-the-world request does. It keeps the versions sent of names
// that stay.
func (s *session) replace(names []string) {
	next := make(map[string]string, len(names))
	for _, n := range names {
		if _, twice := next[n]; !twice {
			s.files.use(n)
		}
		next[n] = s.sent[n]
	}
	for n := range s.sent {
		s.files.drop(n)
	}
	s.sent = next
}

// due returns the sorted names of the resources whose version differs from the one sent, and marks them as sent.
func (s *session) due(available []*resource) []string {
	var names []string
	for _, r := range available {
		if v, ok := s.sent[r.name]; ok && v != r.version {
			s.sent[r.name] = r.version
			names = append(names, r.name)
		}
	}
	slices.Sort(names)
	return names
}

// subscribed returns the names, sorted.
func (s *session) subscribed() []string { return slices.Sorted(maps.Keys(s.sent)) }
