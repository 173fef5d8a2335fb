package remote

import (
	"context"
	"maps"
	"slices"
	"time"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/source"
)

const (
	// steadyFor is how long a cluster that was away must be followed until it counts as back: a connection that comes
	// and goes does not move traffic each time, and with new credentials nothing is known before the first requests.
	steadyFor = 5 * time.Second
	// judgeEvery is how often clusters are looked at while the first revision may wait for that.
	judgeEvery = 50 * time.Millisecond
)

// contact is what is known of how well a cluster is followed.
type contact struct {
	// lost is when the cluster was last followed; zero while it is. steady is since when it is followed again.
	lost, steady time.Time
	// stale is true once the cluster has been away for Config.StaleAfter: its endpoints come last. judged is true after
	// the first judgement of something that it has delivered.
	stale, judged bool
}

// judge takes over the status of the cluster's source.
func (k *contact) judge(st source.Status, now time.Time, staleAfter time.Duration) {
	if !st.Settled() {
		return // there is nothing to come last
	}
	k.judged = true
	switch since := unfollowedSince(st); {
	case !since.IsZero():
		k.steady = time.Time{}
		if k.lost.IsZero() {
			k.lost = since
		}
	case k.lost.IsZero():
	case k.steady.IsZero():
		k.steady = now
	case now.Sub(k.steady) >= steadyFor:
		k.lost, k.steady = time.Time{}, time.Time{}
	}
	k.stale = !k.lost.IsZero() && now.Sub(k.lost) >= staleAfter
}

// unfollowedSince is when the endpoints of a source were last followed; zero if they are now. Nodes and Namespaces do
// not count: without them endpoints come and go as ever.
func unfollowedSince(st source.Status) (since time.Time) {
	if !st.Synced {
		return st.LastGood
	}
	for _, kind := range st.Kinds {
		switch kind.Name {
		case "Pod", "Service", "EndpointSlice." + kinds.GroupDiscovery:
			if kind.Degraded != nil && (since.IsZero() || kind.Since.Before(since)) {
				since = kind.Since
			}
		}
	}
	return since
}

// judge looks which clusters have been away for too long, and which are back, and has their endpoints come last or in
// their place again.
func (c *Clusters) judge(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Clock.Now()
	for _, id := range slices.Sorted(maps.Keys(c.running)) {
		k := c.running[id]
		was := k.contact.stale
		// The pipeline has the change before Status says that the mesh need not wait for the cluster.
		next := k.contact
		next.judge(k.source.Status(), now, c.cfg.StaleAfter)
		if next.stale != was {
			c.cfg.Submit(ctx, []normalise.Change{normalise.ClusterAway(id, next.stale)})
			if next.stale {
				c.cfg.Log.Error("remote cluster has been away for too long, its endpoints are used last", "cluster", id, "since", next.lost,
					"--remote-cluster-stale-after", c.cfg.StaleAfter)
			} else {
				c.cfg.Log.Info("remote cluster is back, its endpoints are used again", "cluster", id)
			}
		}
		k.contact = next
	}
}

// checkAfter is the time until the clusters are looked at again.
func (c *Clusters) checkAfter() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.running {
		if !k.contact.judged && !k.overdue {
			return judgeEvery
		}
	}
	return checkEvery
}

// settled reports whether the mesh need not wait for the cluster: what it has is delivered, and so is whether that
// comes last.
func (k *cluster) settled(st source.Status) bool { return st.Settled() && k.contact.judged }
