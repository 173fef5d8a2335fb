package serve

import (
	"slices"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// subscription is one xDS type on one stream. What the client holds is not kept: it is the class's snapshot, except for the names in
// dirty and deferred.
type subscription struct {
	url     string
	metrics *typeMetrics

	wildcard bool
	// planned is true once the class was asked for the wildcard set.
	planned bool
	// names asked for.
	names nameList
	// costly are those of names that the account is charged for: the class does not list them.
	costly nameList
	// absent are those of names that were answered with "there is none".
	absent nameSet

	// dirty names may differ from what the client holds. fresh ones among them are answered even if there is nothing to say.
	dirty, fresh nameSet
	// deferred names are removals that wait until nothing refers to the resource any more; deferredAt is the revision of the last of them.
	deferred   nameSet
	deferredAt *configv1.Revision
	// arriving are clusters that the client does not have yet: what may refer to them waits for them.
	arriving nameSet
	// owed is true while the first response must go out even if empty; for virtual hosts, while some route configuration waits for its
	// first ones.
	owed bool
	// answered is true once the client has all it needs for a start: a first response was made, or none was necessary.
	answered bool

	open        watch
	outstanding *response
	// cancel is how the loop takes the open watch back.
	cancel func()

	// withheld are versions that were rejected: they are not sent again. If blamed together, a change of one frees all.
	withheld map[string]string
	together bool
	// resend is true after a NACK: what the client holds is unknown, the next response carries the whole type.
	resend bool
	// unsure names were removed by a response that was rejected: the client may still hold them.
	unsure    nameSet
	rejection *configv1.Rejection

	// good is, for state of the world, what the client holds: see keep.
	good map[string]*store.Blob

	sent, acked *configv1.Revision
	// base is, while something waits, the revision up to which the client holds everything; nil if it never did.
	base  *configv1.Revision
	bytes uint64
}

// watch is an open request: the server's loop waits for at most one response to it. One of the channels is set.
type watch struct {
	delta   *cache.DeltaRequest
	deltaTo chan cache.DeltaResponse
	world   *cache.Request
	worldTo chan cache.Response
}

// isOpen reports whether the loop waits.
func (w *watch) isOpen() bool { return w.deltaTo != nil || w.worldTo != nil }

// response is one that was handed to the server's loop and not acknowledged yet.
type response struct {
	charge
	message any    // what the loop sends
	nonce   string // "" until it is sent
	blobs   []*store.Blob
	removed []string
	// missing are virtual hosts that are said not to exist.
	missing  []string
	revision *configv1.Revision
	// base is set if the client holds everything up to this revision once it acknowledges; whole if the type was sent from the start.
	base *configv1.Revision
	// tables are route configurations that the client has only through this response.
	tables []string
	size   int
	sentAt time.Time
	// round it was handed out in, see pace.
	round uint64
	span  trace.Span
}

// wants reports whether the item is part of the subscription.
func (b *subscription) wants(name string, item plan.Item) bool {
	return b.wildcard && item.Wildcard || b.names.has(name)
}

// complete reports whether a state-of-the-world response of the type lists all that the subscription covers, so that what it leaves out is
// gone: clusters and listeners do always, also those that are asked for by name, and what else has a wildcard.
func (b *subscription) complete() bool {
	return b.wildcard || b.url == resource.ClusterType || b.url == resource.ListenerType
}

// touch marks a name as possibly different from what the client holds.
func (s *stream) touch(b *subscription, name string) {
	if b.answered && b.clean() {
		b.base = s.upTo
	}
	b.dirty.add(name)
	if b.deferred.len() > 0 {
		b.deferred.remove(name)
	}
}

// touchAll marks all that the subscription covers, and what the client may hold although it should not.
func (s *stream) touchAll(b *subscription, snapshot *plan.TypeSnapshot) {
	if s.touchListing(b, snapshot) {
		return
	}
	touch := func(name string) bool { s.touch(b, name); return true }
	b.names.each(touch)
	for _, name := range b.unsure.list {
		touch(name)
	}
	if b.url == resource.VirtualHostType {
		s.touchTables(b, snapshot)
		return
	}
	if b.wildcard {
		snapshot.Scan(func(name string, item plan.Item) bool { return !item.Wildcard || touch(name) })
	}
}

// touchListing is touchAll for the common case, in which all that the subscription covers is what a listing has: it takes that over as it is.
func (s *stream) touchListing(b *subscription, snapshot *plan.TypeSnapshot) bool {
	if b.url == resource.VirtualHostType || b.dirty.len()+b.unsure.len()+b.deferred.len() > 0 {
		return false
	}
	if b.wildcard && b.names.len() > 0 || !b.wildcard && !b.names.shared {
		return false
	}
	l := snapshot.Listing("")
	if !b.wildcard && !b.names.is(l.Names) {
		return false
	}
	if b.answered && b.clean() {
		b.base = s.upTo
	}
	b.dirty.fill(l.Names)
	return true
}

// ask marks a name that the client waits for: it is sent or said to be absent, whatever the client is thought to hold.
func (s *stream) ask(b *subscription, name string) {
	s.touch(b, name)
	b.fresh.add(name)
	b.absent.remove(name)
}

// clean reports whether the client holds all it should.
func (b *subscription) clean() bool {
	return b.dirty.len() == 0 && b.deferred.len() == 0 && b.outstanding == nil && !b.owed && b.rejection == nil
}

// pending reports whether an update is on its way or waits to be sent; removals that can wait do not count.
func (b *subscription) pending() bool {
	return b != nil && (b.outstanding != nil || b.dirty.len() > 0 || b.owed)
}

// withhold keeps a rejected version from being sent again.
func (b *subscription) withhold(blob *store.Blob) {
	if b.withheld == nil {
		b.withheld = map[string]string{}
	}
	b.withheld[blob.Name()] = blob.Version()
}

// subscribe adds names to a subscription and plans them.
func (s *stream) subscribe(sub *subscription, names []string) error {
	if len(names) > shortSet {
		var t plan.Tally
		for _, name := range names {
			t.AddString(name)
		}
		if done, err := s.subscribeListing(sub, t); done {
			return err
		}
	}
	for part := range slices.Chunk(names, planAtOnce) {
		if err := s.subscribePart(sub, part); err != nil {
			return err
		}
	}
	s.plan(sub, nil)
	return nil
}

// planAtOnce is how many names are planned before other clients and revisions have their turn: less than 1 ms' worth.
const planAtOnce = 64

func (s *stream) subscribePart(sub *subscription, names []string) error {
	var added []string
	for _, name := range names {
		if name == "*" {
			continue
		}
		if len(name) > s.server.maxNameBytes {
			return status.Errorf(codes.InvalidArgument, "resource name of %d bytes, at most %d are taken", len(name), s.server.maxNameBytes)
		}
		if sub.names.has(name) {
			continue
		}
		if err := s.count(name); err != nil {
			return err
		}
		added = append(added, name)
	}
	slices.Sort(added)
	for i := len(added) - 1; i > 0; i-- {
		if added[i] == added[i-1] {
			s.uncount(added[i])
		}
	}
	added = slices.Compact(added)
	sub.names.add(added)
	if len(added) == 0 {
		return nil
	}
	s.plan(sub, added)
	return s.price(sub, added)
}

// price charges the account for those of the subscription's new names that are not the class's own.
func (s *stream) price(sub *subscription, added []string) error {
	current := s.class.Snapshot().Type(sub.url)
	var costly []string
	bytes := 0
	for _, name := range added {
		if item, _ := current.Get(name); item.Blob == nil || !item.Wildcard {
			costly = append(costly, name)
			bytes += len(name) + nameCost
		}
	}
	if len(costly) == 0 {
		return nil
	}
	if reason := s.spend(bytes); reason != "" {
		return s.account.refuse(s.node.ID, BudgetNames, reason)
	}
	sub.costly.add(costly)
	return nil
}

// spend charges the account, or returns why it does not.
func (s *stream) spend(bytes int) (refused string) {
	if refused = s.account.spend(int64(bytes)); refused == "" {
		s.names += int64(bytes)
	}
	return refused
}

// refund takes the charge for a name back.
func (s *stream) refund(name string) {
	n := int64(len(name) + nameCost)
	s.names -= n
	s.account.refund(n)
}

// subscribeListing is subscribe for a client that asks by name for just what its class is known to ask for: the names are the class's, and
// need not be planned one by one.
func (s *stream) subscribeListing(sub *subscription, names plan.Tally) (done bool, err error) {
	if names.Count() <= shortSet || sub.names.len() > 0 || sub.wildcard || sub.url == resource.VirtualHostType {
		return false, nil
	}
	s.class.Plan(s, sub.url, false, nil)
	l := s.class.Snapshot().Type(sub.url).Listing("")
	if !l.HasNames(names) {
		return false, nil
	}
	if s.nameBytes += l.NameBytes + len(l.Names)*nameOverhead; s.nameBytes > s.server.maxSubscribedBytes {
		return true, errTooManyNames
	}
	sub.names.share(l.Names)
	return true, nil
}

// plan asks the class for what the subscription has added, and takes over its names in place of the request's: they are shared.
func (s *stream) plan(sub *subscription, added []string) {
	listed := sub.wildcard || sub.url == resource.VirtualHostType
	if len(added) == 0 && (!listed || sub.planned) {
		return
	}
	s.account.planning.Lock()
	s.class.Plan(s, sub.url, listed, added)
	s.account.planning.Unlock()
	sub.planned = listed || sub.planned
	current := s.class.Snapshot().Type(sub.url)
	for _, name := range added {
		if item, _ := current.Get(name); item.Blob != nil {
			sub.names.intern(item.Blob.Name())
		}
	}
}

// doubt notes that the client may still hold what it was told to remove, as far as there is room for such names.
func (s *stream) doubt(sub *subscription, name string) {
	if !sub.unsure.has(name) && s.charge(name) == "" {
		sub.unsure.add(name)
	}
}

// trust ends doubt.
func (s *stream) trust(sub *subscription, name string) {
	if sub.unsure.len() > 0 && sub.unsure.has(name) {
		sub.unsure.remove(name)
		s.discharge(name)
	}
}

// charge counts a name that is kept beside a subscription's, and charges the account for it. It returns why it does
// not.
func (s *stream) charge(name string) (refused string) {
	if s.count(name) != nil {
		s.uncount(name)
		return tooManyNames
	}
	if refused = s.spend(len(name) + nameCost); refused != "" {
		s.uncount(name)
	}
	return refused
}

// discharge takes a charge back.
func (s *stream) discharge(name string) {
	s.uncount(name)
	s.refund(name)
}

// count counts a name against what one stream may keep, whoever it is shared with.
func (s *stream) count(name string) error {
	if s.nameBytes += len(name) + nameOverhead; s.nameBytes > s.server.maxSubscribedBytes {
		return errTooManyNames
	}
	return nil
}

const tooManyNames = "too many resource names subscribed to on one stream"

var errTooManyNames = status.Error(codes.ResourceExhausted, tooManyNames)

func (s *stream) uncount(name string) { s.nameBytes -= len(name) + nameOverhead }

func (s *stream) unsubscribe(sub *subscription, names []string) {
	var dropped []string
	for _, name := range names {
		if !sub.names.remove(name) {
			continue
		}
		s.uncount(name)
		if sub.costly.remove(name) {
			s.refund(name)
		}
		sub.absent.remove(name)
		sub.fresh.remove(name)
		sub.deferred.remove(name)
		if !sub.wildcard {
			sub.dirty.remove(name)
			delete(sub.withheld, name)
		}
		if sub.url == resource.RouteType {
			s.closeTable(name)
		}
		dropped = append(dropped, name)
	}
	for part := range slices.Chunk(dropped, planAtOnce) {
		s.account.planning.Lock()
		s.class.Release(s, sub.url, part)
		s.account.planning.Unlock()
	}
}

// nameOverhead is what a name counts beside its text against the limit of one stream, which it does whether it is
// shared or not. What it costs, the account is charged: see nameCost.
const nameOverhead = 64

// maxTypes bounds the types of one stream, those that are served and those that are not, and maxTypeURLBytes the names of the latter: Envoy
// asks for fewer than ten, the longest of which has 90 bytes.
const (
	maxTypes        = 16
	maxTypeURLBytes = 256
)

// sendOrder of types on one stream: clusters before what refers to them, endpoints right after their clusters, and names after the listeners
// at the addresses they stand for.
var sendOrder = []string{
	resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType, resource.VirtualHostType,
	resource.SecretType, resource.ExtensionConfigType, ndsv1.NameTableType,
}

// rank is a type's place in the order; types that it does not name come last.
func rank(url string) int {
	if i := slices.Index(sendOrder, url); i >= 0 {
		return i
	}
	return len(sendOrder)
}

// of returns the subscription to a type, nil if there is none.
func (s *stream) of(url string) *subscription {
	for _, sub := range s.types {
		if sub.url == url {
			return sub
		}
	}
	return nil
}

// typeOf returns the subscription of a type and whether it is new. The types of a stream are kept in the order they are sent in.
func (s *stream) typeOf(url string) (sub *subscription, isNew bool, err error) {
	if sub := s.of(url); sub != nil {
		return sub, false, nil
	}
	if len(s.types) >= maxTypes {
		return nil, false, status.Error(codes.ResourceExhausted, "too many types on one stream")
	}
	sub = &subscription{url: url, metrics: s.server.metrics.of(url)}
	sub.cancel = func() {
		s.lock()
		defer s.unlock()
		sub.open = watch{}
	}
	at := slices.IndexFunc(s.types, func(other *subscription) bool {
		a, b := rank(other.url), rank(url)
		return a > b || a == b && other.url > url
	})
	if at < 0 {
		at = len(s.types)
	}
	s.types = slices.Insert(s.types, at, sub)
	return sub, true, nil
}
