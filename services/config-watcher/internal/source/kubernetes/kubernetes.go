// Package kubernetes is the source that reads objects from a Kubernetes API server. It watches every kind of the table
// in package kinds that the server has, cluster-wide, except Secrets and ConfigMaps: of these it watches the mesh
// configuration, and one by one those that Want names, because a Gateway or DestinationRule refers to them. Of a remote
// cluster it reads services and endpoints alone (remote.go).
//
// discover asks which kinds the server has (discovery.go) and starts a watcher for each: a reflector of client-go,
// which lists, watches, and lists again after a loss (watcher.go). listWatch makes a compact entry of each object
// (listwatch.go, entry.go). The reflectors write entries into two lanes, of which the newest state of each object waits
// for deliver (deliver.go). What a list lacks stays for a while if it is much (withhold.go), and a restored backup is
// noticed (lineage.go). While the API server is away, gate holds all requests back (gate.go). The last good state
// outlives a restart (saved.go).
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/source/record"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// NamePrefix is what the names of these sources begin with; the id of the cluster follows.
const NamePrefix = "kubernetes/"

// Config of a Source. Cluster, API, Log and Clock are required.
type Config struct {
	// Cluster is the id of the cluster.
	Cluster string
	API     *rest.Config
	// Remote is true for a cluster whose services and endpoints alone are read (remoteKinds). The keys of its objects
	// have the cluster.
	Remote bool
	// MultiCluster is true if ServiceExports and ServiceImports are read, also of a remote cluster.
	MultiCluster bool
	// Revision of the control plane; objects of Istio's kinds with another one in the label istio.io/rev are left out.
	// "" reads all.
	Revision string
	// Saved keeps the last good state across restarts; if nil it is not kept.
	Saved *lastgood.Dir
	// Codec encodes Saved's records.
	Codec record.Codec
	// Backoff of a watcher whose requests fail; if nil, from 0.3 to 5 s.
	Backoff *wait.Backoff
	// OtherData is called when the API server has other data than before; nil calls nothing. It must return quickly.
	OtherData func()
	Log       *slog.Logger
	Clock     clock.Clock
}

// Lanes of changes that wait for delivery. Those of endpoints overtake the others.
const (
	laneEndpoints = iota
	laneConfig
	lanes
)

// Source reads one API server.
type Source struct {
	cfg     Config
	name    string
	api     atomic.Pointer[clients]
	gate    *gate
	handler source.Handler
	kinds   map[schema.GroupKind]*kind
	// wake tells deliver that there is something to do; rediscover tells discover; confirm tells
	// confirming; back tells checking that the API server was away.
	wake, rediscover, confirm, back chan struct{}

	mu sync.Mutex
	// ctx is that of Run, for the watchers that Want starts; nil before.
	ctx      context.Context
	watchers sync.WaitGroup
	lanes    [lanes]map[object.Key]*entry
	// taken are the keys of changes that deliver has taken from the lanes and not applied yet.
	taken    map[object.Key]struct{}
	started  time.Time
	synced   bool
	lastGood time.Time
	// restoring is when the last good state was saved that has been restored; lastGood is the same after its delivery.
	restoring time.Time
	discover  *failure
	wanted    map[object.Key]bool
	// left are the references that are not watched because there are too many.
	left object.Problems
	// looked is closed when an answer of Lookup may have changed.
	looked chan struct{}
	// deleted are the namespaces that a user has deleted.
	deleted map[string]bool
	// newest is the highest resource version of the Namespaces that was seen.
	newest uint64
}

// kind is one kind of objects. Source.mu guards the fields below lane.
type kind struct {
	desc             kinds.Kind
	source, revision string
	cluster          string // of a remote cluster
	lane             int

	watchers map[types.NamespacedName]*watcher
	// objects are those that have been delivered; problems are those of objects that were refused.
	objects  map[types.NamespacedName]*object.Object
	problems map[types.NamespacedName]object.Problems
	refused  map[types.NamespacedName]source.Refused
	// served is the resource that is watched; empty if the API server does not have the kind.
	served served
	// absent counts the discoveries in a row that lacked the kind; absentSince is the first of them.
	absent      int
	absentSince time.Time
	// settled is true after the first list has been delivered, or after it is certain that there will be none.
	settled  bool
	restored bool
	// held counts the objects that replace broken ones.
	held     int
	watches  int
	restarts uint64
	events   uint64
	dirty    map[int]bool // shards to be saved
	// guard withholds objects that a list lacks; asked is true once the list that confirms it was asked for. read is
	// true after the first list of this run. newest is the resource version of the newest list or event.
	guard       withheld.Guard[types.NamespacedName]
	asked, read bool
	newest      string
	// system is the UID of kube-system, of the kind Namespace; empty if it is not known.
	system string
}

