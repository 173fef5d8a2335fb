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

// Defaults of what one identity may use. All Pods of a Deployment share one identity, so all but the floors grow with
// the number of workloads that the mesh has of the identity's namespace and service account.
const (
	// DefaultMinStreams is how many streams any identity may have: some gRPC programs of one workload, each with a
	// stream of its own, and restarts whose old connection has yet to be noticed.
	DefaultMinStreams = 16
	// DefaultMaxAddressStreams is DefaultMinStreams for an address on the plaintext port, behind which any number of
	// proxies may be.
	DefaultMaxAddressStreams = 16 << 10
	// DefaultMaxNamesBytes is what the names of all streams may take together: an eighth of the memory that deploy/
	// gives the process.
	DefaultMaxNamesBytes = 256 << 20

	// streamsPerWorkload are Envoy's, its successor's while that starts beside it, and one whose connection was lost
	// and not noticed yet.
	streamsPerWorkload = 3
	// silentStreams is how many streams beyond the limit are open while they have not said which proxy they are of, so
	// that those which are refused can be named.
	unidentifiedStreams = 16
	// minClasses and classesPerWorkload bound the classes: a workload's before and after a change of its labels.
	minClasses, classesPerWorkload = 8, 2
	// minPlans bounds the whole plans that an identity's classes stand on, one for each combination of locality,
	// network, interception and the like: each takes as much as the mesh has resources.
	minPlans = 4
	// identityNameBytes and streamNameBytes are what an identity's names may take: 4 MiB and 256 KiB for each stream
	// allowed. The names that a proxy of a mesh of 10,000 services asks for are its class's, which cost nothing here;
	// 256 KiB are 330 names that it asks for beside.
	identityNameBytes, streamNameBytes = 4 << 20, 256 << 10
	// nameCost is what a name takes beside its text that is not its class's own. Measured by
	// TestNamesAreChargedWhatTheyCost: 270 to 350 bytes for what does not exist, 790 for virtual hosts that wait for
	// their route configuration.
	nameCost = 704
	// opensPerStream is how often each allowed stream may be opened at once, and openEvery after what time once more.
	opensPerStream, openEvery = 4, 5 * time.Second
	// Requests are weighed in names that are looked up one by one, at some 10 µs each: an identity may have
	// workPerSecond of them looked up, and workPerWorkload more for each workload; half a second's worth at once. That
	// is a tenth of a processor.
	workPerSecond, workPerWorkload, workBurst = 10_000, 1_000, 0.5
	// comparedNames and requestBytes weigh as much as one name that is looked up.
	comparedNames, requestBytes = 64, 16 << 10
	// classLinger is how long a class counts after its last stream has left: so long the engine keeps it.
	classLinger = time.Minute
	// unknownWorkloads stands for the number of workloads while there is no mesh to count them in.
	unknownWorkloads = 1 << 10
	// manyAccounts is how many identities without a stream are remembered at least.
	manyAccounts = 1 << 10
)

// Budget names what a stream was refused for; it is a metric's label.
type Budget string

// Budgets of an identity.
const (
	BudgetStreams Budget = "streams"
	BudgetOpens   Budget = "stream_rate"
	BudgetClasses Budget = "classes"
	BudgetNames   Budget = "names"
)

// quotas are the budgets of all identities. Locks: mu may be taken while a stream's mutex is held.
type quotas struct {
	clock      clock.Clock
	minStreams int
	addresses  int
	maxNames   int64
	// state is the newest state of the mesh.
	state   func() *mesh.Snapshot
	refused func(Refusal)
	// names is what the names of all identities take.
	names atomic.Int64

	mu       sync.Mutex
	accounts map[string]*account
}

