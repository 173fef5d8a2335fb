package kubernetes

import (
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// Refused implements source.Refuser for the objects of the server's that were refused in this run.
func (s *Source) Refused() []source.Refused {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []source.Refused
	for _, k := range s.kinds {
		for _, r := range k.refused {
			out = append(out, r)
		}
	}
	return out
}

// refuse records which version of an object is refused. It is called with Source.mu held.
func (k *kind) refuse(name types.NamespacedName, e *entry, problems object.Problems) {
	if e.uid == "" {
		return // the stand-in for a kind that cannot be read
	}
	k.refused[name] = source.Refused{Key: k.key(name), APIVersion: e.apiVersion, UID: e.uid, Generation: e.generation, Problems: problems}
}

// accept forgets that an object was refused. It is called with Source.mu held.
func (k *kind) accept(name types.NamespacedName) {
	delete(k.problems, name)
	delete(k.refused, name)
}
