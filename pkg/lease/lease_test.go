package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/testkit"
)

// server is an API server with one Lease.
type server struct {
	*httptest.Server
	// away makes writes fail.
	away atomic.Bool
	// renewed counts writes of a lease with a holder.
	renewed atomic.Int64
	// given gets what the Lease is when it has no holder any more.
	given chan string

	mu    sync.Mutex
	lease string
}

func serve(t *testing.T) *server {
	s := &server{given: make(chan string, 8)}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodGet && s.lease == "":
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		return
	case r.Method != http.MethodGet && s.away.Load():
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"the API server is away","code":500}`)
		return
	case r.Method != http.MethodGet:
		body, _ := io.ReadAll(r.Body)
		s.lease = string(body)
		if strings.Contains(s.lease, `"holderIdentity":"a"`) {
			s.renewed.Add(1)
		} else {
			s.given <- s.lease
		}
	}
	_, _ = io.WriteString(w, s.lease)
}

// election is one of replica "a".
func election(t *testing.T, s *server, duration time.Duration, work func(context.Context)) *Election {
	e, err := New(Config{
		API: &rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, Namespace: "mesh", Name: "work",
		Identity: "a", Duration: duration, Work: work, Account: "the account", Unread: errors.New("not read yet"),
		Leads: prometheus.NewGauge(prometheus.GaugeOpts{Name: "leads", Help: "Leads."}), Log: testkit.Logger(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// wantGiven waits until the election has ended without an error, and wants the lease to be given back by then.
func (s *server) wantGiven(t *testing.T, ended <-chan error) {
	t.Helper()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.given:
	default:
		t.Error("the lease is kept")
	}
}

// Another replica takes the lease only when this one works no more: at the end, when the lease is renewed meanwhile.
func TestTheLeaseIsKeptUntilTheWorkHasEnded(t *testing.T) {
	leading, finish := make(chan struct{}), make(chan struct{})
	s := serve(t)
	e := election(t, s, time.Second, func(ctx context.Context) {
		close(leading)
		<-ctx.Done()
		<-finish
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	<-leading
	stop()
	// Twenty renewals take longer than the lease: were it not renewed, another replica would have it.
	for renewed := s.renewed.Load(); s.renewed.Load() < renewed+20; {
		select {
		case <-s.given:
			t.Fatal("the lease is given back during the work")
		case <-ended:
			t.Fatal("the election ends before the work")
		case <-time.After(10 * time.Millisecond):
		}
	}
	close(finish)
	s.wantGiven(t, ended)
}

// A lease that cannot be renewed any more stays, too, though the API server takes writes again before the work has
// ended.
func TestALostLeaseIsGivenBackWhenTheWorkHasEnded(t *testing.T) {
	s := serve(t)
	told, finish := make(chan struct{}), make(chan struct{})
	e := election(t, s, 3*time.Second, func(ctx context.Context) {
		s.away.Store(true)
		<-ctx.Done()
		s.away.Store(false)
		close(told)
		<-finish
	})
	ended := make(chan error, 1)
	go func() { ended <- e.term(t.Context()) }()
	<-told
	select {
	case <-s.given:
		t.Fatal("the lease is given back during the work")
	case <-ended:
		t.Fatal("the term ends before the work")
	case <-time.After(100 * time.Millisecond):
	}
	close(finish)
	s.wantGiven(t, ended)
}

// A replica that loses the lease again and again keeps nothing of the terms that are over.
func TestATermLeavesNothingBehind(t *testing.T) {
	s := serve(t)
	led := 0
	e := election(t, s, 300*time.Millisecond, func(ctx context.Context) {
		led++
		s.away.Store(true)
		<-ctx.Done()
		s.away.Store(false)
	})
	before := 0
	for i := range 4 {
		if err := e.term(t.Context()); err != nil {
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
func electing() int { return testkit.Goroutines("client-go/tools/leaderelection", "lease.(*Election)") }

func TestAFailureStaysUntilARequestShowsThatAllIsWell(t *testing.T) {
	leases := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	forbidden := apierrors.NewForbidden(leases, "work", errors.New("no such right"))
	for _, c := range []struct {
		name, verb, holder string
		before, err        error
		fails              bool
	}{
		{"nothing is known yet", "get", "", errors.New("unread"), nil, true},
		{"no lease is there yet", "get", "", nil, apierrors.NewNotFound(leases, "work"), false},
		{"a lease that vanishes", "update", "a", nil, apierrors.NewNotFound(leases, "work"), false},
		{"no namespace is there", "create", "", nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "mesh"), true},
		{"no right to read", "get", "", nil, forbidden, true},
		{"no right to write", "create", "", nil, forbidden, true},
		{"reading alone shows nothing", "get", "", forbidden, nil, true},
		{"reading one's own lease shows nothing", "get", "a", forbidden, nil, true},
		{"another replica has the lease", "get", "b", forbidden, nil, false},
		{"a write", "create", "", forbidden, nil, false},
		{"another replica was faster", "create", "", forbidden, apierrors.NewAlreadyExists(leases, "work"), false},
		{"another replica was faster to update", "update", "", forbidden, apierrors.NewConflict(leases, "work", errors.New("old")), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &Election{cfg: Config{Namespace: "mesh", Name: "work", Identity: "a", Account: "the account", Log: testkit.Logger(t)},
				failure: c.before, holder: c.holder}
			if err := e.note(t.Context(), c.verb, c.err); !errors.Is(err, c.err) {
				t.Errorf("the error becomes %v", err)
			}
			err := e.Failure()
			if (err != nil) != c.fails {
				t.Errorf("failure: %v", err)
			}
			if c.fails && c.err != nil && !strings.Contains(err.Error(), "lease mesh/work: cannot "+c.verb+" it: ") {
				t.Errorf("the failure does not name lease and verb: %v", err)
			}
		})
	}
}

func TestARequestThatEndsWithTheProcessIsNoFailure(t *testing.T) {
	e := &Election{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = e.note(ctx, "update", fmt.Errorf("update: %w", context.Canceled))
	if err := e.Failure(); err != nil {
		t.Error(err)
	}
}
