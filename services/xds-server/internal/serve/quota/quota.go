// Package quota bounds what the clients of an xds-server may use, by identity: streams, classes, names, requests, and
// bytes that the network has not taken yet. It remembers whom it has refused.
package quota

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
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
	// NameCost is what a name that the class does not list is charged beside its text. TestNamesAreChargedWhatTheyCost
	// measures 270 to 350 bytes for names that do not exist, and 790 for virtual hosts that wait for their route
	// configuration.
	NameCost = 704
	// Each stream that an identity may have can be opened opensPerStream times at once, and then once more every
	// openEvery.
	opensPerStream, openEvery = 4, 5 * time.Second
	// Requests are measured in names that are looked up one by one, at some 10 µs each. An identity may have
	// workPerSecond names looked up in a second and workPerWorkload more for each workload, with a burst of half a
	// second: a tenth of a processor.
	workPerSecond, workPerWorkload, workBurst = 10_000, 1_000, 0.5
	// ComparedNames names that are only compared, or requestBytes bytes of a request, count as one name that is looked
	// up.
	ComparedNames, requestBytes = 64, 16 << 10
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

// Config of Quotas. All but the limits are required; a limit of 0 is its default.
type Config struct {
	Clock clock.Clock
	// State returns the newest snapshot of the mesh.
	State func() *mesh.Snapshot
	// Refused is called for each refusal. It must not block.
	Refused func(Refusal)
	// MinStreams is how many streams any identity may have, MaxAddressStreams how many one address on the plaintext
	// port may have.
	MinStreams, MaxAddressStreams int
	// MaxNamesBytes bounds the names of all accounts together.
	MaxNamesBytes int
}

// Quotas holds the accounts of all identities. It is safe for concurrent use and calls nobody but Config's functions
// while it is locked.
type Quotas struct {
	clock      clock.Clock
	minStreams int
	addresses  int
	maxNames   int64
	state      func() *mesh.Snapshot
	refused    func(Refusal)
	// names counts the bytes that the names of all accounts are charged.
	names atomic.Int64

	mu       sync.Mutex
	accounts map[string]*Account
	// forgetAt is the number of accounts at which unused ones are deleted: twice as many as were left the last time, so
	// that a new account costs no more however many there are.
	forgetAt int
}

// New makes quotas without accounts.
func New(cfg Config) *Quotas {
	return &Quotas{
		clock: cfg.Clock, accounts: map[string]*Account{}, state: cfg.State, refused: cfg.Refused,
		minStreams: cmp.Or(cfg.MinStreams, DefaultMinStreams), addresses: cmp.Or(cfg.MaxAddressStreams, DefaultMaxAddressStreams),
		maxNames: int64(cmp.Or(cfg.MaxNamesBytes, DefaultMaxNamesBytes)),
	}
}

// NamesBytes is what the names of all accounts are charged.
func (q *Quotas) NamesBytes() int64 { return q.names.Load() }

// accountOf returns the caller's account and makes it if there is none. The caller holds mu.
func (q *Quotas) accountOf(ctx context.Context, caller *auth.Peer) *Account {
	id := accountID(ctx, caller)
	if known, ok := q.accounts[id]; ok {
		return known
	}
	if len(q.accounts) >= max(q.forgetAt, manyAccounts) {
		q.forget()
	}
	a := &Account{quotas: q, id: id, address: caller == nil, classes: map[class.Hash]*classUse{}}
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
func (q *Quotas) forget() {
	now := q.clock.Now()
	for id, a := range q.accounts {
		if a.expire(now); a.streams == 0 && len(a.classes) == 0 && a.opens.at.Before(now) && a.work.at.Before(now) {
			delete(q.accounts, id)
		}
	}
	q.forgetAt = 2 * len(q.accounts)
}

// Open counts a new stream. It refuses the stream if the account has too many, or opens them too often.
func (q *Quotas) Open(ctx context.Context, caller *auth.Peer) (*Account, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.accountOf(ctx, caller)
	workloads := a.workloads()
	allowed := a.streamsAllowed(workloads)
	if a.streams >= allowed+unidentifiedStreams {
		return nil, a.Refuse("", BudgetStreams, a.streamsText(a.streams+1, allowed, workloads))
	}
	if wait := a.opens.take(q.clock.Now(), 1, float64(allowed)/openEvery.Seconds(), float64(allowed*opensPerStream)); wait > 0 {
		a.opens.at = a.opens.at.Add(-openEvery / time.Duration(allowed)) // a refused stream takes no token
		return nil, a.Refuse("", BudgetOpens, fmt.Sprintf("%s opens streams too often: more than %d at once and one more every %s; "+
			"a proxy that reconnects in a loop says why in its log", a.id, allowed*opensPerStream, openEvery/time.Duration(allowed)))
	}
	a.streams++
	return a, nil
}

// Excess is how many streams all identities together have beyond their workloads.
func (q *Quotas) Excess() (n int) {
	for _, of := range q.Excesses() {
		n += of
	}
	return n
}

// Excesses lists how many streams each identity has beyond one for each workload, or beyond one if it has no workload.
// Addresses have none.
func (q *Quotas) Excesses() map[*Account]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	found := map[*Account]int{}
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
