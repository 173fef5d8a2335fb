package signertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/services/ca/internal/signer"
)

// WantError fails the test unless err is a *signer.Error with the fault and with each of the parts, and without the
// token.
func WantError(t testing.TB, err error, fault signer.Fault, parts ...string) {
	t.Helper()
	var e *signer.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v (%T), want a *signer.Error", err, err)
	}
	if e.Fault != fault {
		t.Errorf("the fault is %d, want %d: %v", e.Fault, fault, err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error lacks %q: %v", part, err)
		}
	}
	if strings.Contains(err.Error(), "secret-token") {
		t.Errorf("the error has the token: %v", err)
	}
	if len(err.Error()) > 1500 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
}

// CheckLies asks an upstream for a certificate once for each lie, and at the end for an honest one.
func CheckLies(t *testing.T, i signer.Issuer, u *Upstream) {
	t.Helper()
	r, _ := Request(t)
	for _, lie := range Lies() {
		t.Run(lie.Name, func(t *testing.T) {
			u.Lie(&lie)
			_, err := Issue(t, i, r)
			WantError(t, err, signer.Lied, lie.Says)
		})
	}
	u.Lie(nil)
	if _, err := Issue(t, i, r); err != nil {
		t.Errorf("the honest answer: %v", err)
	}
}

// Flood issues n certificates with up to 64 at once, and logs rate and latency. Every one must be issued.
func Flood(t *testing.T, i signer.Issuer, r *signer.Request, n int) {
	t.Helper()
	const inFlight = 64
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var all sync.WaitGroup
	begin := time.Now()
	for range inFlight {
		all.Go(func() {
			for range n / inFlight {
				start := time.Now()
				_, err := i.Issue(context.Background(), r)
				mu.Lock()
				took = append(took, time.Since(start))
				if err != nil {
					failed = err
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
	slices.Sort(took)
	at := func(share float64) time.Duration {
		return took[int(share*float64(len(took)-1))].Round(100 * time.Microsecond)
	}
	t.Logf("%d certificates, %d at once: %.0f/s, p50 %s, p99 %s", len(took), inFlight, float64(len(took))/time.Since(begin).Seconds(),
		at(0.5), at(0.99))
}
