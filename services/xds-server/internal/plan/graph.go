package plan

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/store"
)

// graph is the dependency graph of one scope plan: its nodes, and which of them depend on which topic. The lock of the
// scope plan guards it.
type graph struct {
	engine *Engine
	plan   *scopePlan // whose graph it is
	// name of the scope plan in logs: the hash of its key.
	name         string
	view         *input.View
	types        map[string]*typePlan
	dependencies map[mesh.Topic]*dependency
	failed       map[*node]Failure
	// logged are the texts of *Incomplete errors that were logged: the same EnvoyFilter may be left out of many
	// resources, and is logged once.
	logged map[string]struct{}
}

// typePlan has the nodes of one type.
type typePlan struct {
	url        string
	translator Translator
	metrics    typeMetrics
	// wildcard is true once the wildcard set was planned.
	wildcard bool
	// lists by host, resources by name.
	lists, resources map[string]*node
	// results of computeAll which no node has taken yet; nil otherwise.
	results map[nodeKey]*result
}

// result of running a translator for a node.
type result struct {
	names  []string
	blob   *store.Blob
	err    error
	reader *input.Reader
	// done, if not nil, is closed once a worker has computed the result.
	done chan struct{}
}

func newGraph(e *Engine, key *class.Key, plan *scopePlan) *graph {
	g := &graph{
		engine: e, plan: plan, name: key.Hash().String(), types: map[string]*typePlan{},
		dependencies: map[mesh.Topic]*dependency{}, failed: map[*node]Failure{}, logged: map[string]struct{}{},
	}
	g.view = input.NewSharedView(key, &e.state, func(t mesh.Topic, used bool) { g.setInterest(&e.answerTopics, t, used) })
	return g
}

// setInterest notes whether the graph depends on a topic. Derived answers are topics of the graph's own view, and every
// update is applied to the lowest plans.
func (g *graph) setInterest(in *interests, t mesh.Topic, depends bool) {
	if g.plan.below != nil && t.Subject < mesh.SubjectDerived {
		in.set(t, g.plan, depends)
	}
}

// follow is called when the first node depends on a topic, unfollow when none does any more.
func (g *graph) follow(t mesh.Topic) {
	g.setInterest(&g.engine.nodeTopics, t, true)
	g.engine.follow(t)
}

func (g *graph) unfollow(t mesh.Topic) {
	g.setInterest(&g.engine.nodeTopics, t, false)
	g.engine.unfollow(t)
}

// typePlan returns the nodes of a type; nil if there is no translator for it.
func (g *graph) typePlan(url string) *typePlan {
	if p, ok := g.types[url]; ok {
		return p
	}
	t, ok := g.engine.translators[url]
	if !ok {
		return nil
	}
	p := &typePlan{
		url: url, translator: t, metrics: g.engine.metrics.of(url), lists: map[string]*node{}, resources: map[string]*node{},
	}
	g.types[url] = p
	return p
}

// dependents lists the nodes that depend on one of the topics, each once, sorted by type and name.
func (g *graph) dependents(topics mesh.Topics) []*node {
	var found []*node
	seen := map[*node]struct{}{}
	collect := func(d *dependency) {
		for _, n := range d.nodes {
			if _, ok := seen[n]; !ok {
				seen[n] = struct{}{}
				found = append(found, n)
			}
		}
	}
	if len(topics) < len(g.dependencies) {
		for topic := range topics {
			if d, ok := g.dependencies[topic]; ok {
				collect(d)
			}
		}
	} else {
		for topic, d := range g.dependencies {
			if topics.Has(topic) {
				collect(d)
			}
		}
	}
	slices.SortFunc(found, func(a, b *node) int {
		if c := strings.Compare(a.plan.url, b.plan.url); c != 0 {
			return c
		}
		return strings.Compare(a.name, b.name)
	})
	return found
}

// resource returns the node of a resource, a new one if there is none.
func (p *typePlan) resource(name string) *node {
	n, ok := p.resources[name]
	if !ok {
		n = &node{plan: p, nodeKey: nodeKey{name: name}}
		p.resources[name] = n
	}
	return n
}

// needsBuild reports whether a node, which may be nil, has no current result.
func needsBuild(n *node) bool { return n == nil || !n.built || n.stale }

// compute runs the translator for a node. It changes nothing in the graph, so several may run at the same time.
func (g *graph) compute(p *typePlan, key nodeKey) *result {
	res := &result{}
	g.computeInto(res, p, key)
	return res
}

func (g *graph) computeInto(res *result, p *typePlan, key nodeKey) {
	res.reader = g.view.Reader()
	start := g.engine.clock.Now()
	if key.list {
		res.names, res.err = listNames(p.translator, res.reader, key.name)
		p.metrics.names.Observe(g.engine.clock.Now().Sub(start).Seconds())
		return
	}
	m, err := buildResource(p.translator, res.reader, key.name)
	if res.err = err; m != nil {
		blob, failure := g.engine.store.Put(p.url, key.name, m)
		if res.blob = blob; failure != nil {
			res.err = failure
		}
	}
	p.metrics.build.Observe(g.engine.clock.Now().Sub(start).Seconds())
}

