package serve

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Defaults of the limits of one identity. All Pods of a Deployment share one identity. So the limits, apart from their
// minimum, grow with the number of workloads that the mesh has of the identity's namespace and service account.
const (
	// DefaultMinStreams is how many streams any identity may have. It allows for some proxyless gRPC clients in one
	// workload, each with a stream of its own, and for restarts whose old connection is not closed yet.
	DefaultMinStreams = 16
	// DefaultMaxAddressStreams is how many streams one address may have on the plaintext port. Any number of proxies
	// may be behind it.
	DefaultMaxAddressStreams = 16 << 10
	// DefaultMaxNamesBytes bounds the names of all streams together: an eighth of the memory that deploy/ gives the
	// process.
	DefaultMaxNamesBytes = 256 << 20

	// streamsPerWorkload allows for Envoy, a second Envoy while it takes over in a hot restart, and a lost connection
	// that is not closed yet.
	streamsPerWorkload = 3
	// unidentifiedStreams is how many streams above the limit may be open before they have sent their node, so that a
	// refusal can name the proxy.
	unidentifiedStreams = 16
	// minClasses and classesPerWorkload bound the classes: one for the labels of a workload before a change, one for
	// those after it.
	minClasses, classesPerWorkload = 8, 2
	// minPlans bounds the mesh-wide or namespace-wide plans that the classes of an identity stand on. There is one for
	// each combination of locality, network, interception mode and the like, and each may have as many resources as the
	// mesh.
	minPlans = 4
	// identityNameBytes and streamNameBytes bound the names of an identity: 4 MiB, and 256 KiB for each stream that it
	// may have. Names that the class lists are free, even the many of a mesh of 10,000 services; 256 KiB are some 330
	// other names.
	identityNameBytes, streamNameBytes = 4 << 20, 256 << 10
	// nameCost is what a name that the class does not list is charged beside its text. TestNamesAreChargedWhatTheyCost
	// measures 270 to 350 bytes for names that do not exist, and 790 for virtual hosts that wait for their route
	// configuration.
	nameCost = 704
	// Each stream that an identity may have can be opened opensPerStream times at once, and then once more every
	// openEvery.
	opensPerStream, openEvery = 4, 5 * time.Second
	// Requests are measured in names that are looked up one by one, at some 10 µs each. An identity may have
	// workPerSecond names looked up in a second and workPerWorkload more for each workload, with a burst of half a
	// second: a tenth of a processor.
	workPerSecond, workPerWorkload, workBurst = 10_000, 1_000, 0.5
	// comparedNames names that are only compared, or requestBytes bytes of a request, count as one name that is looked
	// up.
	comparedNames, requestBytes = 64, 16 << 10
	// classLinger is how long a class counts after its last stream has ended; the engine keeps it for as long.
	classLinger = time.Minute
	// unknownWorkloads is the number of workloads that is assumed before the first snapshot.
	unknownWorkloads = 1 << 10
	// manyAccounts is the least number of accounts at which unused ones are deleted.
	manyAccounts = 1 << 10
)

// Budget is what a stream was refused for; it is the label of a metric.
type Budget string

// Budgets of an identity.
const (
	BudgetStreams Budget = "streams"
	BudgetOpens   Budget = "stream_rate"
	BudgetClasses Budget = "classes"
	BudgetNames   Budget = "names"
)

// quotas holds the accounts of all identities. A stream's mutex may be held when mu is taken, never the other way
// round.
type quotas struct {
	clock      clock.Clock
	minStreams int
	addresses  int
	maxNames   int64
	// state returns the newest snapshot of the mesh.
	state   func() *mesh.Snapshot
	refused func(Refusal)
	// names counts the bytes that the names of all accounts are charged.
	names atomic.Int64

	mu       sync.Mutex
	accounts map[string]*account
	// forgetAt is the number of accounts at which unused ones are deleted: twice as many as were left the last time, so
	// that a new account costs no more however many there are.
	forgetAt int
}

