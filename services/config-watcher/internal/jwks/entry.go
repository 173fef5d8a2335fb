package jwks

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"fairlead.dev/pkg/jwks"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// entry is a source that somebody wants, with its keys.
type entry struct {
	source contract.KeySource
	// owners are the RequestAuthentications that want it, and how long a request may take for them.
	owners map[object.Key]time.Duration
	// admitted is false for a source that is left out, see admit.go.
	admitted bool

	// keys are the last good ones, fetched at fetched; nil if there are none.
	keys    []byte
	count   int
	dropped []jwks.Dropped
	fetched time.Time
	// saved is the state that is on disk.
	saved *savedKeys

	// tried is true after the first attempt, and if keys were read from disk.
	tried, running bool
	// problem and err are the outcome of the last attempt; failures counts attempts since the last good one.
	problem  configv1.JwksProblem
	err      error
	failures int
	next     time.Time
	// expired is true since last good keys have become too old.
	expired bool

	// told is what has been passed on; nil if nothing was.
	told *configv1.Jwks
}

func newEntry(source contract.KeySource) *entry {
	return &entry{source: source, owners: map[object.Key]time.Duration{}}
}

func compareSources(a, b contract.KeySource) int {
	return cmp.Or(strings.Compare(a.URI, b.URI), strings.Compare(a.Issuer, b.Issuer))
}

// key is the key of the object that the pipeline gets.
func (e *entry) key() object.Key {
	return object.Key{Group: kinds.GroupFairlead, Kind: normalise.KindJwks, Name: e.source.Name()}
}

// state is what the mesh is told of the source. It has no time, and no text of an error: replicas that have the same
// keys tell the same.
func (e *entry) state() *configv1.Jwks {
	out := &configv1.Jwks{Uri: e.source.URI, Issuer: e.source.Issuer}
	switch {
	case !e.admitted:
		out.Problem = configv1.JwksProblem_JWKS_PROBLEM_LEFT_OUT
	case e.keys != nil:
		out.Keys = e.keys
	case e.expired:
		out.Problem = configv1.JwksProblem_JWKS_PROBLEM_EXPIRED
	case !e.tried:
		out.Problem = configv1.JwksProblem_JWKS_PROBLEM_PENDING
	default:
		out.Problem = e.problem
	}
	return out
}

// change is the change of the state since the last call, unless there is none, or nothing is to be told yet.
func (e *entry) change(wait bool) (normalise.Change, bool) {
	if wait {
		return normalise.Change{}, false
	}
	now := e.state()
	if e.told != nil && bytes.Equal(e.told.Keys, now.Keys) && e.told.Problem == now.Problem {
		return normalise.Change{}, false
	}
	e.told = now
	return normalise.Change{Key: e.key(), Object: &object.Object{Key: e.key(), Source: "jwks", Body: now}}, true
}

// timeout is how long a request may take: the longest time of a rule.
func (e *entry) timeout() time.Duration {
	longest := minTimeout
	for _, d := range e.owners {
		longest = max(longest, d)
	}
	return longest
}

// namespace is that of the owner which pays for the fetches, the same at any time on any replica.
func (e *entry) namespace() string {
	first, found := "", false
	for k := range e.owners {
		if !found || k.Namespace < first {
			first, found = k.Namespace, true
		}
	}
	return first
}

// Times of fetches. A source without Cache-Control is fetched every 20 minutes, as by Istio.
const (
	defaultInterval = 20 * time.Minute
	firstBackoff    = time.Second
	// spread is the longest random delay of a fetch.
	spread = 3 * time.Second
)

// DefaultShortest is the shortest interval between two fetches of a source, unless Config says otherwise.
const DefaultShortest = 5 * time.Minute

// intervals are, besides the shortest one, those at which a source may be fetched; Cache-Control chooses one. They are
// few, so that replicas choose the same one although their answers from a cache have different ages.
var intervals = []time.Duration{5 * time.Minute, 10 * time.Minute, defaultInterval, 30 * time.Minute, time.Hour}

// interval is the longest interval that a document may be kept, or the shortest one that there is.
func interval(shortest, maxAge time.Duration, stated bool) time.Duration {
	if !stated {
		return defaultInterval
	}
	out := shortest
	for _, d := range intervals {
		if d <= maxAge {
			out = max(out, d)
		}
	}
	return out
}

// due is when a source is fetched again that was fetched now: at points of time that depend on the source alone. So
// replicas fetch within seconds of each other, and what they tell differs for no longer when an issuer changes its
// keys. It is at most every and twice spread after now: a point within spread of now is passed over.
func (e *entry) due(now time.Time, every time.Duration, random float64) time.Time {
	digits, _ := hex.DecodeString(e.source.Name())
	offset := time.Duration(binary.BigEndian.Uint64(digits[:8]) % uint64(every))
	at := now.Truncate(every).Add(offset)
	for !at.After(now.Add(spread)) {
		at = at.Add(every)
	}
	return at.Add(time.Duration(random * float64(spread)))
}

// backoff is the pause after failures: it grows to the longest.
func backoff(failures int, longest time.Duration, random float64) time.Duration {
	d := longest
	if failures < 16 {
		d = min(firstBackoff<<(failures-1), longest)
	}
	return time.Duration((0.5 + random) * float64(d))
}

// take takes over the outcome of an attempt.
func (e *entry) take(a answer, now time.Time, shortest time.Duration, random float64) {
	e.tried, e.running, e.err, e.problem = true, false, a.err, a.problem
	if a.err != nil {
		e.failures++
		e.next = now.Add(backoff(e.failures, shortest, random))
		if errors.Is(a.err, jwks.ErrNoKeys) {
			e.dropped = a.set.Dropped
		}
		return
	}
	e.keys, e.count, e.dropped, e.fetched, e.failures, e.expired = a.set.Keys, a.set.Count, a.set.Dropped, now, 0, false
	e.next = e.due(now, interval(shortest, a.maxAge, a.stated), random)
}

// expire drops keys that are too old.
func (e *entry) expire(now time.Time) bool {
	if e.keys == nil || now.Sub(e.fetched) < contract.KeysMaxAge {
		return false
	}
	e.keys, e.count, e.expired = nil, 0, true
	return true
}
