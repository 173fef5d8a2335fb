package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// anHourAgo is the real clock, put back.
type anHourAgo struct{ clock.Clock }

func (c anHourAgo) Now() time.Time { return c.Clock.Now().Add(-time.Hour) }

// TestAwayForAnHour: a config-watcher that was killed and comes back an hour later sends a subscriber that was there
// before only the resources that have changed meanwhile, with and without --state-dir.
func TestAwayForAnHour(t *testing.T) {
	const others = 40
	for name, c := range map[string]struct {
		stateless bool
		meanwhile func(t *testing.T, dir string)
		// Upserts and removals that the subscriber gets, by kind and name.
		upserts, removed string
	}{
		"nothing has changed":                    {},
		"nothing has changed, without a state":   {stateless: true},
		"an object has changed":                  {meanwhile: changeRoute, upserts: "VirtualService server"},
		"an object has changed, without a state": {stateless: true, meanwhile: changeRoute, upserts: "VirtualService server"},
		"an object is gone, without a state":     {stateless: true, meanwhile: removeStrict, removed: "PeerAuthentication strict"},
		"an object is not valid any more":        {meanwhile: breakRoute},
		"the directory cannot be read any more":  {meanwhile: hideDirectory},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.valid = []testkit.Option{testkit.Valid(time.Now().Add(-2*time.Hour), time.Now().Add(time.Hour))}
			o, dir := w.statefulOptions()
			o.StoreDir = ""
			for i := range others {
				put(t, filepath.Join(dir, "others", string(rune('a'+i%26))+strings.Repeat("x", i/26)+".yaml"),
					strings.ReplaceAll(shop, "server", "other-"+string(rune('a'+i%26))+strings.Repeat("x", i/26)))
			}
			state := o.StateDir
			if c.stateless {
				o.StateDir = ""
			}
			first := w.start(o, func(d *deps) { d.Clock = anHourAgo{clock.Real()} })
			sub := first.subscribe(nil, nil)
			sub.next()
			if !c.stateless {
				if err := first.dirs.saved.Flush(); err != nil {
					t.Fatal(err)
				}
				// What the end of a process would save besides is lost to one that is killed.
				if err := os.CopyFS(state+"-killed", os.DirFS(state)); err != nil {
					t.Fatal(err)
				}
				o.StateDir = state + "-killed"
			}
			first.Stop()
			if c.meanwhile != nil {
				c.meanwhile(t, dir)
			}
			second := w.start(o)
			before := len(sub.held)
			again := second.subscribe(sub.held, nil)
			held := map[resource.Key]string{}
			for k, r := range sub.held {
				held[k] = string(r.Hash)
			}
			again.next()
			if got := again.changes(held); got != c.upserts+"|"+c.removed || again.upserts+again.removed > 1 {
				t.Errorf("of %d resources the subscriber gets %q, want %q: %d upserts and %d removals", before, got, c.upserts+"|"+c.removed,
					again.upserts, again.removed)
			}
		})
	}
}

// changes lists the kinds and names of what differs from what was held before: added or changed, "|", removed.
func (s *subscriber) changes(before map[resource.Key]string) string {
	var upserts, removed []string
	for k, r := range s.held {
		if before[k] != string(r.Hash) {
			upserts = append(upserts, k.Kind+" "+k.Name)
		}
	}
	for k := range before {
		if s.held[k] == nil {
			removed = append(removed, k.Kind+" "+k.Name)
		}
	}
	return strings.Join(upserts, ", ") + "|" + strings.Join(removed, ", ")
}

func changeRoute(t *testing.T, dir string) {
	changed := strings.Replace(shop, "destination: {host: server}", "destination: {host: elsewhere}", 1)
	put(t, filepath.Join(dir, "a.yaml"), changed+"---"+strictApps)
}

func breakRoute(t *testing.T, dir string) {
	broken := strings.Replace(shop, "destination: {host: server}", "destination: {host: 7}", 1)
	put(t, filepath.Join(dir, "a.yaml"), broken+"---"+strictApps)
}

func removeStrict(t *testing.T, dir string) { put(t, filepath.Join(dir, "a.yaml"), shop) }

func hideDirectory(t *testing.T, dir string) {
	if err := os.Rename(dir, dir+"-hidden"); err != nil {
		t.Fatal(err)
	}
}
