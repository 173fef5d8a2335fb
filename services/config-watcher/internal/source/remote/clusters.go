// Package remote reads services and endpoints of further Kubernetes clusters. A Secret with the label
// istio/multiCluster=true in the mesh's own namespace names clusters: each key is the id of one, its value a
// kubeconfig, as `istioctl create-remote-secret` writes it.
//
// Clusters follows these Secrets (secrets.go). apply brings the clusters that are read in line with them: a new id
// starts a kubernetes.Source, another kubeconfig reconnects it, and an id that is gone removes all that it has
// delivered. What a kubeconfig may say is in kubeconfig.go, which addresses it may name in package fetch. A cluster
// that cannot be read keeps what it has delivered last; Status and List say so (status.go), and its endpoints come last
// when that lasts (away.go). One that a list of the Secrets lacks is read on until a second one lacks it too
// (withhold.go).
package remote

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fetch"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/kubernetes"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/source/record"
	"fairlead.dev/services/config-watcher/internal/source/secretwatch"
)

// Name is the name of Clusters as a source. The clusters themselves are sources "kubernetes/<id>".
const Name = "remote-clusters"

const (
	// maxClusters bounds the clusters that are read. Each costs five watches.
	maxClusters = 100
	// maxIgnored bounds the entries without an effect that are named.
	maxIgnored = 100
	// restoreAfter is how long the Secrets may stay unread at the start until the clusters of the last run are served
	// as they were saved.
	restoreAfter = 2 * time.Second
	checkEvery   = time.Second
)

// knownFile lists, one a line, the ids of the clusters that have been read, for the next start.
var knownFile = filepath.Join(Name, "known")

