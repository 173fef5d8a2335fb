package server

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
)

// What every Fairlead program has inside gets a certificate by token, from an address and a root file alone, and renews it by certificate, over a restart of the ca.
func TestFairleadsOwnAgents(t *testing.T) {
	out := filepath.Join(t.TempDir(), "root-cert.pem")
	h := start(t, func(o *Options) { o.RootCertOut = out })
	manager, err := svid.New(svid.Config{
		CAAddress: h.server.Addr().String(),
		CAIDs:     []spiffeid.ID{spiffeid.RequireFromString("spiffe://cluster.local/ns/istio-system/sa/ca")},
		TokenFile: h.issuer.TokenFile("default", "reviews", tokenAudience), RootFile: out,
		Identity: spiffeid.RequireFromString(reviewsID), Log: testkit.Logger(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- manager.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	wait, stop := context.WithTimeout(t.Context(), testkit.Patience)
	defer stop()
	if err := manager.WaitReady(wait); err != nil {
		t.Fatal(err)
	}
	first, err := manager.Current()
	if err != nil {
		t.Fatal(err)
	}
	if uriOf(first.Certificate.Leaf) != reviewsID {
		t.Errorf("identity %s", uriOf(first.Certificate.Leaf))
	}

	o := h.options
	o.GRPCAddress = h.server.Addr().String()
	h.stop()
	again := startWith(t, h.issuer, o)
	manager.Renew()
	testkit.Eventually(t, testkit.Patience, func() error {
		now, err := manager.Current()
		if err != nil {
			return err
		}
		if now.Certificate.Leaf.SerialNumber.Cmp(first.Certificate.Leaf.SerialNumber) == 0 {
			return fmt.Errorf("still the first certificate")
		}
		return nil
	})
	if got := again.metric("fairlead_ca_certificates_issued_total", "mtls"); got != 1 {
		t.Errorf("%v renewals by certificate, want 1", got)
	}
}
