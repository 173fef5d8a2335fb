package plan

import (
	"maps"
	"slices"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// planWildcard builds the wildcard set of a type, from the lowest plan upwards, unless it is built already. The caller
// holds the lock.
func (s *scopePlan) planWildcard(url string) {
	p := s.typePlan(url)
	if p == nil || p.wildcard {
		return
	}
	p.wildcard = true
	if s.below == nil {
		hosts := s.graph.hosts()
		defer s.graph.computeAll(p, hosts)()
		s.refreshList(p, "")
		for _, host := range hosts {
			s.refreshList(p, host)
		}
		return
	}
	if below := s.below.graph.types[url]; below == nil || !below.wildcard {
		s.changeBelow(func(below *scopePlan) { below.planWildcard(url) })
	}
	s.refreshList(p, "")
	nodes := s.dependentsBelow(s.privateTopics)
	for n := range s.below.narrower {
		nodes = append(nodes, n)
	}
	s.refreshAll(slices.DeleteFunc(nodes, func(n *node) bool { return n.plan.url != url }))
}

// dependentsBelow lists the nodes of the plan below that depend on topics, directly or by a derived answer.
func (s *scopePlan) dependentsBelow(topics mesh.Topics) []*node {
	if len(topics) == 0 {
		return nil
	}
	all := maps.Clone(topics)
	s.below.graph.view.Derived(topics.Has, all.Add)
	return s.below.graph.dependents(all)
}

// redirectedBelow lists the nodes of the plan below whose result may have become another one in this scope, because
// derived answers there depend on other topics than before: perhaps on private ones.
func (s *scopePlan) redirectedBelow(answers mesh.Topics) []*node {
	if len(answers) == 0 || len(s.privateTopics) == 0 {
		return nil
	}
	return s.below.graph.dependents(answers)
}

// refreshAll refreshes the lists and resources that nodes of the plans below are of, the lists first.
func (s *scopePlan) refreshAll(below []*node) {
	for _, lists := range []bool{true, false} {
		for _, n := range below {
			p := s.graph.types[n.plan.url]
			switch {
			case p == nil || n.list != lists:
			case !lists:
				s.refreshResource(p, n.name)
			case p.wildcard && n.name != "":
				s.refreshList(p, n.name)
			}
		}
	}
}

// refreshList decides whether the plan needs a list of its own for a host, builds it if so, and refreshes the resources
// that it names or no longer names.
func (s *scopePlan) refreshList(p *typePlan, host string) {
	var below *node
	if s.below != nil && host != "" {
		below = s.below.lookupList(p.url, host)
	}
	n := p.lists[host]
	var needed bool
	switch {
	case host == "":
		needed = s.scope == input.WorkloadScope // each class lists the names that depend on no host itself
	case s.below == nil:
		needed = true
	default:
		needed = below != nil && s.mayDiffer(below)
	}
	if n == nil && !needed {
		return
	}
	added := n == nil
	if added {
		n = &node{plan: p, nodeKey: nodeKey{list: true, name: host}}
		p.lists[host] = n
	}
	affected := n.replaced
	for _, name := range n.replaced {
		p.resource(name).hidden--
	}
	n.replaced = nil
	if needed && (!n.built || n.stale) {
		before := s.graph.buildList(n)
		if added && below == nil && s.isObsolete(n) {
			s.graph.reset(n)
			delete(p.lists, host)
			return
		}
		s.nodeChanged(n)
		for _, name := range n.names {
			p.resource(name).listed++
		}
		for _, name := range before {
			p.resource(name).listed--
		}
		affected = slices.Concat(affected, n.names, before)
	}
	if needed && below != nil {
		n.replaced = below.names
		for _, name := range n.replaced {
			p.resource(name).hidden++
		}
		affected = slices.Concat(affected, n.replaced)
	}
	if !needed || below == nil && s.isObsolete(n) {
		for _, name := range n.names {
			p.resource(name).listed--
		}
		affected = slices.Concat(affected, n.names)
		s.graph.reset(n)
		s.nodeChanged(n)
		delete(p.lists, host)
	}
	for _, name := range affected {
		s.refreshResource(p, name)
		if p.resources[name] != nil {
			s.addRebuilt(p.resources[name])
		}
	}
}

// isObsolete reports whether a list of the lowest plan needs no node: it is empty, and either its host is not reached,
// or it stays empty whatever changes, because it depends on nothing. All lists of clusters of on-demand proxies are
// such.
func (s *scopePlan) isObsolete(n *node) bool {
	if n.name == "" || len(n.names) > 0 || n.failure != nil {
		return false
	}
	return len(n.dependencies) == 0 && n.scope <= s.scope || !s.graph.view.Reader().Reaches(n.name)
}

// refreshResource brings a resource up to date. The plan gets a node for it if the one below may differ here.
func (s *scopePlan) refreshResource(p *typePlan, name string) {
	n, ok := p.resources[name]
	if !ok {
		if s.below == nil {
			return
		}
		if below := s.below.lookup(p.url, name); below.listed == 0 || below.node == nil || !s.mayDiffer(below.node) {
			return
		}
		n = p.resource(name)
	}
	s.refreshNode(n)
}

// subscribe builds a resource for a subscriber to its name and keeps it until the subscriber unsubscribes.
func (s *scopePlan) subscribe(url, name string, who any) {
	p := s.typePlan(url)
	n, ok := p.resources[name]
	if !ok {
		if below := s.below.lookup(url, name); p.wildcard && below.listed > 0 && below.node != nil {
			return // the resource of the plan below is right here too, and stays while it is listed
		}
		n = p.resource(name)
	}
	if s.below != nil && len(n.subscribers) == 0 && n.listed == 0 {
		s.changeBelow(func(below *scopePlan) { below.subscribe(url, name, s) })
	}
	n.addSubscriber(who)
	delete(s.unsubscribed, n)
	s.refreshNode(n)
}

// unsubscribe removes a subscriber. After the last one the resource is dropped, with linger after the linger time.
func (s *scopePlan) unsubscribe(url, name string, who any, linger bool) {
	p := s.graph.types[url]
	if p == nil {
		return
	}
	n, ok := p.resources[name]
	if !ok {
		return
	}
	if _, subscribed := n.subscribers[who]; !subscribed {
		return
	}
	if delete(n.subscribers, who); len(n.subscribers) > 0 {
		return
	}
	if linger {
		s.unsubscribed[n] = s.graph.engine.clock.Now()
		return
	}
	s.refreshNode(n)
}

// refreshNode decides whether the plan needs a result of its own for a resource, builds it if so, and updates the
// plan's item.
func (s *scopePlan) refreshNode(n *node) {
	p := n.plan
	below := s.below.lookup(p.url, n.name)
	wildcard := n.listed+below.listed > n.hidden
	_, lingering := s.unsubscribed[n]
	wanted := wildcard || len(n.subscribers) > 0 || lingering
	same := below.node != nil && !s.mayDiffer(below.node)
	switch {
	case wanted && !same:
		if !n.built {
			// If the build fails, the item that this scope had until now stays.
			if published := s.published[p.url]; published != nil {
				item, _ := published.Get(n.name)
				n.blob = item.Blob
			}
		}
		if !n.built || n.stale {
			s.graph.buildResource(n)
			s.nodeChanged(n)
		}
	case n.built:
		s.graph.reset(n)
		s.nodeChanged(n)
	}
	s.updateItem(n, below, wildcard, wanted, same)
	if !wanted {
		if s.below != nil && !lingering {
			s.changeBelow(func(plan *scopePlan) { plan.unsubscribe(p.url, n.name, s, false) })
		}
		if n.hidden == 0 {
			delete(p.resources, n.name)
			s.addRebuilt(n)
		}
	} else if same && n.listed == 0 && n.hidden == 0 && len(n.subscribers) == 0 && !lingering {
		delete(p.resources, n.name)
	}
}

// updateItem gives the plan an item for the resource if it differs from the item of the plan below.
func (s *scopePlan) updateItem(n *node, below resolved, wildcard, wanted, same bool) {
	url := n.plan.url
	var next Item
	switch {
	case wanted && same:
		next = below.node.item(wildcard)
	case wanted:
		next = n.item(wildcard)
	}
	items := s.items[url]
	old, held := items.Get(n.name)
	// A resource that is not wanted here needs an empty item only if a list below names it, and its item would show. In
	// other cases there must be no empty item: it would still hide the item below after the node was removed.
	inherited := next == below.item() && (below.node != nil || !wanted) || !wanted && !below.item().Wildcard
	switch {
	case inherited && held:
		items.Delete(n.name)
	case !inherited && (!held || old != next):
		items.Set(n.name, next)
	}
	if held == inherited || held && old != next {
		s.markDirty(url, n.name)
		s.addChanged(url, n.name)
	}
	// In all other cases the item is as before, or it is the one below, whose changes addInheritedChanges adds.
	if s.below == nil {
		s.totals[url].replace(old, next)
	}
}

// nodeChanged is called after a node was built or reset.
func (s *scopePlan) nodeChanged(n *node) {
	if n.built && n.scope > s.scope {
		s.narrower[n] = struct{}{}
	} else {
		delete(s.narrower, n)
	}
	s.addRebuilt(n)
}
