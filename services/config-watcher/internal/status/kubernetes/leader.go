package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
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

// Terms are the times of a leader election, as in client-go's leaderelection: a leader that has not renewed its lease
// for Lease may be replaced; it gives up by itself after Renew; replicas try every Retry.
type Terms struct{ Lease, Renew, Retry time.Duration }

// TermsOf are the terms for a duration of the lease, in the proportions of Kubernetes' own controllers.
func TermsOf(lease time.Duration) Terms { return Terms{lease, lease * 2 / 3, lease * 2 / 15} }

// LeaseName is the name of the lease for a revision of the control plane; "" is the only one.
func LeaseName(revision string) string {
	name := "fairlead-config-watcher-status"
	if revision != "" {
		name += "-" + strings.Trim(strings.ToLower(strings.ReplaceAll(revision, "_", "-")), "-.")
	}
	return name
}

// LeaderConfig are the parts of a Leader. All fields are required.
type LeaderConfig struct {
	API *rest.Config
	// Namespace and Name are those of the Lease.
	Namespace, Name string
	// Identity names this replica.
	Identity string
	Terms    Terms
	// Lead runs while this replica is the leader. It returns soon after its context ends.
	Lead func(context.Context)
	Log  *slog.Logger
	// Registerer takes the metric.
	Registerer prometheus.Registerer
}

// Leader runs a function in one replica at a time.
type Leader struct {
	cfg     LeaderConfig
	client  *coordinationv1.CoordinationV1Client
	leading prometheus.Gauge

	mu      sync.Mutex
	failure error
	leader  string
}

// NewLeader returns a leader election that Run takes part in.
func NewLeader(cfg LeaderConfig) (*Leader, error) {
	api := rest.CopyConfig(cfg.API)
	api.RateLimiter = nil // a lease must not wait for other requests; it needs one every Retry
	api.Timeout = max(cfg.Terms.Renew/2, time.Second)
	client, err := coordinationv1.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	l := &Leader{cfg: cfg, client: client, leading: prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_config_watcher_status_leader",
		Help: "1 while this replica holds the lease of those that write statuses into Kubernetes."})}
	cfg.Registerer.MustRegister(l.leading)
	return l, nil
}

// Run takes part in elections until ctx ends. It gives the lease back at the end, so that another replica need not
// wait.
func (l *Leader) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logr.Discard()) // Failure reports what goes wrong
	for ctx.Err() == nil {
		if err := l.term(ctx); err != nil {
			return err
		}
	}
	return nil
}

// term takes part until this replica has led and lost the lease, or ctx ends. One term never overlaps the next.
func (l *Leader) term(ctx context.Context) error {
	started, ended, lease := make(chan struct{}), make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &observedLock{l, sync.OnceFunc(func() { close(lease); <-ended }), &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: l.cfg.Namespace, Name: l.cfg.Name}, Client: l.client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: l.cfg.Identity},
		}},
		LeaseDuration: l.cfg.Terms.Lease, RenewDeadline: l.cfg.Terms.Renew, RetryPeriod: l.cfg.Terms.Retry, ReleaseOnCancel: true,
		Name: l.cfg.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				defer close(ended)
				close(started)
				ctx, stop := context.WithCancel(ctx)
				defer stop()
				go func() {
					select {
					case <-lease:
						stop()
					case <-ctx.Done():
					}
				}()
				l.lead(ctx)
			},
			OnStoppedLeading: func() {},
			OnNewLeader:      l.observe,
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	elector.Run(ctx)
	if ctx.Err() == nil {
		<-ended // it has led
		return nil
	}
	select {
	case <-started:
		<-ended
	default:
	}
	return nil
}

func (l *Leader) lead(ctx context.Context) {
	l.cfg.Log.Info("this replica writes statuses into Kubernetes", "lease", l.cfg.Namespace+"/"+l.cfg.Name)
	l.leading.Set(1)
	defer l.leading.Set(0)
	l.cfg.Lead(ctx)
}

func (l *Leader) observe(identity string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leader != identity && identity != l.cfg.Identity {
		l.cfg.Log.Info("another replica writes statuses into Kubernetes", "replica", identity)
	}
	l.leader = identity
}

// Failure is why this replica cannot take part in the election; nil if it can.
func (l *Leader) Failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// observedLock tells the leader of failed requests.
type observedLock struct {
	leader *Leader
	// end is called before the lease is given back. It ends Lead and waits for it, so that no two replicas write at
	// once.
	end func()
	resourcelock.Interface
}

// Get implements resourcelock.Interface.
func (o *observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := o.Interface.Get(ctx)
	return record, raw, o.note(ctx, "get", err)
}

// Create implements resourcelock.Interface.
func (o *observedLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return o.note(ctx, "create", o.Interface.Create(ctx, r))
}

// Update implements resourcelock.Interface.
func (o *observedLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == "" { // the elector gives the lease back
		o.end()
	}
	return o.note(ctx, "update", o.Interface.Update(ctx, r))
}

// note keeps a failure, but not that another replica was faster.
func (o *observedLock) note(ctx context.Context, verb string, err error) error {
	l := o.leader
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.failure
	switch {
	case err == nil || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) && verb == "get":
		// Reading works for many who may not write: only a write, or another replica's lease, shows that all is well.
		if verb != "get" || l.leader != "" && l.leader != l.cfg.Identity {
			l.failure = nil
		}
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return err
	default:
		l.failure = fmt.Errorf("lease %s/%s: cannot %s it: %w; allow config-watcher's service account to get, create and update leases in that "+
			"namespace", l.cfg.Namespace, l.cfg.Name, verb, err)
	}
	if l.failure != nil && before == nil {
		l.cfg.Log.Warn("this replica cannot take part in the election of the one that writes statuses, trying again", "error", l.failure)
	}
	return err
}
