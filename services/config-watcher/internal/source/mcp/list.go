package mcp

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/mcp"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// hash is of an entry's type and bytes.
type hash [sha256.Size]byte

// entry is what a server has said of one object. It is immutable.
type entry struct {
	key object.Key
	// object is nil if the entry cannot be used: problems say why, hold may replace it. It is also nil for an entry
	// that is left out, which has no problems.
	object   *object.Object
	problems object.Problems
	hold     *hold.Hold
	// saved is the last good version that an earlier run has saved of an object that cannot be used.
	saved *object.Object
	// outside is true for an object of a namespace that the source may not fill. It is left out.
	outside bool
	// template is what a ServiceEntry with endpoints is made of; the rest is empty then.
	template *template
}

// list is the newest that a server has said of one version of a kind.
type list struct {
	url string
	// entries are by hash; names are those that can be told apart, the first of each.
	entries map[hash]*entry
	names   map[object.Key]*entry
	// problems are about entries without a name, and about names that come twice.
	problems object.Problems
	// nameless is true if an entry's name cannot be read.
	nameless bool
	bytes    int
	// answered is true if the list is of this stream, ever if one has arrived in this run.
	answered, ever bool
}

// same marks a list as answered if it is what is known already.
func (l *list) same(resources []*anypb.Any, sums []hash) bool {
	if !l.ever || len(resources) != len(l.entries) {
		return false
	}
	for _, sum := range sums {
		if l.entries[sum] == nil {
			return false
		}
	}
	return true
}

// sumsOf hashes the entries of a list, and adds up their bytes.
func sumsOf(resources []*anypb.Any) (sums []hash, bytes int) {
	sums = make([]hash, len(resources))
	buffer := make([]byte, 0, 4096)
	for i, r := range resources {
		buffer = append(append(append(buffer[:0], r.GetTypeUrl()...), 0), r.GetValue()...)
		sums[i] = sha256.Sum256(buffer)
		bytes += len(buffer)
	}
	return sums, bytes
}

// kind is what a server has said of one kind, and what has been delivered of it.
type kind struct {
	desc  *kinds.Kind
	lists []*list // in the order of desc.Versions
	// delivered are the objects in force.
	delivered map[object.Key]*object.Object
	problems  map[object.Key]object.Problems
	held      int
	dirty     map[int]bool
	// guard withholds what the lists lack. judged is the stream whose complete lists were judged last, fresh counts the
	// objects that have come since: they are no reason to miss others less.
	guard  withheld.Guard[object.Key]
	judged uint64
	fresh  int
	// compared is true once what the last run has saved is in force, or was compared with the first complete lists.
	compared bool
	// registry has the endpoints for templates; nil if there are none.
	registry *registry
}

func newKinds() []*kind {
	var out []*kind
	for _, desc := range mcp.Kinds() {
		k := &kind{desc: desc, delivered: map[object.Key]*object.Object{}, problems: map[object.Key]object.Problems{},
			dirty: map[int]bool{}}
		for _, version := range desc.Versions {
			k.lists = append(k.lists, &list{url: mcp.URL(desc, version)})
		}
		out = append(out, k)
	}
	return out
}

// complete reports whether every version of the kind was answered on this stream. With patience at its end, a version
// that was never answered counts as one that the server does not know.
func (k *kind) complete(impatient bool) bool {
	for _, l := range k.lists {
		if !l.answered && (!impatient || l.ever) {
			return false
		}
	}
	return true
}

// next makes the list that follows l. decode makes entries of those that are new.
func (l *list) next(resources []*anypb.Any, sums []hash, bytes int, decode func(*anypb.Any) *entry) *list {
	next := &list{url: l.url, entries: make(map[hash]*entry, len(resources)), names: make(map[object.Key]*entry, len(resources)), bytes: bytes,
		answered: true, ever: true}
	var outside object.Key
	others := 0
	for i, r := range resources {
		e := l.entries[sums[i]]
		if e == nil {
			e = decode(r)
		}
		next.entries[sums[i]] = e
		if e.outside {
			if others++; others == 1 {
				outside = e.key
			}
		}
		switch {
		case e.key.Name == "":
			next.nameless = true
			next.problems = append(next.problems, e.problems...)
		case next.names[e.key] == nil:
			next.names[e.key] = e
		case next.names[e.key] != e:
			next.problems = append(next.problems, object.Problem{Object: e.key.String(), Reason: "is twice in the list of " + l.url +
				", and the first counts", Remedy: "correct it at the server"})
		}
	}
	if len(next.problems) > maxProblems {
		more := object.Problem{Reason: fmt.Sprintf("%d more entries of %s cannot be used", len(next.problems)-maxProblems, l.url)}
		next.problems = append(next.problems[:maxProblems:maxProblems], more)
	}
	next.problems = append(next.problems, leftOut(outside, others)...)
	return next
}

// maxProblems bounds those of a list that name no object.
const maxProblems = 100

// union returns what the lists say of each object: the first version that can be used, else the first.
func (k *kind) union() map[object.Key]*entry {
	out := map[object.Key]*entry{}
	for _, l := range k.lists {
		for key, e := range l.names {
			if known := out[key]; known == nil || known.object == nil && known.problems != nil && e.object != nil {
				out[key] = e
			}
		}
	}
	return out
}

