package remote

import (
	"slices"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// A Secret that a list lacks may have been lost by the own API server; only an event says that a user has deleted it.
// So a cluster that a list does not name any more, or the first list after a restart, is read on until a second list
// does not name it either.

// withhold takes over the clusters that the Secrets name after so many lists, and returns the other ones, of those that
// are read and of those of the last run (known), that are read on.
func (c *Clusters) withhold(wanted map[string]*entry, known []string, lists uint64) map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(known)
	for id := range c.running {
		all = append(all, id)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	var missing []string
	for _, id := range all {
		if wanted[id] != nil || c.deleted[id] {
			c.guard.Forget(id)
		} else {
			missing = append(missing, id)
		}
	}
	clear(c.deleted)
	if lists != c.lists {
		c.lists, c.relisted = lists, false
		before, _ := c.guard.Held()
		c.guard.Reading(withheld.Reading[string]{At: c.cfg.Clock.Now(), InForce: len(all), Missing: missing, Doubtful: true})
		if held, since := c.guard.Held(); held > before {
			c.cfg.Log.Warn("a list of Secrets lacks remote clusters: they are read on until a second list says the same", "clusters", missing,
				"until", since.Add(withheld.Wait), "remedy",
				"if they were deleted on purpose, `fairlead sources accept "+Name+"` ends the wait; otherwise create the Secrets again")
		}
	}
	keep := map[string]bool{}
	for _, id := range missing {
		keep[id] = c.guard.Has(id)
	}
	return keep
}

// confirm asks for the second list when it is due.
func (c *Clusters) confirm() {
	c.mu.Lock()
	due := c.guard.Due()
	late := !due.IsZero() && !due.After(c.cfg.Clock.Now()) && !c.relisted
	c.relisted = c.relisted || late
	c.mu.Unlock()
	if late {
		c.relist()
	}
}

// Relist lists the Secrets again, because they may be others than the watch says.
func (c *Clusters) Relist() { c.relist() }

// Accept implements source.Withholder; it counts clusters.
func (c *Clusters) Accept() (removed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := c.guard.Accept()
	for _, id := range ids {
		c.deleted[id] = true
	}
	notify.Wake(c.wake)
	return len(ids)
}

// withheldClusters tells which clusters are read on. It is called with mu held.
func (c *Clusters) withheldClusters() []source.Withheld {
	n, since := c.guard.Held()
	if n == 0 {
		return nil
	}
	return []source.Withheld{{What: "Secret", Objects: n, InForce: len(c.running), Since: since, Until: since.Add(withheld.Wait)}}
}
