// Package memory is the object store behind ConfigStoreService, the config API for meshes without Kubernetes. Objects
// are in memory and, if Config.Dir is set, in one JSON file each with a checksum, which is on disk before the write is
// acknowledged. Package storeapi calls Store's Write, Edit, Delete, Get, List and Watch; as a source the Store delivers
// its objects to the aggregate.
//
// store.go computes writes (content.go says what counts as a change), persist.go makes them durable and journal.go
// finishes interrupted ones; load.go reads the directory at the start.
package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/source/record"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// Name of the source.
const Name = "memory"

// Errors that callers distinguish.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("already exists")
	ErrStale    = errors.New("stale resource version")
	// ErrNotWritable means that the store's directory could not be written; nothing has changed.
	ErrNotWritable = errors.New("the store's directory cannot be written")
	// ErrNotLoaded means that the store's directory has not been read yet, or cannot be.
	ErrNotLoaded = errors.New("the store has not been loaded")
)

// Config of a store. Log and Clock are required.
type Config struct {
	// Dir is the directory of the objects; if it is empty they are only in memory.
	Dir string
	// Codec encodes the files.
	Codec record.Codec
	// Saved keeps a second copy of each object; if nil there is none.
	Saved *lastgood.Dir
	// FS is the file system of Dir.
	FS    fileio.FS
	Log   *slog.Logger
	Clock clock.Clock
	// Audit is called before each write is stored, and its error refuses the write; it may be nil.
	Audit func(context.Context, []Commit) error
	// Admit is asked about what a write changes, and its problems refuse the write; it may be nil.
	Admit func([]*object.Object) object.Problems
}

// Commit is the change of one object by a write. Before is nil for a new object, After for a deleted one.
type Commit struct {
	Key           object.Key
	Before, After *Item
}

// audit calls Config.Audit; the caller holds s.writing.
func (s *Store) audit(ctx context.Context, put []*Item, del ...object.Key) error {
	if s.cfg.Audit == nil {
		return nil
	}
	commits := lists.Map(put, func(it *Item) Commit { return Commit{it.Key, s.items[it.Key], it} })
	for _, k := range del {
		commits = append(commits, Commit{k, s.items[k], nil})
	}
	return s.cfg.Audit(ctx, commits)
}

// Item is one stored object. It is immutable.
type Item struct {
	Key        object.Key
	APIVersion string
	Version    string
	Generation int64
	// Manifest is the object as JSON.
	Manifest []byte

	tree   map[string]any
	object *object.Object
}

// Object is the item as the store delivers it.
func (it *Item) Object() *object.Object { return it.object }

// Store is the memory source. It is safe for concurrent use.
type Store struct {
	cfg     Config
	handler source.Handler
	retry   time.Duration

	// writing serialises what changes the store. Its holder reads and writes the disk, and reads the fields below
	// without mu, because they change only while both are held.
	writing sync.Mutex
	// mu guards the fields below. Its holder never waits for the disk, so that readers never do.
	mu       sync.Mutex
	items    map[object.Key]*Item
	version  uint64
	loaded   bool
	ready    chan struct{} // closed when loaded
	failure  error
	alarm    *alarm
	refused  uint64
	damaged  map[string]damage // by path
	problems object.Problems   // about the directory as a whole
	// provisional are the objects of the last good state that are served while the directory cannot be read; lastGood
	// is when they were saved.
	provisional map[object.Key]*object.Object
	lastGood    time.Time
	watchers    map[*Watcher]struct{}
}

// New returns an empty store; Run loads the directory.
func New(cfg Config) *Store {
	return &Store{cfg: cfg, retry: time.Second, items: map[object.Key]*Item{}, ready: make(chan struct{}), watchers: map[*Watcher]struct{}{}}
}

// Name implements source.Source.
func (s *Store) Name() string { return Name }

// Handle implements source.Source.
func (s *Store) Handle(h source.Handler) { s.handler = h }

// Run loads the directory and tries again while it cannot be read. Then it probes the directory during an alarm. It
// returns an error if an object is encrypted with a key that was not given: without the key the object would be lost.
func (s *Store) Run(ctx context.Context) error {
	for {
		err := s.load(ctx)
		if err == nil {
			break
		}
		if errors.Is(err, record.ErrLocked) {
			return fmt.Errorf("store: %w", err)
		}
		s.cfg.Log.Error("store cannot be loaded, trying again", "dir", s.cfg.Dir, "error", err)
		s.update(func() { s.failure = err })
		s.serveSaved(ctx)
		if !clock.Sleep(ctx, s.cfg.Clock, s.retry) {
			return nil
		}
	}
	for clock.Sleep(ctx, s.cfg.Clock, probeEvery) {
		s.writing.Lock()
		if s.alarm != nil {
			s.probe(true)
		}
		s.writing.Unlock()
	}
	return nil
}