// computeAll computes the lists of the hosts with all workers of the engine, and then lets the workers compute the
// resources that the lists name, while the caller builds the nodes: see result. The caller must call wait in the end.
func (g *graph) computeAll(p *typePlan, hosts []string) (wait func()) {
	var lists, resources []nodeKey
	for _, host := range hosts {
		if needsBuild(p.lists[host]) {
			lists = append(lists, nodeKey{list: true, name: host})
		}
	}
	computed := make([]*result, len(lists))
	each(g.engine.workers, len(lists), func(i int) { computed[i] = g.compute(p, lists[i]) })
	p.results = make(map[nodeKey]*result, 2*len(lists))
	for i, list := range lists {
		p.results[list] = computed[i]
	}
	if g.engine.workers < 2 {
		return func() { p.results = nil }
	}
	var started []*result
	for _, list := range computed {
		for _, name := range list.names {
			key := nodeKey{name: name}
			if p.results[key] == nil && needsBuild(p.resources[name]) {
				res := &result{done: make(chan struct{})}
				p.results[key] = res
				resources, started = append(resources, key), append(started, res)
			}
		}
	}
	var group sync.WaitGroup
	group.Go(func() {
		each(g.engine.workers, len(resources), func(i int) {
			g.computeInto(started[i], p, resources[i])
			close(started[i].done)
		})
	})
	return func() {
		group.Wait()
		p.results = nil
	}
}

// result returns what the translator makes of a node: the result of computeAll if there is one.
func (g *graph) result(n *node) *result {
	if res, ok := n.plan.results[n.nodeKey]; ok {
		delete(n.plan.results, n.nodeKey)
		if res.done != nil {
			<-res.done
		}
		return res
	}
	return g.compute(n.plan, n.nodeKey)
}

// buildList builds a list and returns the names it had before. The caller refreshes the resources of both lists.
func (g *graph) buildList(n *node) (before []string) {
	before = n.names
	res := g.result(n)
	g.built(n, res.reader, res.err)
	if res.err == nil {
		n.names = res.names
	}
	return before
}

// buildResource builds a resource.
func (g *graph) buildResource(n *node) {
	res := g.result(n)
	if errors.Is(res.err, ErrPending) {
		g.built(n, res.reader, nil)
		n.pending = n.blob == nil
		return
	}
	n.pending = false
	g.built(n, res.reader, res.err)
	if _, incomplete := errors.AsType[*Incomplete](res.err); res.err == nil || incomplete {
		n.blob = res.blob
	}
}

// hosts lists the hosts that the class reaches: those that the lowest plan has lists for.
func (g *graph) hosts() (hosts []string) {
	g.view.Reader().Hosts(func(host string) { hosts = append(hosts, host) })
	return hosts
}

// newHosts lists, sorted, the hosts that the class reaches after a change of the topics and that a wildcard set has no
// list for.
func (g *graph) newHosts(topics mesh.Topics) []string {
	candidates := map[string]struct{}{}
	add := func(host string) {
		for _, p := range g.types {
			if p.wildcard && p.lists[host] == nil {
				candidates[host] = struct{}{}
			}
		}
	}
	if input.ReachMoved(topics) {
		g.view.Reader().Hosts(add)
		return slices.Sorted(maps.Keys(candidates))
	}
	for t := range topics {
		if host, ok := mesh.HostOf(contract.MeshGateway, t); ok {
			add(host)
		}
	}
	r := g.view.Reader()
	maps.DeleteFunc(candidates, func(host string, _ struct{}) bool { return !r.Reaches(host) })
	return slices.Sorted(maps.Keys(candidates))
}

// built records what a build has read and how it ended.
func (g *graph) built(n *node, r *input.Reader, err error) {
	_, incomplete := errors.AsType[*Incomplete](err)
	stopped := err
	if incomplete {
		stopped = nil // it has read everything
	}
	g.setDependencies(n, r.Dependencies(), stopped)
	n.scope = r.Scope()
	n.built, n.stale = true, false
	switch {
	case err != nil:
		if n.failure != nil {
			g.engine.countFailure(n.failure, -1)
		}
		g.engine.countFailure(err, 1)
		if n.failure == nil || n.failure.Error() != err.Error() {
			g.reportFailure(n, err, incomplete)
		}
		n.plan.metrics.failures.Inc()
	case n.failure != nil:
		g.removeFailure(n)
	}
	n.failure = err
}

// reportFailure keeps a failure for Class.Failures and logs it.
func (g *graph) reportFailure(n *node, err error, incomplete bool) {
	name := n.name
	if n.list {
		name = ""
	}
	g.failed[n] = Failure{TypeURL: n.plan.url, Name: name, Err: err, Revision: g.view.State().Revision()}
	log := g.engine.log.With("type", n.plan.url, "name", n.name, "list", n.list,
		"class", g.name, "namespace", g.view.Class().Namespace, "error", err)
	if !incomplete {
		log.Error("resource not built, its last good version stays")
		return
	}
	if _, logged := g.logged[err.Error()]; !logged {
		g.logged[err.Error()] = struct{}{}
		log.Warn("resource built without some of what was asked for, and others perhaps too")
	}
}

func (g *graph) removeFailure(n *node) {
	g.engine.countFailure(n.failure, -1)
	if delete(g.failed, n); len(g.failed) == 0 {
		clear(g.logged)
	}
}

// reset drops the result of a node and its dependencies.
func (g *graph) reset(n *node) {
	for _, d := range n.dependencies {
		g.removeDependent(d, n)
	}
	if n.failure != nil {
		g.removeFailure(n)
	}
	n.dependencies, n.failure, n.blob, n.built, n.stale, n.pending, n.scope = nil, nil, nil, false, false, false, input.MeshScope
}

// dropUnusedAnswers drops the derived answers of the view that no node depends on any more.
func (g *graph) dropUnusedAnswers() {
	g.view.DropUnused(func(t mesh.Topic) bool {
		_, ok := g.dependencies[t]
		return ok
	})
}

// close takes the graph's failures off the engine's count, and unfollows what it depends on.
func (g *graph) close() {
	for n := range g.failed {
		g.engine.countFailure(n.failure, -1)
	}
	for topic := range g.dependencies {
		g.unfollow(topic)
	}
	g.view.Close()
}
