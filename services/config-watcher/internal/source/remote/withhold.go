package remote

import (
	"slices"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// withhold takes over the clusters that the Secrets name after so many lists, and returns the other ones, of those that
// are read and of those of the last run (known), that are read on (secretwatch.Lost).
func (c *Clusters) withhold(wanted map[string]*entry, known []string, lists uint64) map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(known)
	for id := range c.running {
		all = append(all, id)
	}
	slices.Sort(all)
	now := c.cfg.Clock.Now()
	keep, more := c.lost.Keep(slices.Compact(all), func(id string) bool { return wanted[id] != nil }, lists, now)
	if more {
		c.cfg.Log.Warn("a list of Secrets lacks remote clusters: they are read on until a second list says the same", "clusters", keep, "until",
			now.Add(withheld.Wait), "remedy",
			"if they were deleted on purpose, `fairlead sources accept "+Name+"` ends the wait; otherwise create the Secrets again")
	}
	return keep
}

// confirm asks for the second list when it is due.
func (c *Clusters) confirm() {
	c.mu.Lock()
	due := c.lost.Due(c.cfg.Clock.Now())
	c.mu.Unlock()
	if due {
		c.relist()
	}
}

// Relist lists the Secrets again, because they may be others than the watch says.
func (c *Clusters) Relist() { c.relist() }

// Accept implements source.Withholder; it counts clusters.
func (c *Clusters) Accept() (removed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer notify.Wake(c.wake)
	return c.lost.Accept()
}
