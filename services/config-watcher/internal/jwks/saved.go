package jwks

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"fairlead.dev/pkg/jwks"
	"fairlead.dev/proto/fairlead/contract"
)

const (
	savedDir = "jwks"
	// saveEvery is how much younger keys are than on disk before only their time is written.
	saveEvery = time.Hour
)

// savedKeys are last good keys as they stand on disk.
type savedKeys struct {
	URI     string          `json:"uri,omitempty"`
	Issuer  string          `json:"issuer,omitempty"`
	Fetched time.Time       `json:"fetched"`
	Keys    json.RawMessage `json:"keys"`
}

func savedName(source contract.KeySource) string {
	return filepath.Join(savedDir, source.Name()+".json")
}

// load reads the last good keys of a source. Keys on disk are checked like fetched ones.
func (t *Table) load(e *entry) {
	if t.cfg.Saved == nil {
		return
	}
	raw, _, err := t.cfg.Saved.Get(savedName(e.source))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			t.cfg.Log.Warn("last good keys cannot be read; they are fetched", "source", e.source.String(), "error", err)
		}
		return
	}
	var saved savedKeys
	now := t.cfg.Clock.Now()
	if err := json.Unmarshal(raw, &saved); err != nil || (contract.KeySource{URI: saved.URI, Issuer: saved.Issuer}) != e.source {
		t.cfg.Log.Warn("last good keys are broken on disk; they are fetched", "source", e.source.String())
		return
	}
	set, err := jwks.Parse(saved.Keys)
	if err != nil || now.Sub(saved.Fetched) >= contract.KeysMaxAge || saved.Fetched.After(now.Add(saveEvery)) {
		return
	}
	e.keys, e.count, e.fetched, e.tried, e.saved = set.Keys, set.Count, saved.Fetched, true, &saved
}

// save keeps the keys of a source if others are on disk, or much older ones.
func (t *Table) save(e *entry) {
	if t.cfg.Saved == nil || e.keys == nil {
		return
	}
	if e.saved != nil && string(e.saved.Keys) == string(e.keys) && e.fetched.Sub(e.saved.Fetched) < saveEvery {
		return
	}
	e.saved = &savedKeys{URI: e.source.URI, Issuer: e.source.Issuer, Fetched: e.fetched.UTC(), Keys: e.keys}
	raw, err := json.Marshal(e.saved)
	if err != nil {
		t.cfg.Log.Warn("keys cannot be kept", "source", e.source.String(), "error", err)
		return
	}
	t.cfg.Saved.Put(savedName(e.source), raw)
}

// forget removes the keys of a source from disk.
func (t *Table) forget(e *entry) {
	if t.cfg.Saved != nil && e.saved != nil {
		t.cfg.Saved.Remove(savedName(e.source))
	}
}

// sweep removes files of sources that nobody wants and that are too old to count: those that were not wanted any more
// while the process did not run.
func (t *Table) sweep() {
	if t.cfg.Saved == nil {
		return
	}
	files, err := t.cfg.Saved.List(savedDir)
	if err != nil {
		return
	}
	now := t.cfg.Clock.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	wanted := map[string]bool{}
	for source := range t.entries {
		wanted[source.Name()] = true
	}
	for _, rel := range files {
		name := strings.TrimSuffix(filepath.Base(rel), ".json")
		if _, at, err := t.cfg.Saved.Get(rel); err == nil && !wanted[name] && now.Sub(at) >= contract.KeysMaxAge {
			t.cfg.Saved.Remove(rel)
		}
	}
}
