package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/mcp"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/record"
)

// The last good state is in a directory of the source's name: for each kind up to shards files of records, one a line,
// whose content is the object in the form of the wire. readMark says that the server has been read completely.

const (
	shards      = 32
	savedSuffix = ".jsonl"
	readMark    = "read"
	saveEvery   = time.Second
	// restoreAway is how long a server that cannot be reached is waited for at the start until its last good state is
	// served; restoreAfter is that for one which has not answered completely.
	restoreAway  = 2 * time.Second
	restoreAfter = 15 * time.Second
)

func shardOf(k object.Key) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(k.Namespace + "/" + k.Name))
	return int(h.Sum32() % shards)
}

// dir is the directory of the source, whose name has a port.
func (s *Source) dir() string { return filepath.FromSlash(strings.ReplaceAll(s.name, ":", "_")) }

func (s *Source) shardFile(k *kind, shard int) string {
	return filepath.Join(s.dir(), k.String(), fmt.Sprintf("%02d%s", shard, savedSuffix))
}

// keep saves changed objects, and restores the last good state at the start if the server does not answer.
func (s *Source) keep(ctx context.Context) error {
	if s.cfg.Saved == nil {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.cfg.Clock.After(saveEvery):
		}
		if err := s.restore(ctx); err != nil {
			return err
		}
		s.saveAll()
	}
}

// saveAll writes the changed shards of a source that has been read.
func (s *Source) saveAll() {
	if s.cfg.Saved == nil || !s.HasSynced() {
		return
	}
	for _, k := range s.kinds {
		s.save(k)
	}
	s.cfg.Saved.Put(filepath.Join(s.dir(), readMark), []byte(s.cfg.Host+"\n"))
}

func (s *Source) save(k *kind) {
	s.mu.Lock()
	changed := map[int][]*object.Object{}
	for shard := range k.dirty {
		changed[shard] = nil
	}
	clear(k.dirty)
	if len(changed) > 0 {
		for key, o := range k.delivered {
			if list, ok := changed[shardOf(key)]; ok && !o.Held {
				changed[shardOf(key)] = append(list, o)
			}
		}
	}
	s.mu.Unlock()
	for shard, list := range changed {
		s.cfg.Saved.PutRecords(s.shardFile(k, shard), list, s.encode)
	}
}

func (s *Source) encode(o *object.Object) ([]byte, error) {
	raw, _, err := mcp.Encode(o, o.Key.Namespace)
	if err != nil {
		return nil, err
	}
	content, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	return s.cfg.Codec.Encode(record.Record{Key: o.Key, Content: content})
}