// account counts what one identity uses. An identity is a verified SPIFFE ID, or an address on the plaintext port.
// quotas.mu guards the account.
type account struct {
	quotas *quotas
	// planning is held while names are planned for a stream of the account: however many streams an identity has, only
	// one of them plans at a time.
	planning sync.Mutex
	// id is the SPIFFE ID, or "address <address>".
	id string
	// address is true if the account is an address. namespace and serviceAccount are those of the SPIFFE ID; they are
	// "" for an address and for identities of other forms.
	address                   bool
	namespace, serviceAccount string
	// streams counts the open streams, known those among them that have sent their node.
	streams, known int
	classes        map[class.Hash]*classUse
	names          int64
	opens, work    bucket
	// unsent is the part of the budget of unsent bytes that the account uses; budget.mu guards it.
	unsent share
}

// classUse is the use of one class by the streams of an account.
type classUse struct {
	streams     int
	unusedSince time.Time
	plan        class.Hash
}

// bucket is a token bucket. at is when it will be full.
type bucket struct{ at time.Time }

// take takes n tokens and returns how long it is until they are there. perSecond tokens flow in, and the bucket holds
// burst of them.
func (b *bucket) take(now time.Time, n, perSecond, burst float64) time.Duration {
	if b.at.Before(now) {
		b.at = now
	}
	b.at = b.at.Add(seconds(n / perSecond))
	return b.at.Sub(now) - seconds(burst/perSecond)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// accountOf returns the caller's account and makes it if there is none. The caller holds mu.
func (q *quotas) accountOf(ctx context.Context, caller *auth.Peer) *account {
	id := accountID(ctx, caller)
	if known, ok := q.accounts[id]; ok {
		return known
	}
	if len(q.accounts) >= max(q.forgetAt, manyAccounts) {
		q.forget()
	}
	a := &account{quotas: q, id: id, address: caller == nil, classes: map[class.Hash]*classUse{}}
	if caller != nil {
		a.namespace, a.serviceAccount, _ = auth.WorkloadOf(caller.ID)
	}
	q.accounts[id] = a
	return a
}

// accountID is the id of the account of a caller, who is nil on the plaintext port.
func accountID(ctx context.Context, caller *auth.Peer) string {
	if caller != nil {
		return caller.ID.String()
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "address "
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		host = p.Addr.String()
	}
	return "address " + host
}

// forget deletes accounts without streams, classes and recent requests. The caller holds mu.
func (q *quotas) forget() {
	now := q.clock.Now()
	for id, a := range q.accounts {
		if a.expire(now); a.streams == 0 && len(a.classes) == 0 && a.opens.at.Before(now) && a.work.at.Before(now) {
			delete(q.accounts, id)
		}
	}
	q.forgetAt = 2 * len(q.accounts)
}

// workloads is the number of workloads that the mesh has of the identity. For an address it is a number that makes
// streamsAllowed the limit for addresses.
func (a *account) workloads() int {
	switch state := a.quotas.state(); {
	case a.address:
		return a.quotas.addresses / streamsPerWorkload
	case state.Revision() == nil:
		return unknownWorkloads
	default:
		return state.WorkloadsOf(a.namespace, a.serviceAccount)
	}
}

// streamsAllowed is how many streams an identity with so many workloads may have.
func (a *account) streamsAllowed(workloads int) int {
	return max(a.quotas.minStreams, streamsPerWorkload*workloads)
}

// open counts a new stream. It refuses the stream if the account has too many, or opens them too often.
func (q *quotas) open(ctx context.Context, caller *auth.Peer) (*account, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.accountOf(ctx, caller)
	workloads := a.workloads()
	allowed := a.streamsAllowed(workloads)
	if a.streams >= allowed+unidentifiedStreams {
		return nil, a.refuse("", BudgetStreams, a.streamsText(a.streams+1, allowed, workloads))
	}
	if wait := a.opens.take(q.clock.Now(), 1, float64(allowed)/openEvery.Seconds(), float64(allowed*opensPerStream)); wait > 0 {
		a.opens.at = a.opens.at.Add(-openEvery / time.Duration(allowed)) // a refused stream takes no token
		return nil, a.refuse("", BudgetOpens, fmt.Sprintf("%s opens streams too often: more than %d at once and one more every %s; "+
			"a proxy that reconnects in a loop says why in its log", a.id, allowed*opensPerStream, openEvery/time.Duration(allowed)))
	}
	a.streams++
	return a, nil
}

func (a *account) streamsText(n, allowed, workloads int) string {
	if a.address {
		return fmt.Sprintf("%s has %d streams, %d are allowed to one address on the plaintext port (--max-address-streams)", a.id, n, allowed)
	}
	return fmt.Sprintf("%s has %d streams, %d are allowed: %d for each of the %d workloads that the mesh has of it, at least %d; "+
		"a WorkloadEntry for each workload that is not in the mesh raises that",
		a.id, n, allowed, streamsPerWorkload, workloads, a.quotas.minStreams)
}

// close reverses open when a stream ends. c is the class of the stream, nil if it has not sent its node.
func (a *account) close(c *plan.Class) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.streams--
	if c != nil {
		a.known--
		a.leaveClass(c.Key(), false)
	}
}