// String returns "VirtualService.networking.istio.io".
func (k *kind) String() string {
	return schema.GroupKind{Group: k.desc.Group, Kind: k.desc.Name}.String()
}

func (k *kind) key(name types.NamespacedName) object.Key {
	return object.Key{Group: k.desc.Group, Kind: k.desc.Name, Namespace: name.Namespace, Name: name.Name, Cluster: k.cluster}
}

// byName reports whether objects of the kind are watched one by one.
func (k *kind) byName() bool {
	return k.desc.Group == "" && (k.desc.Name == kindSecret || k.desc.Name == kindConfigMap)
}

// Kinds of the core group that are not watched as a whole.
const (
	kindSecret    = "Secret"
	kindConfigMap = "ConfigMap"
)

// unwatched are kinds of the table that a cluster makes unnecessary: there is an EndpointSlice for all Endpoints, and
// nothing reads a ServiceAccount.
var unwatched = []schema.GroupKind{{Kind: "Endpoints"}, {Kind: "ServiceAccount"}}

// meshConfig is the ConfigMap with the mesh configuration.
var meshConfig = types.NamespacedName{Namespace: kinds.MeshNamespace, Name: kinds.MeshName}

// reads reports whether a kind of the table is read.
func (c *Config) reads(gk schema.GroupKind) bool {
	if gk.Group == kinds.GroupMCS {
		return c.MultiCluster
	}
	_, remote := remoteKinds[gk]
	return !slices.Contains(unwatched, gk) && (remote || !c.Remote)
}

// New returns a source; Run reads.
func New(cfg Config) (*Source, error) {
	api, err := newClients(cfg.API)
	if err != nil {
		return nil, err
	}
	s := &Source{
		cfg: cfg, name: NamePrefix + cfg.Cluster, kinds: map[schema.GroupKind]*kind{}, wake: make(chan struct{}, 1),
		rediscover: make(chan struct{}, 1), confirm: make(chan struct{}, 1), back: make(chan struct{}, 1), deleted: map[string]bool{},
		taken: map[object.Key]struct{}{}, wanted: map[object.Key]bool{}, looked: make(chan struct{}),
	}
	s.api.Store(api)
	if s.cfg.Backoff == nil {
		s.cfg.Backoff = new(backoff)
	}
	s.gate = newGate(s)
	for i := range s.lanes {
		s.lanes[i] = map[object.Key]*entry{}
	}
	for _, desc := range kinds.All() {
		gk := schema.GroupKind{Group: desc.Group, Kind: desc.Name}
		if !cfg.reads(gk) {
			continue
		}
		k := &kind{
			desc: desc, source: s.name, revision: cfg.Revision, lane: laneConfig, watchers: map[types.NamespacedName]*watcher{},
			objects: map[types.NamespacedName]*object.Object{}, problems: map[types.NamespacedName]object.Problems{},
			refused: map[types.NamespacedName]source.Refused{}, dirty: map[int]bool{},
		}
		if desc.Group == kinds.GroupDiscovery || desc.Group == "" && desc.Name == "Pod" {
			k.lane = laneEndpoints
		}
		if cfg.Remote {
			k.cluster, k.served = cfg.Cluster, remoteKinds[gk]
		}
		if k.byName() {
			k.served = served{version: "v1", resource: strings.ToLower(desc.Name) + "s"}
		}
		s.kinds[gk] = k
	}
	if secrets := s.kinds[schema.GroupKind{Kind: kindSecret}]; secrets != nil {
		// Those that something refers to are known only after the first revision.
		secrets.settled = true
	}
	return s, nil
}

// Name implements source.Source.
func (s *Source) Name() string { return s.name }

// API says how to reach the API server, for those who write to it.
func (s *Source) API() *rest.Config { return s.api.Load().config }

// Handle implements source.Source.
func (s *Source) Handle(h source.Handler) { s.handler = h }

// HasSynced implements source.Source.
func (s *Source) HasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

// Run implements source.Source. It returns an error if it needs a saved state that is encrypted with a key that was not
// given.
func (s *Source) Run(ctx context.Context) error {
	// What client-go reports as an error, the source reports as a state, once.
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(quiet{s.cfg.Log.Handler()}))
	tasks, ctx := errgroup.WithContext(ctx)
	s.mu.Lock()
	s.ctx, s.started = ctx, s.cfg.Clock.Now()
	running := []func(context.Context) error{s.gate.run, s.deliver, s.keep, s.confirming, s.checking}
	if s.cfg.Remote {
		s.startRemote()
		if s.cfg.MultiCluster {
			running = append(running, s.discovering)
		}
	} else {
		s.startNamed(s.kinds[schema.GroupKind{Kind: kindConfigMap}].key(meshConfig))
		for _, key := range s.wantedKeys() {
			s.startNamed(key)
		}
		running = append(running, s.discovering, s.watchDefinitions)
	}
	s.mu.Unlock()
	for _, task := range running {
		tasks.Go(func() error { return task(ctx) })
	}
	err := tasks.Wait()
	s.mu.Lock()
	s.ctx = nil
	s.mu.Unlock()
	s.watchers.Wait()
	s.saveAll()
	if err != nil {
		return fmt.Errorf("source %s: %w", s.name, err)
	}
	return nil
}

