package mesh

// writer fills the next snapshot, which nobody else can see yet, and collects what changes. Snapshot.Apply makes one.
type writer struct {
	next *Snapshot
	// topics and private become those of the Change.
	topics  Topics
	private map[string]Topics
	// turned are the members that have joined or left the answer of a topic; one that left and joined again is not.
	turned map[member]struct{}
}

// member is a member of the set that answers a topic.
type member struct {
	topic Topic
	name  string
}

// replace puts next in place of the entry that the key has, removes that entry if next is nil, and reports whether the
// snapshot changes.
func (w *writer) replace(key Key, next *entry) bool {
	x := w.next.kinds[key.Kind]
	old, held := x.get(key.path())
	if next == nil && !held || next != nil && held && old.hash == next.hash {
		return false
	}
	if held {
		w.index(old, false)
	}
	if next == nil {
		x.writable(w).Delete(key.path())
	} else {
		x.writable(w).Set(key.path(), next)
		w.index(next, true)
	}
	w.next.kinds[key.Kind] = x
	return true
}

func (w *writer) index(e *entry, add bool) {
	if k, ok := kinds[e.key.Kind]; ok {
		k.index(w, e, add)
	}
}

// put adds a key to an index or removes it.
func put[V any](w *writer, x *index[V], add bool, key string, v V) {
	if m := x.writable(w); add {
		m.Set(key, v)
	} else {
		m.Delete(key)
	}
}

// count keeps the number of objects behind a key. It reports whether there is a first one now, or none any more.
func (w *writer) count(x *index[int], key string, add bool) (turned bool) {
	n, _ := x.get(key)
	if add {
		n++
	} else {
		n--
	}
	put(w, x, n > 0, key, n)
	return n == 0 || n == 1 && add
}

// turn notes that a member joins or leaves the set that answers a topic. The change of an object removes its members
// and adds them again: the topic is touched by touchTurned, if the set has changed then.
func (w *writer) turn(topic Topic, name string) {
	m := member{topic, name}
	if _, ok := w.turned[m]; ok {
		delete(w.turned, m)
		return
	}
	if w.turned == nil {
		w.turned = map[member]struct{}{}
	}
	w.turned[m] = struct{}{}
}

func (w *writer) touchTurned() {
	for m := range w.turned {
		w.topics.Add(m.topic)
	}
}

func (w *writer) touch(subject Subject, a, b string) { w.topics.Add(Topic{subject, a, b}) }

// countRelevantLabels counts the label keys that objects for the workloads of a namespace test; "*" is for all of them.
func (w *writer) countRelevantLabels(namespace string, labels map[string]string, add bool) {
	for key := range labels {
		if w.count(&w.next.relevantLabels, join(namespace, key), add) {
			w.touch(SubjectRelevantLabels, namespace, "")
		}
	}
}

// RelevantLabels returns the labels of a workload of the namespace that may decide what applies to it: those whose key
// a selector tests, a VirtualService's sourceLabels, or a failoverPriority.
func (s *Snapshot) RelevantLabels(namespace string, labels map[string]string) map[string]string {
	relevant := map[string]string{}
	for key, value := range labels {
		_, own := s.relevantLabels.get(join(namespace, key))
		_, all := s.relevantLabels.get(join("*", key))
		_, root := s.relevantLabels.get(join(rootSelectors(s.Mesh().GetRootNamespace()), key))
		if own || all || root {
			relevant[key] = value
		}
	}
	return relevant
}

// RelevantLabelsTopics names the answers of RelevantLabels, beside SettingsTopic.
func (s *Snapshot) RelevantLabelsTopics(namespace string) []Topic {
	return []Topic{
		{SubjectRelevantLabels, namespace, ""}, {SubjectRelevantLabels, "*", ""},
		{SubjectRelevantLabels, rootSelectors(s.Mesh().GetRootNamespace()), ""},
	}
}
