package sds

import (
	"maps"
	"slices"
)

// resource is one secret as it can be sent now. Version identifies the content
// without revealing it.
type resource struct {
	name    string
	version string
}

// session is what one stream has asked for and been sent. It decides what is
// due; it does no I/O and is used by one goroutine.
type session struct {
	// sent has an entry per subscribed name: the version last sent, or "".
	sent map[string]string
}

func newSession() *session { return &session{sent: map[string]string{}} }

// subscribe adds names; held gives versions the client already has.
func (s *session) subscribe(names []string, held map[string]string) {
	for _, n := range names {
		// A repeated subscription asks for the resource again (xDS protocol,
		// "subscribing to resources").
		s.sent[n] = held[n]
	}
}

func (s *session) unsubscribe(names []string) {
	for _, n := range names {
		delete(s.sent, n)
	}
}

// replace makes names the whole subscription, as a state-of-the-world request
// does, and keeps what was sent for names that stay.
func (s *session) replace(names []string) {
	next := make(map[string]string, len(names))
	for _, n := range names {
		next[n] = s.sent[n]
	}
	s.sent = next
}

// due names the subscribed resources whose version differs from the one sent,
// in order, and marks them as sent.
func (s *session) due(available []resource) []string {
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

// subscribed lists the names, sorted.
func (s *session) subscribed() []string { return slices.Sorted(maps.Keys(s.sent)) }
