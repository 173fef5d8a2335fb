package serve

import "strings"

// Kept returns the number of streams, the most bytes of names that one of them is charged for, and the most names that
// one keeps beside those of its class.
func (s *Server) Kept() (streams, nameBytes, names int) {
	for _, st := range s.all() {
		st.mu.Lock()
		_, kept, bytes := st.client.Kept()
		streams, nameBytes, names = streams+1, max(nameBytes, bytes), max(names, kept)
		st.mu.Unlock()
	}
	return streams, nameBytes, names
}

// Unsent returns the bytes that the budget has reserved.
func (s *Server) Unsent() int64 { return s.unsent.InUse() }

// Waiting returns how many streams are in a queue of the budget.
func (s *Server) Waiting() int { return s.unsent.Waiting() }

// Names returns how many names all streams subscribe to.
func (s *Server) Names() int {
	n := 0
	for _, st := range s.all() {
		st.mu.Lock()
		subscribed, _, _ := st.client.Kept()
		n += subscribed
		st.mu.Unlock()
	}
	return n
}

// NamesBytes returns what all accounts are charged for names.
func (s *Server) NamesBytes() int64 { return s.quotas.NamesBytes() }

// Busy holds the mutex of the streams of a workload, as a long request does, until release is called.
func (s *Server) Busy(workload string) (release func()) {
	var busy []*stream
	for _, st := range s.all() {
		if st.mu.Lock(); st.node != nil && strings.Contains(st.node.ID, workload) {
			busy = append(busy, st)
		} else {
			st.mu.Unlock()
		}
	}
	return func() {
		for _, st := range busy {
			st.unlock()
		}
	}
}

// EndStatus returns the status of a stream that ends with err, after end was called with another error.
func EndStatus(end, err error) error {
	st := &stream{ender: ender{endWith: make(chan error, 1)}}
	if end != nil {
		st.end(end)
	}
	return st.endStatus(err)
}
