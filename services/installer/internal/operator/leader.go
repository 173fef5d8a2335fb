package operator

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"

	"github.com/google/uuid"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/lease"
)

// LeaseName is the name of the lease of the operators of a revision; "" are those without one.
func LeaseName(revision string) string {
	if revision == "" {
		return "fairlead-operator"
	}
	return "fairlead-operator-" + strings.ToLower(revision)
}

// leader runs a reconciler while its replica holds the lease.
type leader struct {
	op       *Operator
	election *lease.Election

	mu sync.Mutex
	// now is the reconciler of the term; nil between terms.
	now *reconciler
}

func newLeader(op *Operator, api *rest.Config) (_ *leader, err error) {
	host, err := os.Hostname()
	if err != nil {
		host = "operator"
	}
	namespace, name, _ := strings.Cut(op.lease, "/")
	l := &leader{op: op}
	l.election, err = lease.New(lease.Config{
		API: api, Namespace: namespace, Name: name, Identity: host + "_" + uuid.NewString(),
		Duration: op.options.LeaseDuration, Work: l.lead, Account: "the operator's service account",
		Unread: errors.New("the lease was not read yet"), Leads: op.metrics.leader, Log: op.Log,
	})
	return l, err
}

func (l *leader) lead(ctx context.Context) {
	l.op.Log.Info("this replica reconciles IstioOperators", "lease", l.op.lease, "namespaces", l.op.namespaces, "revision",
		l.op.options.Revision)
	r := newReconciler(l.op)
	l.set(r)
	defer l.set(nil)
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