// restore serves the last good state if the server takes too long at the start.
func (s *Source) restore(ctx context.Context) error {
	s.mu.Lock()
	waited := s.cfg.Clock.Now().Sub(s.started)
	early := s.synced || !s.lastGood.IsZero() || waited < restoreAway || s.failure == nil && waited < restoreAfter
	s.mu.Unlock()
	if early {
		return nil
	}
	_, newest, err := s.cfg.Saved.Get(filepath.Join(s.dir(), readMark))
	if err != nil {
		return nil //nolint:nilerr // no earlier run has read everything
	}
	for _, k := range s.kinds {
		var saved []*object.Object
		for shard := range shards {
			found, lost := s.readShard(k, shard)
			saved = append(saved, found...)
			for _, h := range lost {
				s.cfg.Log.Error("saved security object is lost", "source", s.name, "problem", h.Problem().Error())
				h.Object.Source = s.name
				saved = append(saved, h.Object)
			}
		}
		s.restoreKind(ctx, k, saved)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced {
		s.lastGood = newest
		s.cfg.Log.Warn("source has not been read since the start, its last good state is served", "source", s.name, "saved", newest)
	}
	return nil
}

// restoreKind delivers saved objects of which the server has said nothing in this run.
func (s *Source) restoreKind(ctx context.Context, k *kind, saved []*object.Object) {
	s.turn.Lock()
	defer s.turn.Unlock()
	var events []source.Event
	s.mu.Lock()
	if !k.complete(false) && !k.compared {
		k.compared = true
		known := k.union()
		for _, o := range saved {
			if known[o.Key] == nil {
				k.deliver(o.Key, o)
				events = append(events, source.Event{Key: o.Key, Object: o})
			}
		}
	}
	s.mu.Unlock()
	s.deliver(ctx, k, events)
}

// savedWithin is how long the first lists wait for the disk.
const savedWithin = 2 * time.Second

// savedBefore returns what the last run has saved of a kind; nothing if that run has not read everything, or if the
// disk takes too long.
func (s *Source) savedBefore(k *kind) []*object.Object {
	if s.cfg.Saved == nil {
		return nil
	}
	read := make(chan []*object.Object, 1)
	go func() {
		var saved []*object.Object
		if _, _, err := s.cfg.Saved.Get(filepath.Join(s.dir(), readMark)); err == nil {
			for shard := range shards {
				found, _ := s.readShard(k, shard)
				saved = append(saved, found...)
			}
		}
		read <- saved
	}()
	select {
	case saved := <-read:
		return saved
	case <-s.cfg.Clock.After(savedWithin):
		s.cfg.Log.Warn("saved objects are not compared with what the MCP server sends, because the disk takes too long", "source", s.name, "kind",
			k.String())
		return nil
	}
}

// readShard reads the saved objects of a shard. One that is damaged or not valid any more is named in the log; if it is
// of a security kind, a hold stands for it.
func (s *Source) readShard(k *kind, shard int) (out []*object.Object, lost []hold.Hold) {
	rel := s.shardFile(k, shard)
	records, damaged, _, err := s.cfg.Saved.Records(s.name, rel, s.cfg.Codec)
	if err != nil {
		s.cfg.Log.Error("saved state cannot be read, it is left out", "source", s.name, "file", rel, "error", err)
		return nil, nil
	}
	for _, h := range damaged {
		if h.Object.Key.Kind == k.desc.Name {
			lost = append(lost, h)
		}
	}
	for _, r := range records {
		var raw []byte
		err := json.Unmarshal(r.Content, &raw)
		d := mcp.Decode(k.desc, &anypb.Any{TypeUrl: mcp.ResourceType, Value: raw})
		if err != nil || d.Object == nil {
			s.cfg.Log.Error("saved object is not valid any more, it is left out", "source", s.name, "object", r.Key.String(), "error", d.Problems)
			if h, ok := hold.OfKey(r.Key, rel); ok {
				lost = append(lost, h)
			}
			continue
		}
		if s.outside(d.Object.Key) || s.claims(d.Object) != nil {
			continue // the settings have changed
		}
		d.Object.Source = s.name
		out = append(out, d.Object)
	}
	return out, lost
}

// Forget removes the last good state. It is called after Run has returned.
func (s *Source) Forget() {
	if s.cfg.Saved == nil {
		return
	}
	s.cfg.Saved.Remove(filepath.Join(s.dir(), readMark))
	for _, k := range s.kinds {
		for shard := range shards {
			s.cfg.Saved.Remove(s.shardFile(k, shard))
		}
	}
}

// savedVersion is the last good version of an object that an earlier run has saved; nil if there is none, or if the
// server has been read.
func (s *Source) savedVersion(k *kind, key object.Key) *object.Object {
	s.mu.Lock()
	needless := s.synced || k.delivered[key] != nil
	s.mu.Unlock()
	if s.cfg.Saved == nil || needless {
		return nil
	}
	rel := s.shardFile(k, shardOf(key))
	list, read := s.shards[rel]
	if !read {
		list, _ = s.readShard(k, shardOf(key))
		s.shards[rel] = list
	}
	i := slices.IndexFunc(list, func(o *object.Object) bool { return o.Key == key })
	if i < 0 {
		return nil
	}
	return list[i]
}
