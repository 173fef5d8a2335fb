// Package lease runs work in one replica at a time: in the one that holds a Lease of Kubernetes. It is client-go's
// leader election, which by itself gives the lease back before the work has ended.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// Config are the parts of an Election. All fields but Unread are required.
type Config struct {
	API *rest.Config
	// Namespace and Name are those of the Lease.
	Namespace, Name string
	// Identity names this replica.
	Identity string
	// Duration is after which time without a sign of life another replica takes over.
	Duration time.Duration
	// Work is done while this replica holds the lease. It returns soon after its context ends.
	Work func(context.Context)
	// Account names, in errors, whose right to the lease may be missing, such as "the operator's service account".
	Account string
	// Unread is what Failure returns until the API server has answered; nil if that is no failure.
	Unread error
	// Leads is 1 while Work is done.
	Leads prometheus.Gauge
	Log   *slog.Logger
}

// Election runs Config.Work in one replica at a time.
type Election struct {
	cfg    Config
	client coordinationv1.LeasesGetter

	mu      sync.Mutex
	failure error
	// holder is the replica that holds the lease, as far as is known.
	holder string
}

// New returns an election that Run takes part in.
func New(cfg Config) (*Election, error) {
	api := rest.CopyConfig(cfg.API)
	api.RateLimiter, api.QPS = nil, -1 // a lease must not wait for other requests
	api.Timeout = max(cfg.Duration/3, time.Second)
	client, err := coordinationv1.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	return &Election{cfg: cfg, client: client, failure: cfg.Unread}, nil
}

// Run takes part until ctx ends. It gives the lease back at the end, so that another replica need not wait.
func (e *Election) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := e.term(ctx); err != nil {
			return err
		}
	}
	return nil
}

// term takes part until this replica has held the lease and lost it, or ctx ends. Work ends with ctx and with the
// lease; the lease is renewed until work has ended, and given back then, so that two replicas never work at once. One
// term never overlaps the next.
func (e *Election) term(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logr.Discard()) // Failure says what goes wrong
	working, stop := context.WithCancel(ctx)
	defer stop()
	holding, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	started, ended := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &observedLock{e, func() { stop(); <-ended }, &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: e.cfg.Namespace, Name: e.cfg.Name}, Client: e.client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.cfg.Identity},
		}},
		// The proportions are those of Kubernetes' own controllers.
		LeaseDuration: e.cfg.Duration, RenewDeadline: e.cfg.Duration * 2 / 3, RetryPeriod: e.cfg.Duration * 2 / 15,
		ReleaseOnCancel: true, Name: e.cfg.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) {
				defer close(ended)
				close(started)
				defer context.AfterFunc(held, stop)()
				if working.Err() == nil {
					e.cfg.Leads.Set(1)
					defer e.cfg.Leads.Set(0)
					e.cfg.Work(working)
				}
			},
			OnStoppedLeading: func() {},
			OnNewLeader:      e.observe,
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	workEnded := func() {
		select {
		case <-started:
			<-ended
		default:
		}
	}
	defer context.AfterFunc(ctx, func() { workEnded(); release() })()
	elector.Run(holding)
	stop()
	workEnded()
	return nil
}

func (e *Election) observe(identity string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.holder != identity && identity != e.cfg.Identity {
		e.cfg.Log.Info("another replica holds the lease", "lease", e.lease(), "replica", identity)
	}
	e.holder = identity
}

func (e *Election) lease() string { return e.cfg.Namespace + "/" + e.cfg.Name }

// Holder is the Identity of the replica that holds the lease, "" while none is known.
func (e *Election) Holder() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holder
}

// Failure says why this replica can neither lead nor follow; nil if it can.
func (e *Election) Failure() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failure
}

// observedLock tells the election of failed requests.
type observedLock struct {
	election *Election
	// end is called before the lease is given back. It ends the work and waits for it.
	end func()
	resourcelock.Interface
}

// Get implements resourcelock.Interface.
func (o *observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := o.Interface.Get(ctx)
	return record, raw, o.election.note(ctx, "get", err)
}

// Create implements resourcelock.Interface.
func (o *observedLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return o.election.note(ctx, "create", o.Interface.Create(ctx, r))
}

// Update implements resourcelock.Interface.
func (o *observedLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == "" { // the elector gives the lease back
		o.end()
	}
	return o.election.note(ctx, "update", o.Interface.Update(ctx, r))
}

// note keeps the failure of a request, and returns it. That another replica was faster, or that there is no lease yet,
// is none.
func (e *Election) note(ctx context.Context, verb string, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.failure
	switch {
	case err == nil || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) && !isNamespace(err):
		// Reading works for many who may not write: only a write, or another replica's lease, shows that all is well.
		if verb != "get" || e.holder != "" && e.holder != e.cfg.Identity {
			e.failure = nil
		}
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
	default:
		e.failure = fmt.Errorf("lease %s: cannot %s it: %w; allow %s to get, create and update leases in that namespace",
			e.lease(), verb, err, e.cfg.Account)
		if before == nil || before.Error() != e.failure.Error() {
			e.cfg.Log.Warn("this replica cannot take part in the election, trying again", "error", e.failure)
		}
	}
	return err
}

// isNamespace says whether an API server's error is about a namespace, and not about what would be in it.
func isNamespace(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}
