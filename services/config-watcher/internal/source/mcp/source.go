// Package mcp is the source that reads Istio's objects from a server of MCP over xDS, such as another control plane or
// an adapter of a registry: what MeshConfig's configSources names by xds://HOST. The rules are in ADR 100.
//
// stream.go keeps a stream of ADS open and takes messages, list.go has what they mean for the objects in force,
// saved.go keeps the last good state, dial.go connects. Package mcp of the service has the form of objects on the wire.
package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/source/record"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// NamePrefix begins the names of these sources; the server's host and port follow.
const NamePrefix = "mcp/"

// Config of a source. Host, Dial, Node, Log and Clock are required.
type Config struct {
	// Host is the server's host:port, as configSources has it.
	Host string
	// Dial connects to the server. Run calls it for each stream, and closes the connection with the stream.
	Dial func(context.Context) (*grpc.ClientConn, error)
	// Node says who asks.
	Node Node
	// Revision is that of this control plane: objects whose label istio.io/rev names another one are left out; "" reads
	// all.
	Revision string
	// Registry reads the endpoints of the server's services too, by EDS: subscribedResources: [SERVICE_REGISTRY].
	// Without it the services of an istiod are left out.
	Registry bool
	// Namespaces are those that the server may fill: objects of others are left out, and so are objects that expect
	// identities of others. If it is empty, the server may fill all.
	Namespaces []string
	// Saved keeps the last good state across restarts; if nil it is not kept. Codec encodes its records.
	Saved *lastgood.Dir
	Codec record.Codec
	Log   *slog.Logger
	Clock clock.Clock
}

// Source is a server that is followed.
type Source struct {
	cfg     Config
	name    string
	handler source.Handler

	// turn is held while objects in force change and are delivered, so that the handler hears of changes in their
	// order.
	turn sync.Mutex

	mu      sync.Mutex
	started time.Time
	kinds   []*kind
	lists   map[string]*list
	of      map[string]*kind // by the URL of a list
	synced  bool
	// failure is why the server cannot be read since when; nil while a stream is open that has answered.
	failure error
	since   time.Time
	// rejected is the newest message that could not be used as a whole.
	rejected  object.Problems
	lastGood  time.Time
	impatient bool // see kind.complete
	// stream numbers the streams, see kind.judged.
	stream    uint64
	synthetic int
	events    map[*kind]uint64
	// registry is nil unless Config.Registry; entries is the kind ServiceEntry.
	registry *registry
	entries  *kind

	// shards are those of the last good state that were read, until the server has been. Only Run's stream uses it.
	shards map[string][]*object.Object
}

// New returns a source; Run reads.
func New(cfg Config) *Source {
	s := &Source{cfg: cfg, name: NamePrefix + cfg.Host, kinds: newKinds(), lists: map[string]*list{},
		of: map[string]*kind{}, events: map[*kind]uint64{}, shards: map[string][]*object.Object{}, started: cfg.Clock.Now()}
	for _, k := range s.kinds {
		for _, l := range k.lists {
			s.lists[l.url], s.of[l.url] = l, k
		}
		if k.desc.Name == kindServiceEntry && cfg.Registry {
			s.registry, s.entries = newRegistry(s.name), k
			k.registry = s.registry
		}
	}
	return s
}

// Name implements source.Source.
func (s *Source) Name() string { return s.name }

// Handle implements source.Source.
func (s *Source) Handle(h source.Handler) { s.handler = h }

// HasSynced implements source.Source.
func (s *Source) HasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

// Status implements source.Source.
func (s *Source) Status() source.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := source.Status{Synced: s.synced, LastGood: s.lastGood, Problems: slices.Clone(s.rejected)}
	for _, k := range s.kinds {
		row := source.KindStatus{Name: k.String(), Objects: len(k.delivered), Events: s.events[k]}
		st.Problems = append(st.Problems, k.allProblems()...)
		st.Objects += row.Objects
		st.Held += k.held
		if s.failure != nil {
			row.Degraded, row.Reason, row.Since = s.failure, source.ReasonUnreachable, s.since
		} else if s.impatient && s.silent(k) {
			row.Degraded, row.Reason, row.Since = fmt.Errorf("the server does not answer for %s", k), source.ReasonFailed, s.since
		}
		st.Kinds = append(st.Kinds, row)
	}
	for _, k := range s.kinds {
		if n, since := k.guard.Held(); n > 0 {
			st.Withheld = append(st.Withheld, source.Withheld{What: k.String(), Objects: n, InForce: len(k.delivered), Since: since,
				Until: since.Add(withheld.Wait)})
		}
	}
	slices.SortFunc(st.Withheld, func(a, b source.Withheld) int { return strings.Compare(a.What, b.What) })
	slices.SortFunc(st.Kinds, func(a, b source.KindStatus) int { return strings.Compare(a.Name, b.Name) })
	if r := s.registry; r != nil {
		st.Problems = append(st.Problems, r.rejected...)
		if r.failure != nil {
			st.Degraded = fmt.Errorf("the endpoints of the MCP server %s cannot be read since %s, the last ones stay: %w; make it reachable, or "+
				"remove subscribedResources in meshConfig.configSources", s.cfg.Host, r.since.Format(time.RFC3339), r.failure)
		}
	}
	if s.failure != nil {
		st.Degraded = fmt.Errorf("the MCP server %s cannot be read since %s, its last objects stay: %w; make it reachable, or correct "+
			"meshConfig.configSources", s.cfg.Host, s.since.Format(time.RFC3339), s.failure)
	}
	return st
}

