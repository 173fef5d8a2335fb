package quota

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/xds-server/internal/class"
)

// Account counts what one identity uses. An identity is a verified SPIFFE ID, or an address on the plaintext port.
// Quotas.mu guards the account.
type Account struct {
	quotas *Quotas
	// Planning is held while names are planned for a stream of the account: however many streams an identity has, only
	// one of them plans at a time.
	Planning sync.Mutex
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
	// Unsent is the part of the unsent bytes that the account uses; UnsentBytes guards it.
	Unsent Share
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

// workloads is the number of workloads that the mesh has of the identity. For an address it is a number that makes
// streamsAllowed the limit for addresses.
func (a *Account) workloads() int {
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
func (a *Account) streamsAllowed(workloads int) int {
	return max(a.quotas.minStreams, streamsPerWorkload*workloads)
}

func (a *Account) streamsText(n, allowed, workloads int) string {
	if a.address {
		return fmt.Sprintf("%s has %d streams, %d are allowed to one address on the plaintext port (--max-address-streams)", a.id, n, allowed)
	}
	return fmt.Sprintf("%s has %d streams, %d are allowed: %d for each of the %d workloads that the mesh has of it, at least %d; "+
		"a WorkloadEntry for each workload that is not in the mesh raises that",
		a.id, n, allowed, streamsPerWorkload, workloads, a.quotas.minStreams)
}

// Close reverses Open when a stream ends. key is the class of the stream, nil if it has not sent its node.
func (a *Account) Close(key *class.Key) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.streams--
	if key != nil {
		a.known--
		a.leaveClass(key, false)
	}
}

// Retract reverses Admit.
func (a *Account) Retract(key *class.Key) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.known--
	a.leaveClass(key, true)
}

// Admit counts a stream that has sent its node, and its class. It refuses the stream if the account has too many known
// streams or classes.
func (a *Account) Admit(node string, key *class.Key) error {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	workloads := a.workloads()
	if allowed := a.streamsAllowed(workloads); a.known >= allowed {
		return a.Refuse(node, BudgetStreams, a.streamsText(a.known+1, allowed, workloads))
	}
	if err := a.checkClasses(node, key, workloads); err != nil {
		return err
	}
	a.known++
	a.addToClass(key)
	return nil
}

// checkClasses returns an error if the class would be one too many.
func (a *Account) checkClasses(node string, key *class.Key, workloads int) error {
	hash := key.Hash()
	if a.classes[hash] != nil {
		return nil
	}
	a.expire(a.quotas.clock.Now())
	allowed, allowedPlans := max(minClasses, classesPerWorkload*workloads), max(minPlans, classesPerWorkload*workloads)
	if len(a.classes) >= allowed {
		return a.Refuse(node, BudgetClasses,
			fmt.Sprintf("%s has proxies of %d classes, %d are allowed: %d for each of the %d workloads that the mesh "+
				"has of it, at least %d; what its proxies say of themselves differs more than that (/debug/class shows the classes)",
				a.id, len(a.classes)+1, allowed, classesPerWorkload, workloads, minClasses))
	}
	plans := map[class.Hash]struct{}{planOf(key): {}}
	for _, use := range a.classes {
		plans[use.plan] = struct{}{}
	}
	if len(plans) > allowedPlans {
		return a.Refuse(node, BudgetClasses,
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
func (a *Account) addToClass(key *class.Key) {
	hash := key.Hash()
	if a.classes[hash] == nil {
		a.classes[hash] = &classUse{plan: planOf(key)}
	}
	a.classes[hash].streams++
}

// leaveClass reverses addToClass. moved is true if the stream goes on in another class: the old one does not linger
// then.
func (a *Account) leaveClass(key *class.Key, moved bool) {
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
func (a *Account) expire(now time.Time) {
	for hash, use := range a.classes {
		if use.streams == 0 && now.Sub(use.unusedSince) >= classLinger {
			delete(a.classes, hash)
		}
	}
}

// Reclassify counts a stream for another class. It refuses nothing, because it is a change of the mesh that has moved
// the stream.
func (a *Account) Reclassify(from, to *class.Key) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.leaveClass(from, true)
	a.addToClass(to)
}

// ChargeNames charges bytes of names, or returns the reason why it refuses: the identity would be over its limit; or
// all identities together would be over theirs, and this one has more than an equal share.
func (a *Account) ChargeNames(n int64) (refused string) {
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

// RefundNames reverses ChargeNames.
func (a *Account) RefundNames(n int64) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.names -= n
	a.quotas.names.Add(-n)
}

// AddWork charges a request that was handled, in names.
func (a *Account) AddWork(names int) {
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	a.chargeWork(names)
}

// chargeWork charges names and returns how long the identity's next request has to wait. The caller holds Quotas.mu.
func (a *Account) chargeWork(names int) time.Duration {
	perSecond := float64(workPerSecond + workPerWorkload*a.workloads())
	return a.work.take(a.quotas.clock.Now(), float64(names), perSecond, workBurst*perSecond)
}

// Throttle waits until the identity may have another request of so many bytes handled. Meanwhile, gRPC's flow control
// stops the client.
func (a *Account) Throttle(ctx context.Context, bytes int) error {
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

// Refuse reports a refusal and returns the error that ends the stream.
func (a *Account) Refuse(node string, budget Budget, reason string) error {
	a.quotas.refused(Refusal{NodeID: node, Identity: a.id, Budget: budget, Reason: reason})
	return status.Error(codes.ResourceExhausted, reason)
}