// account is what one identity uses: a verified SPIFFE ID, or an address on the plaintext port. The quotas' mutex
// guards it.
type account struct {
	quotas *quotas
	// planning is held while names are planned for a stream of the account: one identity has one turn among the others,
	// however many streams.
	planning sync.Mutex
	// id is the SPIFFE ID, or "address <address>".
	id string
	// address is true for an address. namespace and serviceAccount are the identity's; both are "" for an address, and
	// for an identity that is no workload's.
	address                   bool
	namespace, serviceAccount string
	// streams are open, known are those of them whose proxy is known.
	streams, known int
	classes        map[class.Hash]*classUse
	names          int64
	opens, work    bucket
	// unsent is what is under way to its proxies; the budget guards it.
	unsent share
}

// classUse is a class that an identity's streams are of.
type classUse struct {
	streams     int
	unusedSince time.Time
	plan        class.Hash
}

// bucket is a token bucket: at is when it will be full.
type bucket struct{ at time.Time }

// take takes n tokens, of which perSecond flow in and burst fit, and returns how long it is until they are there.
func (b *bucket) take(now time.Time, n, perSecond, burst float64) time.Duration {
	if b.at.Before(now) {
		b.at = now
	}
	b.at = b.at.Add(seconds(n / perSecond))
	return b.at.Sub(now) - seconds(burst/perSecond)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// accountOf finds the caller's account.
func (q *quotas) accountOf(ctx context.Context, caller *auth.Peer) *account {
	id := accountID(ctx, caller)
	if known, ok := q.accounts[id]; ok {
		return known
	}
	if len(q.accounts) >= manyAccounts {
		q.forget()
	}
	a := &account{quotas: q, id: id, address: caller == nil, classes: map[class.Hash]*classUse{}}
	if caller != nil {
		a.namespace, a.serviceAccount, _ = auth.WorkloadOf(caller.ID)
	}
	q.accounts[id] = a
	return a
}

// accountID is account.id of a caller, who is nil on the plaintext port.
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

// forget drops the accounts that use nothing and have used little lately.
func (q *quotas) forget() {
	now := q.clock.Now()
	for id, a := range q.accounts {
		if a.expire(now); a.streams == 0 && len(a.classes) == 0 && a.opens.at.Before(now) && a.work.at.Before(now) {
			delete(q.accounts, id)
		}
	}
}

// workloads is how many the mesh has of the identity; an address counts as so many as fit its limit of streams.
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

// streamsAllowed is how many streams so many workloads' identity may have.
func (a *account) streamsAllowed(workloads int) int {
	return max(a.quotas.minStreams, streamsPerWorkload*workloads)
}

// open counts a stream that has begun, unless there are too many.
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
		a.opens.at = a.opens.at.Add(-openEvery / time.Duration(allowed)) // what is refused does not count
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
	return fmt.Sprintf("%s has %d streams, %d are allowed: %d for each of the %d workloads that the mesh has of it, at least %d (--min-identity-streams)",
		a.id, n, allowed, streamsPerWorkload, workloads, a.quotas.minStreams)
}

// close takes back what a stream of the account has counted for, once for each open. c is its class, nil if its proxy
// was never known.
func (a *account) close(c *plan.Class) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.streams--
	if c != nil {
		a.known--
		a.leaveClass(c.Key(), false)
	}
}

// retract takes an admission back.
func (a *account) retract(key *class.Key) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.known--
	a.leaveClass(key, true)
}

// admit counts a stream whose proxy is known now, and joins its class, unless there are too many of one or the other.
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

// joins reports an error if a class is one too many.
func (a *account) checkClasses(node string, key *class.Key, workloads int) error {
	hash := key.Hash()
	if a.classes[hash] != nil {
		return nil
	}
	a.expire(a.quotas.clock.Now())
	allowed, whole := max(minClasses, classesPerWorkload*workloads), max(minPlans, classesPerWorkload*workloads)
	if len(a.classes) >= allowed {
		return a.refuse(node, BudgetClasses, fmt.Sprintf("%s has proxies of %d classes, %d are allowed: %d for each of the %d workloads that the mesh "+
			"has of it, at least %d; what its proxies say of themselves differs more than that (/debug/class shows the classes)",
			a.id, len(a.classes)+1, allowed, classesPerWorkload, workloads, minClasses))
	}
	plans := map[class.Hash]struct{}{planOf(key): {}}
	for _, use := range a.classes {
		plans[use.plan] = struct{}{}
	}
	if len(plans) > whole {
		return a.refuse(node, BudgetClasses, fmt.Sprintf("%s has proxies of %d kinds, which differ in locality, network, interception or the like, "+
			"%d are allowed: %d for each of the %d workloads that the mesh has of it, at least %d (/debug/class shows the classes)",
			a.id, len(plans), whole, classesPerWorkload, workloads, minPlans))
	}
	return nil
}

