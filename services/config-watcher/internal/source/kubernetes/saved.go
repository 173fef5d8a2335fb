package kubernetes

import (
	"context"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/record"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// The last good state of the source is in a directory of its name: for each kind a directory, in it up to shards files
// of records, one record a line. An object is in the shard that its name's hash says. The file readMark says that all
// kinds have been read, and when they were last known to be followed.

const (
	shards      = 64
	savedSuffix = ".jsonl"
	readMark    = "read"
	// saveEvery is how often changed shards are saved; those of endpoints, which change all the time, every
	// saveEndpointsEvery.
	saveEvery          = time.Second
	saveEndpointsEvery = 30 * time.Second
	// markEvery is how often readMark is written while the API server is followed.
	markEvery = time.Minute
	// restoreAfter is how long the API server may take at the start until its last good state is served instead.
	// restoreAway is that for one that does not answer at all.
	restoreAfter = 15 * time.Second
	restoreAway  = 2 * time.Second
)

func shardOf(name types.NamespacedName) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name.String()))
	return int(h.Sum32() % shards)
}

func (k *kind) shardFile(shard int) string {
	return filepath.Join(k.source, k.String(), fmt.Sprintf("%02d%s", shard, savedSuffix))
}

// keep saves changed objects, and restores the last good state at the start if the API server does not answer.
func (s *Source) keep(ctx context.Context) error {
	if s.cfg.Saved == nil {
		return nil
	}
	var endpoints, marked time.Time // when those were saved last
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.cfg.Clock.After(saveEvery):
		}
		if err := s.restoreLate(); err != nil {
			return err
		}
		now := s.cfg.Clock.Now()
		due := now.Sub(endpoints) >= saveEndpointsEvery
		if due {
			endpoints = now
		}
		if now.Sub(marked) >= markEvery && s.followed() {
			marked = now
			s.markRead()
		}
		for _, k := range s.kinds {
			if k.lane != laneEndpoints || due {
				s.save(k)
			}
		}
	}
}

// saveAll saves what is left at the end.
func (s *Source) saveAll() {
	if s.cfg.Saved == nil {
		return
	}
	if s.followed() {
		s.markRead()
	}
	for _, k := range s.kinds {
		s.save(k)
	}
}

// followed reports whether all that exists has been read, and is followed now.
func (s *Source) followed() bool {
	st := s.Status()
	return st.Synced && st.Degraded == nil
}

// markRead says that all kinds have been read, and are followed now.
func (s *Source) markRead() {
	if s.cfg.Saved != nil {
		now := s.cfg.Clock.Now().UTC().Format(time.RFC3339)
		s.cfg.Saved.Put(filepath.Join(s.name, readMark), []byte(s.api.Load().config.Host+"\n"+now+"\n"))
	}
}

// readMarked is when the kinds were last known to be followed, in an earlier run; the error says that there was none.
func (s *Source) readMarked() (time.Time, error) {
	content, saved, err := s.cfg.Saved.Get(filepath.Join(s.name, readMark))
	if err != nil {
		return time.Time{}, err
	}
	_, text, _ := strings.Cut(string(content), "\n")
	if at, err := time.Parse(time.RFC3339, strings.TrimSpace(text)); err == nil {
		return at, nil
	}
	return saved, nil // of a version that wrote no time
}

// save writes the changed shards of a kind that has been read.
func (s *Source) save(k *kind) {
	s.mu.Lock()
	if len(k.dirty) == 0 || !k.settled || !k.known() {
		s.mu.Unlock()
		return
	}
	changed := map[int][]*object.Object{}
	for shard := range k.dirty {
		changed[shard] = nil
	}
	clear(k.dirty)
	for name, o := range k.objects {
		shard := shardOf(name)
		if list, ok := changed[shard]; ok && !o.Held {
			changed[shard] = append(list, o)
		}
	}
	s.mu.Unlock()
	for shard, list := range changed {
		s.cfg.Saved.PutRecords(k.shardFile(shard), list, s.encode)
	}
}

// known reports whether the delivered objects are all that the API server has; before that, the saved state may know
// more. It is called with Source.mu held.
func (k *kind) known() bool {
	for _, w := range k.watchers {
		forbidden := w.failure != nil && w.failure.reason() == source.ReasonForbidden
		if !w.delivered && (!k.byName() || !forbidden) {
			return false
		}
	}
	return true
}

