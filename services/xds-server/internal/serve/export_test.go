package serve

// Kept returns the number of streams, the most bytes of names that one of them has been charged for, and the most names that one keeps
// beside those of the classes.
func (s *Server) Kept() (streams, nameBytes, names int) {
	for _, st := range s.all() {
		st.mu.Lock()
		kept := 0
		for _, sub := range st.types {
			kept += sub.names.len() + sub.unsure.len() + sub.absent.len() + sub.fresh.len() + sub.deferred.len() + len(sub.withheld)
		}
		for _, held := range st.stated {
			kept += len(held)
		}
		kept += st.expired.len()
		streams, nameBytes, names = streams+1, max(nameBytes, st.nameBytes), max(names, kept)
		st.mu.Unlock()
	}
	return streams, nameBytes, names
}

// Unsent returns what is charged to the budget.
func (s *Server) Unsent() int64 { return s.budget.inUse() }

// Waiting returns how many streams are in line for the budget.
func (s *Server) Waiting() int {
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	return len(s.budget.first.waiting) + len(s.budget.others.waiting)
}
