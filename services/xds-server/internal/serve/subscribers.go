package serve

import (
	"sync"

	"fairlead.dev/services/xds-server/internal/mesh"
)

// subscribersIndex finds the streams that depend on a topic. Server.reclassify uses it, so that a change does not look
// at all streams.
type subscribersIndex struct {
	mu      sync.Mutex
	byTopic map[mesh.Topic]map[*stream]struct{}
}

// replace changes the topics of a stream.
func (idx *subscribersIndex) replace(st *stream, before, after mesh.Topics) {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	for t := range before {
		if after.Has(t) {
			continue
		}
		if delete(idx.byTopic[t], st); len(idx.byTopic[t]) == 0 {
			delete(idx.byTopic, t)
		}
	}
	for t := range after {
		if before.Has(t) {
			continue
		}
		if idx.byTopic[t] == nil {
			idx.byTopic[t] = map[*stream]struct{}{}
		}
		idx.byTopic[t][st] = struct{}{}
	}
}

// of lists the streams that depend on one of the topics, each once.
func (idx *subscribersIndex) of(topics mesh.Topics) []*stream {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	seen := map[*stream]struct{}{}
	for t := range topics {
		for st := range idx.byTopic[t] {
			seen[st] = struct{}{}
		}
	}
	found := make([]*stream, 0, len(seen))
	for st := range seen {
		found = append(found, st)
	}
	return found
}