// sortedKinds lists the kinds by name.
func (s *Source) sortedKinds() []*kind {
	return slices.SortedFunc(maps.Values(s.kinds), func(a, b *kind) int { return strings.Compare(a.String(), b.String()) })
}

// Status implements source.Source.
func (s *Source) Status() source.Status {
	away := s.gate.away()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := source.Status{Synced: s.synced, LastGood: s.lastGood, Problems: slices.Clone(s.left), Versions: map[string]string{}}
	var degraded []error
	now := s.cfg.Clock.Now()
	for _, k := range s.sortedKinds() {
		row := source.KindStatus{Name: k.String(), Objects: len(k.objects), Watches: k.watches, Events: k.events, Restarts: k.restarts}
		st.Objects += row.Objects
		for _, ps := range k.problems {
			st.Problems = append(st.Problems, ps...)
		}
		st.Held += k.held
		if w, ok := k.withheldOf(); ok {
			st.Withheld = append(st.Withheld, w)
		}
		k.degrade(&row, away, now)
		if row.Degraded != nil && away == nil {
			degraded = append(degraded, row.Degraded)
		}
		st.Kinds = append(st.Kinds, row)
		for name, w := range k.watchers {
			of := row.Name
			if name.Name != "" {
				of += " " + name.String()
			}
			st.Versions[of] = w.version
		}
	}
	switch {
	case away != nil:
		st.Degraded = fmt.Errorf("the API server %s cannot be reached since %s, its last objects stay: %w; %s", s.api.Load().config.Host,
			away.since.Format(time.RFC3339), away.err, unreachableRemedy)
	case s.discover != nil:
		degraded = append(degraded, fmt.Errorf("the API server does not tell which kinds it has, since %s: %w",
			s.discover.since.Format(time.RFC3339), s.discover.err))
		fallthrough
	default:
		st.Degraded = errors.Join(degraded...)
	}
	return st
}

// degrade fills in why the kind cannot be read. It is called with Source.mu held.
func (k *kind) degrade(row *source.KindStatus, away *failure, now time.Time) {
	if away != nil {
		row.Degraded, row.Reason, row.Since = fmt.Errorf("%s cannot be read since %s: %w", k, away.since.Format(time.RFC3339), away.err),
			source.ReasonUnreachable, away.since
		return
	}
	var all []error
	for _, name := range slices.SortedFunc(maps.Keys(k.watchers), compareNames) {
		w := k.watchers[name]
		if w.failure == nil || now.Sub(w.failure.since) < brief && (w.failure.reason() == source.ReasonUnreachable || w.awaitsRights()) {
			continue
		}
		what := k.String()
		if name.Name != "" {
			what = k.key(name).String()
		}
		remedy := "its last objects stay"
		switch {
		case w.awaitsRights():
			remedy += "; fairlead-keeper binds ClusterRole fairlead-config-watcher-credentials in " + name.Namespace +
				" while Pods there are selected by an object that names " +
				"a Secret: see its log, or list the namespace in values.configWatcher.credentialNamespaces"
		case w.failure.reason() == source.ReasonForbidden:
			remedy += "; allow config-watcher's service account to get, list and watch it"
		}
		if len(all) < maxNamed {
			all = append(all, fmt.Errorf("%s cannot be read since %s: %w; %s", what, w.failure.since.Format(time.RFC3339), w.failure.err, remedy))
		}
		if row.Since.IsZero() || w.failure.since.Before(row.Since) {
			row.Since = w.failure.since
		}
		row.Reason = w.failure.reason()
	}
	row.Degraded = errors.Join(all...)
}

// brief is how long a request of one kind may go without an answer, while others are answered, without being reported:
// a connection has ended and is opened again. It is also how long the right to read a Secret may take.
const brief = 5 * time.Second

// maxNamed bounds the objects of a kind that Status names.
const maxNamed = 20

func compareNames(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

// quiet is a log handler for client-go: what it calls an error is retried, and reported by Status.
type quiet struct{ slog.Handler }

// Handle implements slog.Handler.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	if r.Level = slog.LevelDebug; !q.Enabled(ctx, r.Level) {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q quiet) WithAttrs(a []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(a)} }

// WithGroup implements slog.Handler.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
