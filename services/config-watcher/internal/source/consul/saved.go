package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"slices"
	"strings"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/consul/catalog"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
	"fairlead.dev/services/config-watcher/internal/source/record"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// What was read of a registry is kept in a directory of its name: its rules in declarationFile, without address and
// credentials, and the instances of its services in up to shards files of records, one service a record. The file
// readMark says that everything has been read.

const (
	shards          = 64
	declarationFile = "registry.json"
	readMark        = "read"
	// shardsAtOnce is how many changed shards are saved each checkEvery: all of a registry in 22 s, and a change at
	// once if few others have changed.
	shardsAtOnce = 3
	// recordKind is the kind of the key of a record.
	recordKind = "ConsulService"
	// bySecret marks registries in knownFile.
	bySecret = "secret"
)

// knownFile lists, one a line, the registries that have been read, for the next start, with " secret" after those of
// Secrets.
var knownFile = filepath.Join(Name, "known")

func savedFile(registry, file string) string { return filepath.Join(Name, "registry-"+registry, file) }

func shardFile(registry string, shard int) string {
	return savedFile(registry, fmt.Sprintf("%02d.jsonl", shard))
}

func shardOf(service string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(service))
	return int(h.Sum32() % shards)
}

// known are the registries of the last run, true for those of Secrets.
func (c *Registries) known() map[string]bool {
	if c.cfg.Saved == nil {
		return nil
	}
	text, _, err := c.cfg.Saved.Get(knownFile)
	if err != nil {
		return nil
	}
	out := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		name, by, _ := strings.Cut(strings.TrimSpace(line), " ")
		if check.DNSLabel(name) && len(out) < maxRegistries {
			out[name] = by == bySecret
		}
	}
	return out
}

func (c *Registries) removeSaved(name string) {
	if c.cfg.Saved == nil {
		return
	}
	for shard := range shards {
		c.cfg.Saved.Remove(shardFile(name, shard))
	}
	c.cfg.Saved.Remove(savedFile(name, declarationFile))
	c.cfg.Saved.Remove(savedFile(name, readMark))
}

// saveDeclaration keeps the rules of a registry.
func (c *Registries) saveDeclaration(d *declaration) {
	if c.cfg.Saved == nil {
		return
	}
	text, err := json.Marshal(d.Registry)
	if err != nil {
		c.cfg.Log.Error("declaration of a registry cannot be saved", "registry", d.Name, "error", err)
		return
	}
	c.cfg.Saved.Put(savedFile(d.Name, declarationFile), text)
}

// save writes changed shards of the registries that have been read: some of each, or all.
func (c *Registries) save(all bool) {
	if c.cfg.Saved == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.running {
		r.save(all)
	}
}

// toSave takes changed shards off the list: at most shardsAtOnce unless all are wanted, or nothing was saved yet. It is
// called with mu held.
func (r *reader) toSave(all bool) []int {
	list := sorted(r.dirty)
	if !all && r.saved && len(list) > shardsAtOnce {
		at, _ := slices.BinarySearch(list, r.nextShard) // in turn
		list = slices.Concat(list[at:], list[:at])[:shardsAtOnce]
		r.nextShard = list[shardsAtOnce-1] + 1
	}
	for _, shard := range list {
		delete(r.dirty, shard)
	}
	r.saved = true
	return list
}

// save writes changed shards.
func (r *reader) save(all bool) {
	r.mu.Lock()
	if r.syncedAt.IsZero() || len(r.dirty) == 0 {
		r.mu.Unlock()
		return
	}
	changed := map[int]map[string][]registry.Instance{}
	for _, shard := range r.toSave(all) {
		changed[shard] = map[string][]registry.Instance{}
	}
	for name, s := range r.services {
		if to := changed[shardOf(name)]; to != nil {
			to[name] = s.instances
		}
	}
	r.mu.Unlock()
	for shard, services := range changed {
		var text bytes.Buffer
		for _, name := range sorted(services) {
			content, err := json.Marshal(services[name])
			if err == nil {
				content, err = r.cfg.Codec.Encode(record.Record{Key: object.Key{Kind: recordKind, Name: name}, Content: content})
			}
			if err != nil {
				r.cfg.Log.Error("service of a registry cannot be saved", "registry", r.name, "service", name, "error", err)
				continue
			}
			text.Write(content)
		}
		if text.Len() == 0 {
			r.cfg.Saved.Remove(shardFile(r.name, shard))
		} else {
			r.cfg.Saved.Put(shardFile(r.name, shard), text.Bytes())
		}
	}
	r.cfg.Saved.Put(savedFile(r.name, readMark), []byte("1\n"))
}

// restore delivers what the last run has read of a registry, before the registry is read. It is called with mu held.
func (c *Registries) restore(r *reader) {
	if c.cfg.Saved == nil {
		return
	}
	_, newest, err := c.cfg.Saved.Get(savedFile(r.name, readMark))
	if err != nil {
		return // no earlier run has read everything
	}
	read := map[string][]registry.Instance{}
	for shard := range shards {
		records, _, _, err := c.cfg.Saved.Records(r.source(), shardFile(r.name, shard), c.cfg.Codec)
		if err != nil {
			c.cfg.Log.Error("saved state of a registry cannot be read, it is left out", "registry", r.name, "error", err)
			return
		}
		for _, rec := range records {
			var instances []registry.Instance
			if err := json.Unmarshal(rec.Content, &instances); err != nil {
				c.cfg.Log.Error("saved service of a registry is damaged, it is left out", "registry", r.name, "service", rec.Key.Name, "error", err)
				continue
			}
			read[rec.Key.Name] = instances
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range sorted(read) {
		s := &service{instances: slices.SortedFunc(slices.Values(read[name]), catalog.Compare)}
		r.services[name] = s
		r.missed.instances += len(s.instances)
		r.update(name, s)
	}
	r.savedAt = newest
}

// serveSaved serves what the last run has read without waiting for Consul any more.
func (r *reader) serveSaved() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.savedAt.IsZero() || !r.lastGood.IsZero() {
		return
	}
	r.lastGood = r.savedAt
	r.cfg.Log.Warn("registry cannot be read, what the last run has read is served", "registry", r.name, "saved", r.savedAt, "services",
		len(r.services))
}

// restoreUndeclared serves registries of the last run whose declarations cannot be read, or are missing. It is called
// with mu held.
func (c *Registries) restoreUndeclared(ctx context.Context, known map[string]bool, failed chan<- error) {
	for _, name := range sorted(known) {
		if c.running[name] != nil {
			continue
		}
		text, _, err := c.cfg.Saved.Get(savedFile(name, declarationFile))
		d := &declaration{}
		if err == nil {
			err = json.Unmarshal(text, &d.Registry)
		}
		if err != nil || d.Name != name {
			continue
		}
		d.Addresses, d.place, d.bySecret = c.cfg.Addresses, "saved state", known[name]
		r := newReader(name, &c.cfg, c.handler)
		r.declare(d)
		c.running[name] = r
		c.restore(r)
		r.serveSaved()
		r.start(ctx, undeclared{}, failed)
	}
}