// reading says when and by which stream the lists of a kind were read. saved are the objects that the last run has
// saved, if they are not in force and these lists are the first complete ones.
type reading struct {
	stream    uint64
	at        time.Time
	impatient bool
	saved     []*object.Object
}

// change brings what is delivered in line with the lists, and returns what differs: objects that are new or other, and
// those that are gone, sorted by key.
func (k *kind) change(name string, r reading) (put, gone []source.Event) {
	now := k.union()
	if k.registry != nil {
		k.registry.round++
		defer k.registry.prune()
	}
	for key, e := range now {
		k.guard.Forget(key)
		before, after := k.delivered[key], k.next(name, key, e)
		if before == nil && after != nil {
			k.fresh++
		}
		if before != after {
			k.deliver(key, after)
			put = append(put, source.Event{Key: key, Object: after})
		}
	}
	nameless := slices.ContainsFunc(k.lists, func(l *list) bool { return l.nameless })
	if k.complete(r.impatient) && !nameless {
		back, remove := k.judge(now, r)
		put, gone = append(put, back...), k.remove(remove)
		for key := range k.problems {
			if now[key] == nil {
				delete(k.problems, key)
			}
		}
	}
	slices.SortFunc(put, func(a, b source.Event) int { return a.Key.Compare(b.Key) })
	return put, gone
}

// judge finds out which objects complete lists remove. back are saved ones that come into force again, because they are
// withheld. While something is withheld, only the lists of another stream decide about what is missing: a second
// reading is one of everything.
func (k *kind) judge(now map[object.Key]*entry, r reading) (back []source.Event, remove []object.Key) {
	if k.guard.Count() > 0 && k.judged == r.stream {
		return nil, nil
	}
	inForce := len(k.delivered) - k.fresh
	var missing []object.Key
	for key := range k.delivered {
		if now[key] == nil {
			missing = append(missing, key)
		}
	}
	lost := map[object.Key]*object.Object{}
	for _, o := range r.saved {
		if inForce++; now[o.Key] == nil && k.delivered[o.Key] == nil {
			lost[o.Key] = o
			missing = append(missing, o.Key)
		}
	}
	k.judged, k.fresh = r.stream, 0
	for _, key := range k.guard.Reading(withheld.Reading[object.Key]{At: r.at, InForce: inForce, Missing: missing}) {
		if lost[key] == nil {
			remove = append(remove, key)
		}
	}
	for key, o := range lost {
		k.dirty[shardOf(key)] = true
		if k.guard.Has(key) {
			k.deliver(key, o)
			back = append(back, source.Event{Key: key, Object: o})
		}
	}
	return back, remove
}

// remove takes objects out of force, and returns the events, sorted.
func (k *kind) remove(keys []object.Key) (gone []source.Event) {
	slices.SortFunc(keys, object.Key.Compare)
	for _, key := range keys {
		k.deliver(key, nil)
		gone = append(gone, source.Event{Key: key})
	}
	return gone
}

// next returns the object in force after a server has said something of it, and takes over its problems.
func (k *kind) next(name string, key object.Key, e *entry) *object.Object {
	before := k.delivered[key]
	if e.template != nil {
		if e = k.registry.compose(k, key, e); e == nil {
			return before // its endpoints are not known yet
		}
	}
	if e.object != nil || e.problems == nil {
		delete(k.problems, key)
		if before != nil && e.object != nil && before.Digest == e.object.Digest {
			return before
		}
		return e.object
	}
	k.problems[key] = e.problems
	if before == nil {
		before = e.saved
	}
	if before == nil && e.hold != nil {
		before = e.hold.Object
		before.Source = name
		k.problems[key] = append(slices.Clip(e.problems), e.hold.Problem())
	}
	return before
}

// deliver notes what is in force of an object from now on; nil if nothing is.
func (k *kind) deliver(key object.Key, o *object.Object) {
	if before := k.delivered[key]; before != nil && before.Held {
		k.held--
	}
	k.dirty[shardOf(key)] = true
	if o == nil {
		delete(k.delivered, key)
		return
	}
	if o.Held {
		k.held++
	}
	k.delivered[key] = o
}

// allProblems are those of the kind, sorted.
func (k *kind) allProblems() (out object.Problems) {
	for _, key := range slices.SortedFunc(maps.Keys(k.problems), object.Key.Compare) {
		out = append(out, k.problems[key]...)
	}
	for _, l := range k.lists {
		out = append(out, l.problems...)
	}
	return out
}

// String is the name of the kind in Status.Kinds.
func (k *kind) String() string { return k.desc.Name + "." + k.desc.Group }

// silentAfter is how long after a stream has begun a version that was never answered counts as unknown to the server.
const silentAfter = 30 * time.Second

const (
	// syntheticPrefix begins the names of the ServiceEntries that istiod makes of Kubernetes' Services. It tells their
	// endpoints by EDS alone.
	syntheticPrefix  = "synthetic-"
	kindServiceEntry = "ServiceEntry"
)

func synthetic(k *kinds.Kind, key object.Key) bool {
	return k.Name == kindServiceEntry && strings.HasPrefix(key.Name, syntheticPrefix)
}