// silent reports whether no version of a kind was answered on this stream. It is called with mu held.
func (s *Source) silent(k *kind) bool {
	return !slices.ContainsFunc(k.lists, func(l *list) bool { return l.answered })
}

// fail notes why the server cannot be read.
func (s *Source) fail(err error) {
	s.mu.Lock()
	first := s.failure == nil
	if first {
		s.since = s.cfg.Clock.Now()
	}
	s.failure = err
	s.mu.Unlock()
	if first {
		s.cfg.Log.Warn("MCP server cannot be read, its last objects stay", "source", s.name, "error", err)
	}
}

// deliver passes events on. Those of endpoints overtake, so they go alone.
func (s *Source) deliver(ctx context.Context, k *kind, events []source.Event) {
	for batch := range slices.Chunk(events, source.MaxTogether) {
		s.handler(ctx, s.name, batch)
	}
	s.mu.Lock()
	s.events[k] += uint64(len(events))
	s.mu.Unlock()
}

// settle makes the source synced once all kinds are complete.
func (s *Source) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.synced {
		return
	}
	for _, k := range s.kinds {
		if !k.complete(s.impatient) {
			return
		}
	}
	if s.registry != nil && !s.registry.complete() {
		return
	}
	s.synced, s.lastGood = true, time.Time{}
	clear(s.shards)
	s.cfg.Log.Info("MCP server has been read", "source", s.name, "took", s.cfg.Clock.Now().Sub(s.started).Round(time.Millisecond),
		"synthetic_left_out", s.synthetic)
}

// change brings the objects in force of a kind in line with its lists.
func (s *Source) change(ctx context.Context, k *kind, update func()) {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.mu.Lock()
	update()
	first := k.complete(s.impatient) && !k.compared
	s.mu.Unlock()
	var saved []*object.Object
	if first {
		saved = s.savedBefore(k)
	}
	s.mu.Lock()
	k.compared = k.compared || first
	before := k.guard.Count()
	put, gone := k.change(s.name, reading{stream: s.stream, at: s.cfg.Clock.Now(), impatient: s.impatient, saved: saved})
	held := k.guard.Count()
	s.mu.Unlock()
	switch {
	case held > before:
		s.cfg.Log.Warn("much is missing in what an MCP server sends: it stays in force until a second list says the same", "source", s.name,
			"kind", k.String(), "missing", held, "remedy", "if it was deleted on purpose, `fairlead sources accept "+s.name+
				"` ends the wait; otherwise bring the server's data back")
	case held < before:
		s.cfg.Log.Warn("less of an MCP server is withheld than before", "source", s.name, "kind", k.String(), "removed", len(gone), "withheld",
			held)
	}
	s.deliver(ctx, k, put)
	s.deliver(ctx, k, gone)
}

// Accept implements source.Withholder.
func (s *Source) Accept() (removed int) {
	s.turn.Lock()
	defer s.turn.Unlock()
	for _, k := range s.kinds {
		s.mu.Lock()
		gone := k.remove(k.guard.Accept())
		s.mu.Unlock()
		if removed += len(gone); len(gone) > 0 {
			s.cfg.Log.Warn("an administrator has accepted that objects are gone, they are removed", "source", s.name, "kind", k.String(),
				"removed", len(gone))
		}
		s.deliver(context.Background(), k, gone)
	}
	return removed
}

// due is when a second list may confirm what this stream's lists lack; zero if nothing of them is withheld.
func (s *Source) due() (at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kinds {
		if due := k.guard.Due(); !due.IsZero() && k.judged == s.stream && (at.IsZero() || due.Before(at)) {
			at = due
		}
	}
	return at
}

var errNeverAnswered = errors.New("the stream has ended before an answer")

// foreign reports whether an object is one that another revision of the control plane reads, as in Istio.
func (s *Source) foreign(labels map[string]string) bool {
	of, labelled := labels[revisionLabel]
	return s.cfg.Revision != "" && labelled && of != s.cfg.Revision
}
