// Package replicas keeps the registries of holders of a ca's replicas alike: each follows all others, and adds what
// they know to its own. Set answers who has not acknowledged a bundle for all of them, and names the replicas that may
// know of certificates which nobody else does.
package replicas

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/clock"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/holders"
)

const (
	// lookupEvery is the time between two looks at which replicas there are.
	lookupEvery = 5 * time.Second
	// statusEvery is the time between two statuses on a stream.
	statusEvery = 5 * time.Second
	// retryAfter is the pause after a stream that has ended.
	retryAfter = time.Second
	// askFor is how long a replica without a journal waits for all others to say whether it has run before.
	askFor = time.Minute
	// batchFor is how long changes are gathered.
	batchFor = 20 * time.Millisecond
)

// Peers are the connections to all replicas; *rpc.Peers implements it. Set.Run alone calls it.
type Peers interface {
	Conns(ctx context.Context) map[string]*grpc.ClientConn
	Close()
}

// Own is how this replica stands.
type Own struct {
	// Signer is the ID of the one that it issues from, RecordVersion that of the state which it has read last.
	Signer        uint64
	RecordVersion string
}

// Config of a Set. All fields but File and Registerer are required.
type Config struct {
	// Name is that of this replica, such as its Pod's.
	Name     string
	Registry *holders.Registry
	Peers    Peers
	Own      func() Own
	// LongestTTL is the longest lifetime of a certificate.
	LongestTTL time.Duration
	// File keeps the names of the other replicas over restarts; "" for nowhere.
	File       string
	Clock      clock.Clock
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Set is this replica's view of all. It is fairlead.ca.v1.ReplicaService, whose callers must have the ca's own
// identity. It is safe for concurrent use.
type Set struct {
	cav1.UnimplementedReplicaServiceServer
	cfg Config
	run string
	// ended is closed when Run ends.
	ended chan struct{}

	// began is when the Set was made.
	began time.Time

	mu      sync.Mutex
	members members
	// saving is why File could not be written.
	saving error
}

// New makes a Set; Run must follow.
func New(cfg Config) (*Set, error) {
	s := &Set{cfg: cfg, run: rand.Text(), ended: make(chan struct{}), began: cfg.Clock.Now(), members: newMembers(cfg.LongestTTL)}
	known, err := load(cfg.File)
	if err != nil {
		return nil, err
	}
	for name, of := range known {
		s.members.remember(name, of)
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(newClocks(s))
		promauto.With(cfg.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fairlead_ca_replicas_silent", Help: "Replicas of the ca that have not been heard of for 30 seconds.",
		}, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return float64(len(s.members.silent(s.cfg.Clock.Now())))
		})
	}
	return s, nil
}

// Run follows the other replicas until ctx ends.
func (s *Set) Run(ctx context.Context) error {
	defer close(s.ended)
	streams := map[string]following{}
	var all sync.WaitGroup
	defer all.Wait()
	defer s.cfg.Peers.Close()
	for {
		conns := s.cfg.Peers.Conns(ctx)
		for address, f := range streams {
			if conns[address] != f.conn {
				f.stop()
				delete(streams, address)
			}
		}
		for address, conn := range conns {
			if _, ok := streams[address]; ok {
				continue
			}
			to, stop := context.WithCancel(ctx)
			streams[address] = following{conn, stop}
			all.Go(func() { defer stop(); s.follow(to, address, conn) })
		}
		s.looked(conns)
		if !clock.Sleep(ctx, s.cfg.Clock, lookupEvery) {
			return nil
		}
	}
}

// following is a stream that follow keeps open.
type following struct {
	conn *grpc.ClientConn
	stop context.CancelFunc
}

// looked remembers which addresses there are, and writes down which replicas are known.
func (s *Set) looked(conns map[string]*grpc.ClientConn) {
	addresses := map[string]bool{}
	for address := range conns {
		addresses[address] = true
	}
	now := s.cfg.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members.looked(addresses, now)
	s.judge(now)
	if !s.members.changed(now) {
		return
	}
	if s.saving = save(s.cfg.File, s.members.known()); s.saving == nil {
		s.members.saved(now)
	}
}

// judge decides whether a journal that is not there was lost, from what the others say. Without any of them that can
// know it was. The caller holds s.mu.
func (s *Set) judge(now time.Time) {
	if !s.cfg.Registry.Unasked() {
		return
	}
	lost := false
	for _, of := range s.members.byName {
		lost = lost || of.knows
	}
	if lost || s.members.told() {
		s.cfg.Registry.Asked(lost)
	} else if now.Sub(s.began) > askFor {
		s.cfg.Registry.Asked(true)
	}
}

// Behind are the holders that have not acknowledged a generation, as holders.Registry.Behind has them, and replicas
// that have not been heard of, as "replica NAME": certificates may be known to them alone.
func (s *Set) Behind(epoch, generation uint64) []caapi.Holder {
	return s.with(s.cfg.Registry.Behind(epoch, generation), func(uint64) bool { return true })
}

// Of are the holders whose certificates one of these signers issued, and replicas as in Behind.
func (s *Set) Of(signers ...uint64) []caapi.Holder {
	return s.with(s.cfg.Registry.Of(signers...), func(signer uint64) bool { return slices.Contains(signers, signer) })
}

func (s *Set) with(list []caapi.Holder, signer func(uint64) bool) []caapi.Holder {
	now := s.cfg.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	list = append(list, s.members.folded(now, signer)...)
	for _, m := range s.members.silent(now) {
		list = append(list, caapi.Holder{Name: "replica " + m.name, Signer: m.signer, NotAfter: m.heard.Add(s.cfg.LongestTTL)})
	}
	slices.SortStableFunc(list, func(a, b caapi.Holder) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// KeyIDs is holders.Registry.KeyIDs.
func (s *Set) KeyIDs(signers ...uint64) [][]byte { return s.cfg.Registry.KeyIDs(signers...) }

// Counts is holders.Registry.Counts.
func (s *Set) Counts(epoch, generation uint64) caapi.Holders {
	return s.cfg.Registry.Counts(epoch, generation)
}

// Problem is why the holders are not known for sure now; nil if they are.
func (s *Set) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := []error{s.cfg.Registry.Problem()}
	if s.cfg.Registry.Unasked() {
		errs = append(errs, errors.New("this replica has no journal of certificates, and the others have not said yet whether it is a new one"))
	}
	if s.saving != nil {
		errs = append(errs, fmt.Errorf("the names of the replicas cannot be written: %w", s.saving))
	}
	for _, p := range s.members.problems(s.cfg.Clock.Now()) {
		errs = append(errs, errors.New(p))
	}
	return errors.Join(errs...)
}

// Replicas are all that are known, this one included, sorted by name.
func (s *Set) Replicas() []caapi.Replica {
	now := s.cfg.Clock.Now()
	own := caapi.Replica{Name: s.cfg.Name, Signer: s.cfg.Own().Signer, Seen: now}
	if err := s.cfg.Registry.Problem(); err != nil {
		own.Problem = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := append(s.members.replicas(now), own)
	slices.SortFunc(out, func(a, b caapi.Replica) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Versions are the versions of the ca's state that the replicas have read last, by name, this one included. All
// certificates that a replica issued before it had read that version are known here.
func (s *Set) Versions() map[string]string {
	own := s.cfg.Own()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.members.versions()
	out[s.cfg.Name] = own.RecordVersion
	return out
}
