package plan

// Nodes counts the nodes that the engine keeps, of all its plans.
func (e *Engine) Nodes() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	add := func(s *scopePlan) {
		s.mu.RLock()
		defer s.mu.RUnlock()
		for _, p := range s.graph.types {
			n += len(p.lists) + len(p.resources)
		}
	}
	for _, s := range e.shared {
		add(s)
	}
	for _, c := range e.classes {
		add(c.plan)
	}
	return n
}

// DropUnusedAnswers drops the derived answers that nothing depends on, of the class's plan and those below.
func (c *Class) DropUnusedAnswers() {
	defer c.plan.lock()()
	c.plan.dropUnusedAnswers()
}

// Interests counts what the engine knows of who depends on what, and of who waits for absent names.
func (e *Engine) Interests() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.nodeTopics.plans) + len(e.answerTopics.plans) + len(e.waiting) + len(e.lowest)
}