func (s *Source) encode(o *object.Object) ([]byte, error) {
	content, err := manifestOf(o)
	if err != nil {
		return nil, err
	}
	return s.cfg.Codec.Encode(record.Record{Key: o.Key, Content: content})
}

// restoreLate restores the last good state of the kinds that have not been read, if the API server takes too long at
// the start.
func (s *Source) restoreLate() error {
	away := s.gate.away()
	s.mu.Lock()
	waited := s.cfg.Clock.Now().Sub(s.started)
	early := s.synced || !s.restoring.IsZero() || waited < restoreAway || away == nil && waited < restoreAfter
	s.mu.Unlock()
	if early {
		return nil
	}
	newest, err := s.readMarked()
	if err != nil {
		return nil //nolint:nilerr // no earlier run has read everything
	}
	saved := map[*kind][]*entry{}
	for _, k := range s.kinds {
		s.mu.Lock()
		needless := k.restored || k.answered()
		s.mu.Unlock()
		if needless {
			continue
		}
		if saved[k], _, err = s.readKind(k, nil); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.synced {
		return nil
	}
	for k, entries := range saved {
		s.restore(k, entries)
		for _, e := range entries {
			if e.savedAt.After(newest) {
				newest = e.savedAt
			}
		}
	}
	s.restoring = newest
	notify.Wake(s.wake)
	return nil
}

// restore makes the saved objects of a kind wait for delivery, if it has not been listed. It is called with mu held.
func (s *Source) restore(k *kind, saved []*entry) {
	if k.restored || k.answered() {
		return
	}
	for _, e := range saved {
		k.restored = true
		if _, newer := s.lanes[k.lane][k.key(e.name)]; !newer && k.objects[e.name] == nil {
			k.change(s, e.name, e)
		}
	}
}

// readKind reads the saved objects of a kind, but those in except it counts only. It waits for the disk, so mu is not
// held.
func (s *Source) readKind(k *kind, except map[types.NamespacedName]bool) (out []*entry, excepted int, err error) {
	if s.cfg.Saved == nil {
		return nil, 0, nil
	}
	for n := range shards {
		shard := s.readShard(k, n, except)
		if shard.err != nil {
			return nil, 0, shard.err
		}
		out, excepted = append(out, shard.entries...), excepted+shard.excepted
	}
	return out, excepted, nil
}

// savedShard is a file of records. err means a record whose key was not given.
type savedShard struct {
	entries []*entry
	// excepted counts the records that were left out on purpose.
	excepted int
	err      error
}

// version returns the saved version of an object; nil if there is none.
func (s savedShard) version(name types.NamespacedName) *object.Object {
	for _, e := range s.entries {
		if e.name == name {
			return e.object
		}
	}
	return nil
}

// readShard reads a file of records, but not those of the objects in except. Holds stand for security objects that
// cannot be restored. It waits for the disk, so mu is not held.
func (s *Source) readShard(k *kind, shard int, except map[types.NamespacedName]bool) (out savedShard) {
	rel := k.shardFile(shard)
	records, lost, at, err := s.cfg.Saved.Records(s.name, rel, s.cfg.Codec)
	if err != nil {
		return savedShard{err: err}
	}
	for _, r := range records {
		if except[nameOf(r.Key)] {
			out.excepted++
			continue
		}
		o, err := objectOf(r.Content)
		if err != nil {
			s.cfg.Log.Error("saved object is not valid any more, it is left out", "source", s.name, "object", r.Key.String(), "error", err)
			if h, ok := hold.OfKey(r.Key, rel); ok {
				lost = append(lost, h)
			}
			continue
		}
		o.Source, o.Key.Cluster = s.name, k.cluster
		out.entries = append(out.entries, &entry{name: nameOf(o.Key), object: o, restored: true, savedAt: at})
	}
	for _, h := range lost {
		out.entries = append(out.entries, &entry{name: nameOf(h.Object.Key), hold: &h, problems: object.Problems{h.Problem()}, restored: true,
			savedAt: at})
	}
	return out
}

// objectOf makes an object again from its manifest.
func objectOf(content []byte) (*object.Object, error) {
	doc := &manifest.Document{}
	if err := kjson.Unmarshal(content, &doc.Tree); err != nil {
		return nil, err
	}
	o, err := validate.Served(doc)
	if err != nil {
		return nil, err
	}
	meta, _ := doc.Tree["metadata"].(map[string]any)
	o.UID, _ = meta["uid"].(string)
	return o, nil
}
