package remote

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// State says how a cluster does.
type State string

// States of a cluster.
const (
	Syncing State = "syncing"
	Synced  State = "synced"
	// Timeout: the mesh has stopped waiting for the first list; it is read on.
	Timeout State = "timeout"
	// Away: something cannot be read now; what was known last stays.
	Away State = "away"
	// Refused: the newest kubeconfig is refused; what an earlier one reads stays and is followed.
	Refused State = "refused"
	// Ignored: the entry has no effect.
	Ignored State = "ignored"
)

// States are all states.
var States = []State{Syncing, Synced, Timeout, Away, Refused, Ignored}

// Row tells of one entry of a Secret.
type Row struct {
	ID, Secret, Server string
	State              State
	// SyncedAt is when the cluster was last known to be followed; zero if it never was.
	SyncedAt time.Time
	Objects  int
	// Message says what is the matter and what to do.
	Message  string
	problems object.Problems
}

// List tells of all entries, sorted by id and Secret.
func (c *Clusters) List() []Row {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.Concat(c.ignored, c.refused)
	for _, k := range c.running {
		out = append(out, k.row(c.cfg.Clock.Now()))
	}
	slices.SortFunc(out, func(a, b Row) int { return strings.Compare(a.ID+" "+a.Secret, b.ID+" "+b.Secret) })
	return out
}

// row is called with Clusters.mu held.
func (k *cluster) row(now time.Time) Row {
	st := k.source.Status()
	row := Row{ID: k.id, Secret: k.secret, Server: k.server, Objects: st.Objects}
	if st.Degraded != nil {
		row.Message = st.Degraded.Error()
	}
	switch {
	case st.Synced && st.Degraded == nil:
		row.State, row.SyncedAt = Synced, now
	case st.Synced || !st.LastGood.IsZero():
		row.State, row.SyncedAt = Away, st.LastGood
		for _, kind := range st.Kinds {
			if st.Synced && kind.Degraded != nil && (row.SyncedAt.IsZero() || kind.Since.Before(row.SyncedAt)) {
				row.SyncedAt = kind.Since
			}
		}
	case k.overdue:
		row.State = Timeout
		if row.Message == "" {
			row.Message = "its first list takes longer than --remote-cluster-timeout; it is read on"
		}
	default:
		row.State = Syncing
	}
	if k.contact.stale {
		row.Message = strings.TrimPrefix(row.Message+"; its endpoints are used last: it was last followed at "+
			k.contact.lost.UTC().Format(time.RFC3339)+" (--remote-cluster-stale-after)", "; ")
	}
	if len(k.refused) > 0 {
		row.State, row.Message = Refused, textOf(k.refused)
	}
	return row
}

// Counts are the numbers of entries in each state.
func (c *Clusters) Counts() map[State]int {
	out := map[State]int{}
	for _, row := range c.List() {
		out[row.State]++
	}
	return out
}

// Sources are those of the clusters that are read, sorted by name.
func (c *Clusters) Sources() []source.Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]source.Source, 0, len(c.running))
	for _, id := range slices.Sorted(maps.Keys(c.running)) {
		out = append(out, c.running[id].source)
	}
	return out
}

// Unread is why the Secrets cannot be read now; nil if they can.
func (c *Clusters) Unread() error { return c.secrets.State().Unread }

// collectProblems is called with mu held.
func (c *Clusters) collectProblems() {
	c.problems = nil
	for _, row := range c.refused {
		c.problems = append(c.problems, row.problems...)
	}
	for _, k := range c.running {
		c.problems = append(c.problems, k.refused...)
	}
	for _, row := range c.ignored {
		c.problems = append(c.problems,
			object.Problem{Object: "Secret " + row.Secret, Field: "data[" + row.ID + "]", Reason: "has no effect: " + row.Message})
	}
	c.problems = c.problems.Sorted()
}

// Name implements source.Source.
func (c *Clusters) Name() string { return Name }

// Handle implements source.Source. Changes go to Config.Submit: no other source has objects of remote clusters.
func (c *Clusters) Handle(source.Handler) {}

// HasSynced implements source.Source.
func (c *Clusters) HasSynced() bool { return c.Status().Synced }

// Status implements source.Source. It is synced once the mesh need not wait any more: each cluster has been read, is
// refused, or has taken longer than Config.Timeout. Problems are about the Secrets.
func (c *Clusters) Status() source.Status {
	secrets := c.secrets.State()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Clock.Now()
	st := source.Status{Synced: c.applied || secrets.Denied || now.Sub(c.started) >= c.cfg.Timeout, Problems: slices.Clone(c.problems),
		Objects: len(c.running), Withheld: c.lost.Withheld(len(c.running))}
	degraded := []error{secrets.Unread}
	restored := !c.applied && len(c.running) > 0
	for _, id := range slices.Sorted(maps.Keys(c.running)) {
		k := c.running[id]
		of := k.source.Status()
		if k.overdue && !k.settled(of) {
			err := fmt.Errorf("cluster %s was not read within %s (--remote-cluster-timeout), the mesh is served without it", id, c.cfg.Timeout)
			degraded = append(degraded, err, of.Degraded)
		}
		st.Synced = st.Synced && (k.settled(of) || k.overdue)
		restored = restored && !of.LastGood.IsZero() && k.contact.judged
		if restored && of.LastGood.After(st.LastGood) {
			st.LastGood = of.LastGood
		}
	}
	if !restored || st.Synced {
		st.LastGood = time.Time{}
	}
	st.Degraded = errors.Join(degraded...)
	return st
}
