package servercert

import (
	"context"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/authority/authoritytest"
	"fairlead.dev/services/ca/internal/policy"
	"fairlead.dev/services/ca/internal/trustbundle"
)

func newSource(t *testing.T, clock *testkit.Clock, ca *testkit.CA) *Source {
	t.Helper()
	p, err := policy.New(policy.Config{TrustDomain: ca.TrustDomain, DefaultTTL: time.Hour, MaxTTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	publisher := trustbundle.NewPublisher("cluster.local", func(context.Context, []string, []string) (trustbundle.Numbered, error) {
		n++
		return trustbundle.Numbered{Generation: n}, nil
	})
	return New(Config{
		Identity: ca.ID("istio-system", "ca"), Policy: p, Signer: authoritytest.New(t, ca.Cert, ca.Key), Publisher: publisher, Clock: clock,
		Log: testkit.Logger(t),
	})
}

func TestRenewsAtHalfLifeAndOnNewRoots(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	clock := testkit.NewClock(start)
	ca := testkit.NewCA(t, "cluster.local", start)
	s := newSource(t, clock, ca)
	if _, err := s.Current(); err == nil {
		t.Fatal("material before the first certificate")
	}
	if err := s.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "bundle") {
		t.Fatalf("certificate without a bundle: %v", err)
	}
	if err := s.cfg.Publisher.Publish(t.Context(), nil, []string{string(ca.RootPEM)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, s.Run)

	first, err := s.Current()
	if err != nil {
		t.Fatal(err)
	}
	changed := s.Changed()
	clock.WaitFor(t, 1)
	if in, _ := clock.NextIn(); in != 30*time.Minute {
		t.Errorf("renews in %s, want half an hour", in)
	}
	clock.Advance(30 * time.Minute)
	<-changed
	second, err := s.Current()
	if err != nil {
		t.Fatal(err)
	}
	if !second.NotAfter.Equal(first.NotAfter.Add(30*time.Minute)) || string(second.KeyPEM) == string(first.KeyPEM) {
		t.Errorf("renewed until %s, was %s; want a new key", second.NotAfter, first.NotAfter)
	}

	changed = s.Changed()
	if err := s.cfg.Publisher.Publish(t.Context(), nil, []string{string(ca.RootPEM), string(testkit.PKI(t).RootPEM)}); err != nil {
		t.Fatal(err)
	}
	<-changed
	third, err := s.Current()
	if err != nil || strings.Count(string(third.RootsPEM), "BEGIN") != 2 {
		t.Errorf("roots after the bundle changed: %v, %v", third, err)
	}
}

// Near the root's expiry certificates are short. The Source renews at most once a second and retries after the expiry.
func TestRenewsUntilTheRootExpires(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ca := testkit.NewCA(t, "cluster.local", start)
	clock := testkit.NewClock(ca.Cert.NotAfter.Add(-1500 * time.Millisecond))
	s := newSource(t, clock, ca)
	if err := s.cfg.Publisher.Publish(t.Context(), nil, []string{string(ca.RootPEM)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, s.Run)
	for _, want := range []time.Duration{time.Second, time.Second, retryAfter, retryAfter} {
		clock.WaitFor(t, 1)
		in, _ := clock.NextIn()
		if in != want {
			t.Fatalf("next attempt in %s, want %s", in, want)
		}
		clock.Advance(in)
	}
}
