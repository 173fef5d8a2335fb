package plan

import (
	"errors"
	"slices"
	"strings"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// layer keeps the actions of one key, and which of them depend on what. Its owner guards it.
type layer struct {
	engine *Engine
	name   string
	view   *input.View
	types  map[string]*typePlan
	nodes  map[mesh.Topic]*topicNode
	failed map[*action]Failure
	// told are the texts of *Incomplete errors that were logged: one EnvoyFilter may be left out of many resources.
	told map[string]struct{}
}

// typePlan is what a layer has of one type.
type typePlan struct {
	url        string
	translator Translator
	metrics    typeMetrics
	// listing is true once the wildcard set was asked for.
	listing bool
	// lists by host, resources by name.
	lists, resources map[string]*action
}

func newLayer(e *Engine, key *class.Key, state *mesh.Snapshot, name string) *layer {
	return &layer{
		engine: e, name: name, view: input.NewView(key, state), types: map[string]*typePlan{}, nodes: map[mesh.Topic]*topicNode{},
		failed: map[*action]Failure{}, told: map[string]struct{}{},
	}
}

// plan returns the plan of a type; nil if nobody makes it.
func (l *layer) plan(url string) *typePlan {
	if p, ok := l.types[url]; ok {
		return p
	}
	t, ok := l.engine.translators[url]
	if !ok {
		return nil
	}
	p := &typePlan{
		url: url, translator: t, metrics: l.engine.metrics.of(url), lists: map[string]*action{}, resources: map[string]*action{},
	}
	l.types[url] = p
	return p
}

// dependants collects the actions that depend on one of the topics, each once, in an order that does not depend on chance.
func (l *layer) dependants(topics mesh.Topics) []*action {
	var found []*action
	seen := map[*action]struct{}{}
	collect := func(node *topicNode) {
		for _, a := range node.actions {
			if _, ok := seen[a]; !ok {
				seen[a] = struct{}{}
				found = append(found, a)
			}
		}
	}
	if len(topics) < len(l.nodes) {
		for topic := range topics {
			if node, ok := l.nodes[topic]; ok {
				collect(node)
			}
		}
	} else {
		for topic, node := range l.nodes {
			if topics.Has(topic) {
				collect(node)
			}
		}
	}
	slices.SortFunc(found, func(a, b *action) int {
		if d := strings.Compare(a.plan.url, b.plan.url); d != 0 {
			return d
		}
		return strings.Compare(a.name, b.name)
	})
	return found
}

// resource returns the tier's record of a resource.
func (p *typePlan) resource(name string) *action {
	a, ok := p.resources[name]
	if !ok {
		a = &action{plan: p, name: name}
		p.resources[name] = a
	}
	return a
}

// runList does a list again; what it names, and named before, is returned in both: the caller settles those resources.
func (l *layer) runList(a *action) (before []string) {
	before = a.names
	r := l.view.Reader()
	start := l.engine.clock.Now()
	names, err := listNames(a.plan.translator, r, a.name)
	a.plan.metrics.names.Observe(l.engine.clock.Now().Sub(start).Seconds())
	l.ran(a, r, err)
	if err == nil {
		a.names = names
	}
	return before
}

// gone reports whether the list is of a host that no longer exists.
func (l *layer) gone(a *action) bool {
	state := l.view.State()
	return a.name != "" && len(a.names) == 0 && a.failure == nil && !state.HasHost(a.name) && !state.NamesHost(contract.MeshGateway, a.name)
}

// runResource does a resource again and reports whether its bytes are others.
func (l *layer) runResource(a *action) (changed bool) {
	r := l.view.Reader()
	t := a.plan.translator
	start := l.engine.clock.Now()
	m, err := buildResource(t, r, a.name)
	_, incomplete := errors.AsType[*Incomplete](err)
	pending := errors.Is(err, ErrPending)
	blob := a.blob
	if err == nil || incomplete {
		blob = nil
		if m != nil {
			var failure error
			if blob, failure = l.engine.store.Put(t.TypeURL(), a.name, m); failure != nil {
				err, incomplete = failure, false
			}
		}
	}
	a.plan.metrics.build.Observe(l.engine.clock.Now().Sub(start).Seconds())
	if pending {
		l.ran(a, r, nil)
		a.pending = a.blob == nil
		return false
	}
	a.pending = false
	l.ran(a, r, err)
	if err != nil && !incomplete {
		return false
	}
	changed = a.blob != blob
	a.blob = blob
	return changed
}

// ran records what a run has read and how it ended.
func (l *layer) ran(a *action, r *input.Reader, err error) {
	stopped := err
	if _, ok := errors.AsType[*Incomplete](err); ok {
		stopped = nil // it went to its end
	}
	l.attach(a, r.Dependencies(), stopped)
	a.scope = r.Scope()
	a.built, a.stale = true, false
	switch {
	case err != nil:
		if a.failure == nil {
			l.engine.fails(1)
		}
		name := a.name
		if a.list {
			name = ""
		}
		if a.failure == nil || a.failure.Error() != err.Error() {
			l.failed[a] = Failure{TypeURL: a.plan.url, Name: name, Err: err, Revision: l.view.State().Revision()}
			log := l.engine.log.With("type", a.plan.url, "name", a.name, "list", a.list,
				"class", l.name, "namespace", l.view.Class().Namespace, "error", err)
			if _, ok := errors.AsType[*Incomplete](err); ok {
				if _, told := l.told[err.Error()]; !told {
					l.told[err.Error()] = struct{}{}
					log.Warn("resource built without some of what was asked for, and others perhaps too")
				}
			} else {
				log.Error("resource not built, its last good version stays")
			}
		}
		a.plan.metrics.failures.Inc()
	case a.failure != nil:
		l.engine.fails(-1)
		if delete(l.failed, a); len(l.failed) == 0 {
			clear(l.told)
		}
	}
	a.failure = err
}

// forget drops derived answers that no action depends on any more.
func (l *layer) forget() {
	l.view.Forget(func(t mesh.Topic) bool {
		_, ok := l.nodes[t]
		return ok
	})
}

// close gives back what the layer holds outside itself.
func (l *layer) close() {
	l.engine.fails(-len(l.failed))
	for topic := range l.nodes {
		l.engine.unfollow(topic)
	}
}