// retract reverses admit.
func (a *account) retract(key *class.Key) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.known--
	a.leaveClass(key, true)
}

// admit counts a stream that has sent its node, and its class. It refuses the stream if the account has too many known
// streams or classes.
func (a *account) admit(node string, key *class.Key) error {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	workloads := a.workloads()
	if allowed := a.streamsAllowed(workloads); a.known >= allowed {
		return a.refuse(node, BudgetStreams, a.streamsText(a.known+1, allowed, workloads))
	}
	if err := a.checkClasses(node, key, workloads); err != nil {
		return err
	}
	a.known++
	a.addToClass(key)
	return nil
}

// checkClasses returns an error if the class would be one too many.
func (a *account) checkClasses(node string, key *class.Key, workloads int) error {
	hash := key.Hash()
	if a.classes[hash] != nil {
		return nil
	}
	a.expire(a.quotas.clock.Now())
	allowed, allowedPlans := max(minClasses, classesPerWorkload*workloads), max(minPlans, classesPerWorkload*workloads)
	if len(a.classes) >= allowed {
		return a.refuse(node, BudgetClasses,
			fmt.Sprintf("%s has proxies of %d classes, %d are allowed: %d for each of the %d workloads that the mesh "+
				"has of it, at least %d; what its proxies say of themselves differs more than that (/debug/class shows the classes)",
				a.id, len(a.classes)+1, allowed, classesPerWorkload, workloads, minClasses))
	}
	plans := map[class.Hash]struct{}{planOf(key): {}}
	for _, use := range a.classes {
		plans[use.plan] = struct{}{}
	}
	if len(plans) > allowedPlans {
		return a.refuse(node, BudgetClasses,
			fmt.Sprintf("%s has proxies of %d kinds, which differ in locality, network, interception or the like, "+
				"%d are allowed: %d for each of the %d workloads that the mesh has of it, at least %d (/debug/class shows the classes)",
				a.id, len(plans), allowedPlans, classesPerWorkload, workloads, minPlans))
	}
	return nil
}

// planOf identifies the mesh-wide or namespace-wide plan that a class stands on.
func planOf(key *class.Key) class.Hash {
	if shared := key.OfMesh(); shared != nil {
		return shared.Hash()
	}
	return key.OfNamespace().Hash()
}

// addToClass counts a stream of a class.
func (a *account) addToClass(key *class.Key) {
	hash := key.Hash()
	if a.classes[hash] == nil {
		a.classes[hash] = &classUse{plan: planOf(key)}
	}
	a.classes[hash].streams++
}

