package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// LeaseName is the name of the lease of the operators of a revision; "" are those without one.
func LeaseName(revision string) string {
	if revision == "" {
		return "fairlead-operator"
	}
	return "fairlead-operator-" + strings.ToLower(revision)
}

// leader runs a reconciler while its replica holds the lease. One term never overlaps the next.
type leader struct {
	op       *Operator
	identity string
	// work is what is done while this replica leads, until its context ends.
	work func(context.Context)

	mu      sync.Mutex
	failure error
	// now is the reconciler of the term; nil between terms.
	now *reconciler
}

func newLeader(op *Operator) *leader {
	host, err := os.Hostname()
	if err != nil {
		host = "operator"
	}
	l := &leader{op: op, identity: host + "_" + uuid.NewString(), failure: errors.New("the lease was not read yet")}
	l.work = l.lead
	return l
}

// run takes part in elections until ctx ends.
func (l *leader) run(ctx context.Context) error {
	// failed reports what goes wrong, and reconcilers report what they meet.
	ctx = klog.NewContext(ctx, logr.Discard())
	for ctx.Err() == nil {
		if err := l.term(ctx); err != nil {
			return err
		}
	}
	return nil
}

// term takes part until this replica has led and lost the lease, or ctx ends. The lease is given back when the
// reconciler has ended, so that two never write.
func (l *leader) term(ctx context.Context) error {
	holding, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	started, ended := make(chan struct{}), make(chan struct{})
	namespace, name, _ := strings.Cut(l.op.lease, "/")
	duration := l.op.options.LeaseDuration
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &watchedLock{l, &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Client: l.op.leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: l.identity},
		}},
		LeaseDuration: duration, RenewDeadline: duration * 2 / 3, RetryPeriod: duration * 2 / 15, ReleaseOnCancel: true, Name: name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				defer close(ended)
				close(started)
				// The term ends with the lease, and with the process.
				leading, stop := context.WithCancel(leading)
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				l.work(leading)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	defer context.AfterFunc(ctx, func() {
		select {
		case <-started:
			<-ended
		default:
		}
		release()
	})()
	elector.Run(holding)
	release()
	select {
	case <-started:
		<-ended
	default:
	}
	return nil
}

func (l *leader) lead(ctx context.Context) {
	l.op.Log.Info("this replica reconciles IstioOperators", "lease", l.op.lease, "namespaces", l.op.namespaces, "revision",
		l.op.options.Revision)
	l.op.metrics.leader.Set(1)
	r := newReconciler(l.op)
	l.set(r)
	defer func() {
		l.set(nil)
		l.op.metrics.leader.Set(0)
	}()
	r.run(ctx)
}

func (l *leader) set(r *reconciler) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = r
}

// page is /debug/resources.
func (l *leader) page() any {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now == nil {
		return map[string]any{"leader": false}
	}
	return map[string]any{"leader": true, "resources": l.now.page()}
}

// failed says why this replica can neither lead nor follow; nil if it can.
func (l *leader) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// watchedLock tells the leader of failed requests.
type watchedLock struct {
	leader *leader
	resourcelock.Interface
}

// Get implements resourcelock.Interface.
func (w *watchedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := w.Interface.Get(ctx)
	return record, raw, w.note(ctx, err)
}

// Create implements resourcelock.Interface.
func (w *watchedLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return w.note(ctx, w.Interface.Create(ctx, r))
}

// Update implements resourcelock.Interface.
func (w *watchedLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return w.note(ctx, w.Interface.Update(ctx, r))
}

// note keeps a failure. That another replica was faster, or that there is no lease yet, is none.
func (w *watchedLock) note(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	l := w.leader
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.failure
	l.failure = nil
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && (!apierrors.IsNotFound(err) || isNamespace(err)) {
		l.failure = fmt.Errorf("lease %s: %w; the operator's service account must be allowed to get, create and update leases in that namespace",
			l.op.lease, err)
		if before == nil || before.Error() != l.failure.Error() {
			l.op.Log.Warn("this replica cannot take part in the election, trying again", "error", l.failure)
		}
	}
	return err
}

// isNamespace says whether an API server's error is about a namespace, and not about what would be in it.
func isNamespace(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}
