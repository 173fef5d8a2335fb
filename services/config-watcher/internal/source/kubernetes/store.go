package kubernetes

// ReflectorStore is a cache.ReflectorStore of two functions: client-go calls Put for each event, where gone means that
// the object was deleted, and All with the result of each list.
type ReflectorStore struct {
	Put func(o any, gone bool) error
	All func(list []any, version string) error
}

// Add implements cache.ReflectorStore.
func (s ReflectorStore) Add(o any) error { return s.Put(o, false) }

// Update implements cache.ReflectorStore.
func (s ReflectorStore) Update(o any) error { return s.Put(o, false) }

// Delete implements cache.ReflectorStore.
func (s ReflectorStore) Delete(o any) error { return s.Put(o, true) }

// Replace implements cache.ReflectorStore.
func (s ReflectorStore) Replace(list []any, version string) error { return s.All(list, version) }

// Resync implements cache.ReflectorStore. Nothing needs to be delivered again.
func (s ReflectorStore) Resync() error { return nil }