// update changes what readers see; the caller holds s.writing.
func (s *Store) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// Loaded closes when the store can be used.
func (s *Store) Loaded() <-chan struct{} { return s.ready }

// HasSynced implements source.Source.
func (s *Store) HasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loaded
}

// Get returns an object.
func (s *Store) Get(k object.Key) (*Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		return nil, ErrNotLoaded
	}
	it := s.items[k]
	if it == nil {
		return nil, fmt.Errorf("%s: %w", k, ErrNotFound)
	}
	return it, nil
}

// List returns the objects of a kind and namespace, sorted; empty means all.
func (s *Store) List(kind, namespace string) ([]*Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		return nil, ErrNotLoaded
	}
	return s.list(kind, namespace), nil
}

func (s *Store) list(kind, namespace string) []*Item {
	var out []*Item
	for _, it := range s.items {
		if selected(it, kind, namespace) {
			out = append(out, it)
		}
	}
	slices.SortFunc(out, func(a, b *Item) int { return a.Key.Compare(b.Key) })
	return out
}

func selected(it *Item, kind, namespace string) bool {
	return kinds.Matches(kind, it.Key) && (namespace == "" || it.Key.Namespace == namespace)
}

// Verb says whether a write expects the object to exist.
type Verb int

// Verbs.
const (
	Create Verb = iota
	Update
	Apply
)

// Write is one object to be written.
type Write struct {
	Doc    *manifest.Document
	Object *object.Object
	Verb   Verb
	// KeepAbsentStatus keeps the stored status if the document has none.
	KeepAbsentStatus bool
}

// Result of one write.
type Result struct {
	Item    *Item
	Created bool
	Changed bool
}

