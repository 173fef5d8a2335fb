package ca

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/backoff"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/tests/internal/kubeapi"
)

// backoffOfAgents is between two attempts to connect with a replica.
var backoffOfAgents = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

var (
	killFor = flag.Duration("kill-for", time.Minute, "how long replicas of the ca are killed")
	csrRate = flag.Int("csr-rate", 500, "requests for certificates in a second meanwhile")
)

// killEvery is the time between two kills.
const killEvery = 2500 * time.Millisecond

// TestReplicasOfTheCAAreKilledInTurn kills one replica after the other while agents ask for certificates and the ca's
// root is rotated: each request ends with a certificate, and the rotation ends.
func TestReplicasOfTheCAAreKilledInTurn(t *testing.T) {
	if userns.Again(t) {
		return
	}
	c := startCA(t, kubeapi.Start(t, kubeapi.Options{}), 3)
	a := newAgents(t, c, 50)
	began := time.Now()
	stop := a.run(t.Context(), *csrRate)
	defer stop()
	testkit.Eventually(t, patience, func() error {
		if n := a.issued.Load(); n < int64(len(a.all)) {
			return fmt.Errorf("%d certificates issued", n)
		}
		return nil
	})
	c.order(caapi.Command{Action: caapi.Rotate, Reason: "test"})
	kills, during := 0, time.Duration(0)
	for i := 0; time.Since(began) < *killFor; i++ {
		r := c.replicas[i%len(c.replicas)]
		next := time.Now().Add(killEvery)
		r.process.Kill()
		kills++
		r.start()
		// The next one is killed when this one serves again, as a PodDisruptionBudget has it.
		testkit.Eventually(t, patience, r.ready)
		if during == 0 && c.rotated(2) == nil {
			during = time.Since(began)
		}
		time.Sleep(time.Until(next))
	}
	testkit.Eventually(t, 2*time.Minute, func() error { return c.rotated(2) })
	ended := time.Since(began)
	stop()
	t.Logf("%d kills; the rotation had ended after %s (0s or while replicas were killed: %s)", kills, ended.Round(time.Second),
		during.Round(time.Second))
	a.check(t, time.Since(began))
	if kills < 10 {
		t.Errorf("only %d kills", kills)
	}
}

// TestTheCAWithoutAnAPIServer holds that replicas issue while the API server is away, that a rotation waits meanwhile,
// and that it goes on afterwards.
func TestTheCAWithoutAnAPIServer(t *testing.T) {
	if userns.Again(t) {
		return
	}
	api := kubeapi.Start(t, kubeapi.Options{})
	c := startCA(t, api, 2)
	a := newAgents(t, c, 20)
	began := time.Now()
	stop := a.run(t.Context(), 50)
	defer stop()
	issued := func(more int64) {
		t.Helper()
		want := a.issued.Load() + more
		testkit.Eventually(t, patience, func() error {
			if n := a.issued.Load(); n < want {
				return fmt.Errorf("%d certificates issued, want %d", n, want)
			}
			return nil
		})
	}
	issued(20)
	c.order(caapi.Command{Action: caapi.Rotate, Reason: "test"})
	api.Kill()
	before, err := c.status()
	testkit.NoError(t, err)
	issued(500)
	s, err := c.status()
	testkit.NoError(t, err)
	t.Logf("step %s when the API server went away, %s then: %v %v", before.Step, s.Step, s.Waits, s.Problems)
	if s.Step == "idle" {
		t.Error("the rotation has ended without its state")
	}
	if len(s.Problems)+len(s.Waits) == 0 {
		t.Error("the status says nothing of it")
	}
	api.Resume(t)
	testkit.Eventually(t, 3*patience, func() error { return c.rotated(2) })
	issued(50)
	stop()
	a.check(t, time.Since(began))
}