// ID is how ids of clusters are made.
var ID = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$`)

// Config of Clusters. All but Allow, Saved and Codec are required.
type Config struct {
	// Own is the id of the own cluster.
	Own string
	// Secrets are those of Namespace, in the own cluster.
	Secrets   corev1client.SecretInterface
	Namespace string
	// Allow are ranges of addresses that API servers may have although they are loopback, link-local or the like.
	Allow []netip.Prefix
	// Timeout is how long the first revision waits for a cluster.
	Timeout time.Duration
	// StaleAfter is how long a cluster may be away until its endpoints come last.
	StaleAfter time.Duration
	// MultiCluster is true if ServiceExports and ServiceImports are read.
	MultiCluster bool
	// QPS and Burst bound the requests a second to each cluster. UserAgent names the process in audit logs.
	QPS       float32
	Burst     int
	UserAgent string
	// Submit receives the changes of all clusters. The keys have the cluster, so nothing overrides them.
	Submit func(ctx context.Context, changes []normalise.Change)
	// Saved keeps the last good state of the clusters; if nil it is not kept. Codec encodes its records.
	Saved *lastgood.Dir
	Codec record.Codec
	Log   *slog.Logger
	Clock clock.Clock
}

// Clusters are the remote clusters. It is a source.Source whose objects are those of the clusters' sources.
type Clusters struct {
	cfg     Config
	wake    chan struct{}
	secrets *secretwatch.Secrets

	mu      sync.Mutex
	started time.Time
	// applied is true after apply has taken over the first list.
	applied bool
	running map[string]*cluster
	// ignored are entries without an effect, refused those of clusters that do not run.
	ignored, refused []Row
	problems         object.Problems
	// lost are clusters that a list does not name any more. relist is that of secrets, but in tests.
	lost   secretwatch.Lost
	relist func()
}

// cluster is one that is read. Clusters.mu guards the fields below done.
type cluster struct {
	id     string
	source *kubernetes.Source
	stop   context.CancelFunc
	done   chan struct{}

	secret, server string
	// accepted is the hash of the kubeconfig in use, seen that of the newest one; zero before the first.
	accepted, seen [sha256.Size]byte
	refused        object.Problems
	started        time.Time
	// overdue is true once the mesh has stopped waiting for the cluster.
	overdue bool
	contact contact
}

// New returns Clusters; Run reads.
func New(cfg Config) *Clusters {
	c := &Clusters{cfg: cfg, wake: make(chan struct{}, 1), running: map[string]*cluster{}, started: cfg.Clock.Now()}
	c.secrets = secretwatch.New(secretwatch.Config{
		Secrets: cfg.Secrets, Namespace: cfg.Namespace, Label: Label, What: "remote clusters", Wake: c.wake, Event: c.event, Log: cfg.Log,
		Clock: cfg.Clock,
	})
	c.relist = c.secrets.Relist
	return c
}

// Run implements source.Source.
func (c *Clusters) Run(ctx context.Context) error {
	failed := make(chan error, 1)
	known := c.known()
	var watching sync.WaitGroup
	watching.Go(func() { c.secrets.Run(ctx) })
	defer watching.Wait()
	defer c.stopAll()
	for {
		changed := false
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-c.wake:
			changed = true
		case <-c.cfg.Clock.After(c.checkAfter()):
		}
		secrets := c.secrets.State()
		c.mu.Lock()
		applied, waited := c.applied, c.cfg.Clock.Now().Sub(c.started)
		c.mu.Unlock()
		switch {
		case secrets.Lists > 0 && changed:
			c.apply(ctx, secrets, known, failed)
			known = nil
		case !applied && waited >= restoreAfter && len(known) > 0:
			c.restore(ctx, known, failed)
		}
		c.expire()
		c.confirm()
		c.judge(ctx)
	}
}

// stopAll ends the sources, which keep what they have.
func (c *Clusters) stopAll() {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.running))
	c.mu.Unlock()
	for _, k := range all {
		k.stop()
	}
	for _, k := range all {
		<-k.done
	}
}

// known lists the clusters of the last run.
func (c *Clusters) known() []string {
	if c.cfg.Saved == nil {
		return nil
	}
	text, _, err := c.cfg.Saved.Get(knownFile)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(strings.Fields(string(text)), func(id string) bool { return !ID.MatchString(id) || id == c.cfg.Own })
}

// errNoCredential is why a cluster of the last run is not read.
var errNoCredential = errors.New("no valid kubeconfig of the cluster has been read since the start")

// offline is a connection that fails, for a cluster whose saved state is served until there is a kubeconfig.
type offline struct{}

// RoundTrip implements http.RoundTripper.
func (offline) RoundTrip(*http.Request) (*http.Response, error) { return nil, errNoCredential }

// restore starts the clusters of the last run that do not run, without credentials: they serve their saved state.
func (c *Clusters) restore(ctx context.Context, known []string, failed chan<- error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range known[:min(len(known), maxClusters)] {
		if c.running[id] == nil {
			c.startOffline(ctx, id, failed)
		}
	}
}

// apply brings the clusters in line with the entries of all Secrets. known are clusters of the last run.
func (c *Clusters) apply(ctx context.Context, secrets secretwatch.State, known []string, failed chan<- error) {
	wanted := c.wanted(entriesOf(secrets.ByName))
	keep := c.withhold(wanted, known, secrets.Lists)
	c.mu.Lock()
	var gone []*cluster
	for id, k := range c.running {
		if wanted[id] == nil && !keep[id] {
			gone = append(gone, k)
			delete(c.running, id)
		}
	}
	c.mu.Unlock()
	for _, k := range gone {
		c.cfg.Log.Info("remote cluster is removed with its objects", "cluster", k.id)
		k.stop()
		<-k.done
		k.source.Forget(ctx)
		if k.contact.stale {
			c.cfg.Submit(ctx, []normalise.Change{normalise.ClusterAway(k.id, false)})
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range known {
		switch {
		case wanted[id] != nil:
		case !keep[id]:
			kubernetes.RemoveSaved(c.cfg.Saved, id)
		case c.running[id] == nil && len(c.running) < maxClusters:
			c.startOffline(ctx, id, failed)
		}
	}
	c.refused = nil
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		c.take(ctx, wanted[id], slices.Contains(known, id), failed)
	}
	c.applied = true
	c.collectProblems()
	if ids := strings.Join(slices.Sorted(maps.Keys(c.running)), "\n"); c.cfg.Saved != nil {
		c.cfg.Saved.Put(knownFile, []byte(ids+"\n"))
	}
}

// wanted finds the entry that counts for each id, and names the others.
func (c *Clusters) wanted(entries []*entry) map[string]*entry {
	wanted := map[string]*entry{}
	var ignored []Row
	for _, e := range entries {
		why := ""
		switch first := wanted[e.id]; {
		case !ID.MatchString(e.id):
			why = fmt.Sprintf("%s is no id of a cluster; name the key by letters, digits, '-', '_' and '.'", object.Quote(e.id))
		case e.id == c.cfg.Own:
			why = "it is the id of the own cluster (--cluster-id), which is read anyway; remove the key, or give that cluster its own id"
		case first != nil:
			why = fmt.Sprintf("the older Secret %s names the same cluster, and counts; remove one of them", first.secret)
		case len(wanted) >= maxClusters:
			why = fmt.Sprintf("there are more than %d remote clusters; remove some of them", maxClusters)
		default:
			wanted[e.id] = e
			continue
		}
		if len(ignored) < maxIgnored {
			ignored = append(ignored, Row{ID: e.id, Secret: e.secret, State: Ignored, Message: why})
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, row := range ignored {
		if !slices.ContainsFunc(c.ignored, func(r Row) bool { return r.ID == row.ID && r.Secret == row.Secret && r.Message == row.Message }) {
			c.cfg.Log.Warn("entry of a Secret for remote clusters has no effect", "secret", row.Secret, "cluster", row.ID, "reason", row.Message)
		}
	}
	c.ignored = ignored
	return wanted
}

// take takes over the entry that counts for a cluster. It is called with mu held.
func (c *Clusters) take(ctx context.Context, e *entry, known bool, failed chan<- error) {
	k := c.running[e.id]
	if k != nil {
		k.secret = e.secret
		if k.seen == e.hash {
			return
		}
	}
	p := problems{secret: e.String(), at: "data[" + e.id + "]"}
	cfg := p.parse(e.kubeconfig, fetch.Addresses{Allow: c.cfg.Allow})
	if cfg == nil {
		c.refuse(ctx, e, p.found, known, failed)
		return
	}
	cfg.RateLimiter, cfg.UserAgent = flowcontrol.NewTokenBucketRateLimiter(c.cfg.QPS, c.cfg.Burst), c.cfg.UserAgent
	var err error
	switch {
	case k == nil:
		c.cfg.Log.Info("remote cluster is read", "cluster", e.id, "secret", e.secret, "server", cfg.Host)
		k, err = c.start(ctx, e.id, cfg, failed)
	case k.accepted == e.hash:
	default:
		c.cfg.Log.Info("remote cluster has another kubeconfig", "cluster", e.id, "secret", e.secret, "server", cfg.Host)
		err = k.source.Reconnect(cfg)
	}
	if err != nil {
		p.add("", "is no connection: "+err.Error(), "make it with istioctl create-remote-secret")
		c.refuse(ctx, e, p.found, known, failed)
		return
	}
	k.secret, k.server, k.accepted, k.seen, k.refused = e.secret, cfg.Host, e.hash, e.hash, nil
}

// refuse takes over that a kubeconfig is refused. A cluster that runs goes on with the one that it has; one of the last
// run serves its saved state. It is called with mu held.
func (c *Clusters) refuse(ctx context.Context, e *entry, found object.Problems, known bool, failed chan<- error) {
	k := c.running[e.id]
	if k == nil && known {
		k = c.startOffline(ctx, e.id, failed)
	}
	before := c.problems
	if k != nil {
		k.secret, k.seen, k.refused = e.secret, e.hash, found
	} else {
		c.refused = append(c.refused, Row{ID: e.id, Secret: e.secret, State: Refused, Message: textOf(found), problems: found})
	}
	for _, problem := range found {
		if !slices.Contains(before, problem) {
			c.cfg.Log.Warn("kubeconfig of a remote cluster is refused", "cluster", e.id, "problem", problem.Error())
		}
	}
}

// textOf joins problems of one Secret.
func textOf(found object.Problems) string {
	texts := make([]string, len(found))
	for i, p := range found {
		texts[i] = p.Field + ": " + p.Description()
	}
	return strings.Join(texts, "; ")
}

// startOffline serves the saved state of a cluster until a kubeconfig of it is accepted. It is called with mu held.
func (c *Clusters) startOffline(ctx context.Context, id string, failed chan<- error) *cluster {
	k, err := c.start(ctx, id, &rest.Config{Host: "https://" + id, Transport: offline{}}, failed)
	if err != nil {
		c.cfg.Log.Error("saved state of a remote cluster is not served", "cluster", id, "error", err)
	}
	return k
}

// start reads a cluster. It is called with mu held.
func (c *Clusters) start(ctx context.Context, id string, cfg *rest.Config, failed chan<- error) (*cluster, error) {
	src, err := kubernetes.New(kubernetes.Config{
		Cluster: id, Remote: true, MultiCluster: c.cfg.MultiCluster, API: cfg, Saved: c.cfg.Saved, Codec: c.cfg.Codec, Log: c.cfg.Log,
		Clock: c.cfg.Clock,
	})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	k := &cluster{id: id, source: src, stop: stop, done: make(chan struct{}), started: c.cfg.Clock.Now()}
	src.Handle(func(ctx context.Context, _ string, events []source.Event) {
		changes := make([]normalise.Change, len(events))
		for i, e := range events {
			changes[i] = normalise.Change{Key: e.Key, Object: e.Object}
		}
		c.cfg.Submit(ctx, changes)
	})
	c.running[id] = k
	go func() {
		defer close(k.done)
		if err := src.Run(ctx); err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}()
	return k, nil
}

// expire ends the waiting for clusters that take too long.
func (c *Clusters) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Clock.Now()
	for _, k := range c.running {
		if st := k.source.Status(); !k.overdue && !k.settled(st) && now.Sub(k.started) >= c.cfg.Timeout {
			k.overdue = true
			c.cfg.Log.Error("remote cluster was not read in time, the mesh does not wait for it", "cluster", k.id, "timeout", c.cfg.Timeout, "error",
				st.Degraded)
		}
	}
}