// Write performs all writes or none. With dryRun it only returns the results.
func (s *Store) Write(ctx context.Context, writes []Write, dryRun bool) ([]Result, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.loaded {
		return nil, ErrNotLoaded
	}
	results := make([]Result, len(writes))
	version := s.version
	var changed []*Item
	var errs []error
	for i, w := range writes {
		r, err := s.prepare(w, version+1)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if r.Changed {
			version++
			changed = append(changed, r.Item)
		}
		results[i] = r
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := s.admit(changed); err != nil || dryRun || len(changed) == 0 {
		return results, err
	}
	if err := s.install(ctx, version, changed); err != nil {
		return nil, err
	}
	return results, nil
}

// admit asks Config.Admit about what is about to change.
func (s *Store) admit(changed []*Item) error {
	if s.cfg.Admit == nil {
		return nil
	}
	return s.cfg.Admit(lists.Map(changed, (*Item).Object)).Err()
}

// install audits and persists items, of which the newest has a version, and makes them visible. If it fails nothing has
// changed.
func (s *Store) install(ctx context.Context, version uint64, changed []*Item) error {
	if err := s.audit(ctx, changed); err != nil {
		return err
	}
	if err := s.persist(changed, nil); err != nil {
		return err
	}
	events := make([]source.Event, len(changed))
	s.update(func() {
		s.version = version
		for i, it := range changed {
			_, existed := s.items[it.Key]
			s.items[it.Key] = it
			events[i] = source.Event{Key: it.Key, Object: it.object}
			s.notify(it, existed, false)
			events = s.clearDamage(it.Key, events)
		}
	})
	s.handler(ctx, Name, events)
	return nil
}

// createdLayout is RFC 3339 with fractions of a second, so that "the oldest wins" also holds for objects that were
// written within one second.
const createdLayout = "2006-01-02T15:04:05.000000Z07:00"

// prepare computes the new state of one object without changing anything.
func (s *Store) prepare(w Write, version uint64) (Result, error) {
	k := w.Object.Key
	old := s.items[k]
	switch {
	case w.Verb == Create && old != nil:
		return Result{}, fmt.Errorf("%s: %w", k, ErrExists)
	case w.Verb == Update && old == nil:
		return Result{}, fmt.Errorf("%s: %w", k, ErrNotFound)
	}
	tree := runtime.DeepCopyJSON(w.Doc.Tree)
	meta, _ := tree["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		tree["metadata"] = meta
	}
	if rv, _ := meta["resourceVersion"].(string); rv != "" && (old == nil || rv != old.Version) {
		return Result{}, stale(k, rv, old)
	}
	if k.Namespace != "" {
		meta["namespace"] = k.Namespace
	}
	generation, created := int64(1), s.cfg.Clock.Now().UTC().Format(createdLayout)
	if old != nil {
		if _, has := tree["status"]; !has && w.KeepAbsentStatus {
			if status, had := old.tree["status"]; had {
				tree["status"] = status
			}
		}
		generation, created = old.Generation, createdOf(old)
		if sameContent(old.tree, tree) {
			return Result{Item: old}, nil
		}
		if !sameSpec(old.tree, tree) {
			generation++
		}
	} else if c, _ := meta["creationTimestamp"].(string); c != "" {
		created = c
	}
	for _, f := range serverFields {
		delete(meta, f)
	}
	meta["resourceVersion"] = strconv.FormatUint(version, 10)
	meta["generation"] = generation
	meta["creationTimestamp"] = created
	it, err := itemOf(w.Object, tree)
	return Result{Item: it, Created: old == nil, Changed: true}, err
}

func stale(k object.Key, given string, old *Item) error {
	current := "the object does not exist"
	if old != nil {
		current = "current is " + old.Version
	}
	return fmt.Errorf("%s: metadata.resourceVersion: %q: %w: %s; read the object again and repeat the change", k, given, ErrStale, current)
}

func createdOf(it *Item) string {
	meta, _ := it.tree["metadata"].(map[string]any)
	c, _ := meta["creationTimestamp"].(string)
	return c
}

// itemOf makes an item of a decoded object and the tree to store, which differs from the decoded one in serverFields.
func itemOf(decoded *object.Object, tree map[string]any) (*Item, error) {
	js, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	o := *decoded
	o.Source, o.Location, o.Digest = Name, "", validate.Digest(tree, "")
	meta := tree["metadata"].(map[string]any)
	version, _ := meta["resourceVersion"].(string)
	o.Generation, _ = meta["generation"].(int64)
	if c, _ := meta["creationTimestamp"].(string); c != "" {
		if o.Created, err = time.Parse(time.RFC3339, c); err != nil {
			return nil, err
		}
	}
	return &Item{Key: o.Key, APIVersion: o.APIVersion, Version: version, Generation: o.Generation, Manifest: js, tree: tree, object: &o}, nil
}

// Delete deletes an object. version, if not empty, must be the current one.
func (s *Store) Delete(ctx context.Context, k object.Key, version string) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.loaded {
		return ErrNotLoaded
	}
	old := s.items[k]
	if _, damaged := s.damaged[relPath(k)]; old == nil && !damaged {
		return fmt.Errorf("%s: %w", k, ErrNotFound)
	}
	if version != "" && (old == nil || version != old.Version) {
		return stale(k, version, old)
	}
	if err := s.audit(ctx, nil, k); err != nil {
		return err
	}
	if err := s.persist(nil, []object.Key{k}); err != nil {
		return err
	}
	events := []source.Event{{Key: k}}
	s.update(func() {
		s.version++
		if old != nil {
			delete(s.items, k)
			s.notify(old, true, true)
		}
		events = s.clearDamage(k, events)
	})
	s.handler(ctx, Name, events)
	return nil
}

// Edit replaces an object by the result of edit, which may change the tree that it receives. version, if not empty,
// must be the current one.
func (s *Store) Edit(ctx context.Context, k object.Key, version string, edit func(tree map[string]any) (map[string]any, error)) (Result,
	error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.loaded {
		return Result{}, ErrNotLoaded
	}
	old := s.items[k]
	if old == nil {
		return Result{}, fmt.Errorf("%s: %w", k, ErrNotFound)
	}
	if version != "" && version != old.Version {
		return Result{}, stale(k, version, old)
	}
	tree, err := edit(runtime.DeepCopyJSON(old.tree))
	if err != nil {
		return Result{}, err
	}
	doc := &manifest.Document{Tree: tree}
	o, err := validate.Document(doc)
	if err != nil {
		return Result{}, err
	}
	if o.Key != k {
		return Result{}, object.Problems{{Object: k.String(), Field: "metadata.name", Reason: "an object cannot become another one",
			Remedy: "leave kind, namespace and name as they are"}}
	}
	r, err := s.prepare(Write{Doc: doc, Object: o, Verb: Update}, s.version+1)
	if err != nil || !r.Changed {
		return r, err
	}
	changed := []*Item{r.Item}
	if err := s.admit(changed); err != nil {
		return Result{}, err
	}
	if err := s.install(ctx, s.version+1, changed); err != nil {
		return Result{}, err
	}
	return r, nil
}
