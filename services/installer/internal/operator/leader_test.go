package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/testkit"
)

// A replica that loses the lease again and again keeps nothing of the terms that are over.
func TestATermLeavesNothingBehind(t *testing.T) {
	client := fake.NewClientset()
	var lost atomic.Bool
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, kruntime.Object, error) {
		return lost.Load(), nil, errors.New("the API server is away")
	})
	op := &Operator{Process: &service.Process{Deps: service.Deps{Log: slog.New(slog.DiscardHandler)}},
		options: &Options{LeaseDuration: 300 * time.Millisecond}, lease: "mesh/operator", leases: client.CoordinationV1()}
	l := newLeader(op)
	led := 0
	l.work = func(ctx context.Context) {
		led++
		lost.Store(true)
		<-ctx.Done()
		lost.Store(false)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := 0
	for i := range 4 {
		if err := l.term(ctx); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			before = electing()
		}
	}
	if led != 4 {
		t.Errorf("it has led %d times", led)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if now := electing(); now > before {
			return fmt.Errorf("%d goroutines run, %d did after the first term", now, before)
		}
		return nil
	})
}

// electing counts the goroutines that belong to a term.
func electing() int {
	return testkit.Goroutines("client-go/tools/leaderelection", "operator.(*leader)")
}

// A lease that is not there yet is made; a namespace that is not there is a failure that is told.
func TestAMissingNamespaceFailsTheElection(t *testing.T) {
	l := newLeader(&Operator{Process: &service.Process{Deps: service.Deps{Log: slog.New(slog.DiscardHandler)}}, lease: "mesh/operator"})
	w := &watchedLock{leader: l}
	for resource, fails := range map[string]bool{"leases": false, "namespaces": true} {
		_ = w.note(t.Context(), apierrors.NewNotFound(schema.GroupResource{Resource: resource}, "mesh"))
		if err := l.failed(); (err != nil) != fails || fails && !strings.Contains(err.Error(), "lease mesh/operator") {
			t.Errorf("%s: %v", resource, err)
		}
	}
}
