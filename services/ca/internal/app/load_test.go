package app

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
)

// More callers than the ca takes on: each gets a certificate or a RESOURCE_EXHAUSTED that says when to come back, and
// health checks are answered meanwhile.
func TestOverloadIsBoundedAndHealthAnswers(t *testing.T) {
	h := start(t, func(o *Options) { o.Workers, o.Queue, o.QueueWait = 1, 3, 200*time.Millisecond })
	// The only worker is busy until somebody has been refused and health has been asked for: however fast it is, there
	// is overload.
	free, err := h.server.gate.Enter(t.Context(), "busy")
	if err != nil {
		t.Fatal(err)
	}
	const callers, rounds = 64, 12
	var issued, refused atomic.Int64
	var group sync.WaitGroup
	overloaded, healthy := make(chan struct{}), make(chan struct{})
	overload := sync.OnceFunc(func() { close(overloaded) })
	for i := range callers {
		conn := h.dial(nil)
		ctx := as(t.Context(), h.token("load", fmt.Sprintf("caller-%d", i)))
		req := &security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})}
		group.Go(func() {
			for range rounds {
				_, err := create(ctx, conn, req)
				if err == nil {
					issued.Add(1)
					continue
				}
				refused.Add(1)
				if problem := checkOverload(err, h.options.QueueWait); problem != nil {
					t.Error(problem)
				}
				overload()
				<-healthy
			}
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	alive := func() {
		if code := h.get("/livez", "", nil); code != http.StatusOK {
			t.Errorf("/livez: HTTP %d under load", code)
		}
	}
	<-overloaded
	alive()
	free()
	close(healthy)
	probes := 1
	for probing := true; probing; probes++ {
		select {
		case <-done:
			probing = false
		default:
		}
		alive()
	}
	t.Logf("%d issued, %d refused, %d probes", issued.Load(), refused.Load(), probes)
	if issued.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d issued and %d refused: wanted both", issued.Load(), refused.Load())
	}
	counted := h.metric("fairlead_ca_requests_refused_total", "overload") + h.metric("fairlead_ca_requests_refused_total", "caller_limit")
	if counted != float64(refused.Load()) {
		t.Errorf("%v refusals counted, callers saw %d", counted, refused.Load())
	}
	if busy, waiting := h.metric("fairlead_ca_workers_busy", ""), h.metric("fairlead_ca_queue_length", ""); busy+waiting != 0 {
		t.Errorf("%v busy and %v waiting when all is done", busy, waiting)
	}
}

// While a few identities keep hundreds of valid requests under way, more than the queue holds, another's single request
// is answered, quickly and always.
func TestFloodLeavesRoomForOthers(t *testing.T) {
	h := start(t, func(o *Options) { o.Workers, o.Queue = 2, 32 })
	const callers, each, requests = 3, 70, 5
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var issued, refused atomic.Int64
	for i := range callers {
		conn := h.dial(nil)
		as := as(ctx, h.token("greedy", fmt.Sprintf("caller-%d", i)))
		req := &security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})}
		for range each {
			group.Go(func() {
				for ctx.Err() == nil {
					if _, err := create(as, conn, req); err == nil {
						issued.Add(1)
					} else if status.Code(err) == codes.ResourceExhausted {
						refused.Add(1)
					}
				}
			})
		}
	}
	defer group.Wait()
	defer stop()
	testkit.Eventually(t, testkit.Patience, func() error {
		if refused.Load() < callers*each {
			return fmt.Errorf("%d requests of the flood refused", refused.Load())
		}
		return nil
	})
	conn := h.dial(nil)
	modest := as(t.Context(), h.token("default", "reviews"))
	req := &security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})}
	for range requests {
		testkit.Quick(t, 2*time.Second, func() time.Duration {
			began := time.Now()
			if _, err := create(modest, conn, req); err != nil {
				t.Fatalf("while others flood: %v", err)
			}
			return time.Since(began)
		})
	}
	t.Logf("%d of the flood issued, %d refused", issued.Load(), refused.Load())
}

func checkOverload(err error, wait time.Duration) error {
	st := status.Convert(err)
	if st.Code() != codes.ResourceExhausted {
		return fmt.Errorf("got %w, want RESOURCE_EXHAUSTED", err)
	}
	for _, d := range st.Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok {
			if delay := retry.GetRetryDelay().AsDuration(); delay < wait || delay > 2*wait {
				return fmt.Errorf("retry after %s, want %s to %s", delay, wait, 2*wait)
			}
			return nil
		}
	}
	return fmt.Errorf("no RetryInfo in %v", st.Details())
}
