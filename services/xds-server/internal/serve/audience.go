package serve

import (
	"sync"

	"fairlead.dev/services/xds-server/internal/mesh"
)

// audience finds the streams whose proxies may become another class when a topic changes, without asking every stream.
type audience struct {
	mu      sync.Mutex
	byTopic map[mesh.Topic]map[*stream]struct{}
}

// set replaces the topics of a stream.
func (a *audience) set(st *stream, before, after mesh.Topics) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for t := range before {
		if after.Has(t) {
			continue
		}
		if delete(a.byTopic[t], st); len(a.byTopic[t]) == 0 {
			delete(a.byTopic, t)
		}
	}
	for t := range after {
		if before.Has(t) {
			continue
		}
		if a.byTopic[t] == nil {
			a.byTopic[t] = map[*stream]struct{}{}
		}
		a.byTopic[t][st] = struct{}{}
	}
}

// of lists the streams that one of the topics may concern, each once.
func (a *audience) of(topics mesh.Topics) []*stream {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen := map[*stream]struct{}{}
	for t := range topics {
		for st := range a.byTopic[t] {
			seen[st] = struct{}{}
		}
	}
	found := make([]*stream, 0, len(seen))
	for st := range seen {
		found = append(found, st)
	}
	return found
}