// leaveClass reverses addToClass. moved is true if the stream goes on in another class: the old one does not linger
// then.
func (a *account) leaveClass(key *class.Key, moved bool) {
	use := a.classes[key.Hash()]
	if use == nil {
		return
	}
	if use.streams--; use.streams > 0 {
		return
	}
	if use.unusedSince = a.quotas.clock.Now(); moved {
		delete(a.classes, key.Hash())
	}
}

// expire forgets the classes that the engine does not keep any more.
func (a *account) expire(now time.Time) {
	for hash, use := range a.classes {
		if use.streams == 0 && now.Sub(use.unusedSince) >= classLinger {
			delete(a.classes, hash)
		}
	}
}

// reclassify counts a stream for another class. It refuses nothing, because it is a change of the mesh that has moved
// the stream.
func (a *account) reclassify(from, to *class.Key) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.leaveClass(from, true)
	a.addToClass(to)
}

// chargeNames charges bytes of names, or returns the reason why it refuses: the identity would be over its limit; or
// all identities together would be over theirs, and this one has more than an equal share.
func (a *account) chargeNames(n int64) (refused string) {
	q := a.quotas
	q.mu.Lock()
	defer q.mu.Unlock()
	allowed := int64(identityNameBytes + streamNameBytes*a.streamsAllowed(a.workloads()))
	if a.names+n > allowed {
		return fmt.Sprintf("%s subscribes to names that take %d KiB, %d KiB are allowed: %d MiB, and %d KiB for each stream that it may have; "+
			"names that the mesh lists for the proxy do not count, those that do not exist do",
			a.id, (a.names+n)>>10, allowed>>10, identityNameBytes>>20, streamNameBytes>>10)
	}
	if total := q.names.Load(); total+n > q.maxNames && a.names+n > q.maxNames/int64(max(len(q.accounts), 1)) {
		return fmt.Sprintf("the names that proxies subscribe to take %d MiB, %d are allowed to all together, and %s has more than its share of "+
			"them; names that the mesh lists for a proxy do not count", (total+n)>>20, q.maxNames>>20, a.id)
	}
	a.names += n
	q.names.Add(n)
	return ""
}

// refundNames reverses chargeNames.
func (a *account) refundNames(n int64) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.names -= n
	a.quotas.names.Add(-n)
}

// addWork charges a request that was handled, in names.
func (a *account) addWork(names int) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.chargeWork(names)
}

// chargeWork charges names and returns how long the identity's next request has to wait. The caller holds quotas.mu.
func (a *account) chargeWork(names int) time.Duration {
	perSecond := float64(workPerSecond + workPerWorkload*a.workloads())
	return a.work.take(a.quotas.clock.Now(), float64(names), perSecond, workBurst*perSecond)
}

// throttle waits until the identity may have another request of so many bytes handled. Meanwhile, gRPC's flow control
// stops the client.
func (a *account) throttle(ctx context.Context, bytes int) error {
	a.quotas.mu.Lock()
	wait := a.chargeWork(1 + bytes/requestBytes)
	a.quotas.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-a.quotas.clock.After(wait):
		return nil
	}
}

// refuse reports a refusal and returns the error that ends the stream.
func (a *account) refuse(node string, budget Budget, reason string) error {
	a.quotas.refused(Refusal{NodeID: node, Identity: a.id, Budget: budget, Reason: reason})
	return status.Error(codes.ResourceExhausted, reason)
}

// excess is how many streams all identities together have beyond their workloads.
func (q *quotas) excess() (n int) {
	for _, of := range q.excesses() {
		n += of
	}
	return n
}

// excesses lists how many streams each identity has beyond one for each workload, or beyond one if it has no workload.
// Addresses have none.
func (q *quotas) excesses() map[*account]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	found := map[*account]int{}
	for _, a := range q.accounts {
		if a.address || a.streams == 0 {
			continue
		}
		if n := a.streams - max(a.workloads(), 1); n > 0 {
			found[a] = n
		}
	}
	return found
}