// planOf identifies the whole plan that a class stands on.
func planOf(key *class.Key) class.Hash {
	if shared := key.OfMesh(); shared != nil {
		return shared.Hash()
	}
	return key.OfNamespace().Hash()
}

// join counts a stream of a class.
func (a *account) addToClass(key *class.Key) {
	hash := key.Hash()
	if a.classes[hash] == nil {
		a.classes[hash] = &classUse{plan: planOf(key)}
	}
	a.classes[hash].streams++
}

// leave is the opposite of join. moved is true where the mesh has made the proxy another class: the old one is not
// charged any more.
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

// expire forgets the classes that the engine no longer keeps.
func (a *account) expire(now time.Time) {
	for hash, use := range a.classes {
		if use.streams == 0 && now.Sub(use.unusedSince) >= classLinger {
			delete(a.classes, hash)
		}
	}
}

// regroup moves a stream's count to another class. The mesh decides it, so that nothing is refused.
func (a *account) reclassify(from, to *class.Key) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.leaveClass(from, true)
	a.addToClass(to)
}

// spend counts bytes of names and returns why it does not: what is over the identity's budget is refused; what is over
// that of all, only if the identity has more than an equal share of it.
func (a *account) chargeNames(n int64) (refused string) {
	q := a.quotas
	q.mu.Lock()
	defer q.mu.Unlock()
	allowed := int64(identityNameBytes + streamNameBytes*a.streamsAllowed(a.workloads()))
	if a.names+n > allowed {
		return fmt.Sprintf("%s subscribes to names that take %d KiB, %d KiB are allowed: %d MiB, and %d KiB for each stream that it may have; "+
			"names that the mesh lists for the proxy do not count, those that do not exist do (--min-identity-streams)",
			a.id, (a.names+n)>>10, allowed>>10, identityNameBytes>>20, streamNameBytes>>10)
	}
	if total := q.names.Load(); total+n > q.maxNames && a.names+n > q.maxNames/int64(max(len(q.accounts), 1)) {
		return fmt.Sprintf("the names that proxies subscribe to take %d MiB, %d are allowed to all together, and %s has more than its share of them "+
			"(--max-names-mib)", (total+n)>>20, q.maxNames>>20, a.id)
	}
	a.names += n
	q.names.Add(n)
	return ""
}

// refund takes bytes of names back.
func (a *account) refundNames(n int64) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.names -= n
	a.quotas.names.Add(-n)
}

// worked weighs a request, in names.
func (a *account) addWork(names int) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.chargeWork(names)
}

// weigh returns how long the identity's next request has to wait.
func (a *account) chargeWork(names int) time.Duration {
	perSecond := float64(workPerSecond + workPerWorkload*a.workloads())
	return a.work.take(a.quotas.clock.Now(), float64(names), perSecond, workBurst*perSecond)
}

// pace waits until the identity may have another request of so many bytes read. What is not read, gRPC's flow control
// leaves with the client.
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

// refuse notes a refusal and makes the error that ends the stream.
func (a *account) refuse(node string, b Budget, reason string) error {
	a.quotas.refused(Refusal{NodeID: node, Identity: a.id, Budget: b, Reason: reason})
	return status.Error(codes.ResourceExhausted, reason)
}

// excess is how many streams all identities have beyond their workloads.
func (q *quotas) excess() (n int) {
	for _, of := range q.excesses() {
		n += of
	}
	return n
}

// excesses are the streams that identities have beyond one for each workload, or beyond one if the mesh has none of
// them. Addresses have none.
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
