package app

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
)

// What every Fairlead program has inside gets a certificate by token, from an address and a root file alone, and renews
// it by certificate, over a restart of the ca.
func TestFairleadsOwnAgents(t *testing.T) {
	out := filepath.Join(t.TempDir(), "root-cert.pem")
	h := start(t, func(o *Options) { o.RootCertOut = out })
	manager := h.agent(out)
	first, err := manager.Current()
	if err != nil {
		t.Fatal(err)
	}
	if uriOf(first.Certificate.Leaf) != reviewsID {
		t.Errorf("identity %s", uriOf(first.Certificate.Leaf))
	}

	o := h.options
	o.GRPCAddress = h.server.Addr("grpc-address").String()
	h.Stop()
	again := startWith(t, h.issuer, o)
	manager.Renew()
	waitRenewed(t, manager, first)
	if got := again.metric("fairlead_ca_certificates_issued_total", "mtls"); got != 1 {
		t.Errorf("%v renewals by certificate, want 1", got)
	}
}

// A program inside the mesh does not notice the end of renewals by certificate: refused with its certificate, it shows
// its token.
func TestAgentsShowTheirTokenWhenRenewalsEnd(t *testing.T) {
	out := filepath.Join(t.TempDir(), "root-cert.pem")
	h := start(t, func(o *Options) { o.RootCertOut, o.MaxRenewalAge = out, 0 })
	manager := h.agent(out)
	first, err := manager.Current()
	if err != nil {
		t.Fatal(err)
	}
	manager.Renew()
	waitRenewed(t, manager, first)
	if got := h.metric("fairlead_ca_requests_refused_total", "renewal_age"); got != 1 {
		t.Errorf("%v renewals by certificate refused, want 1", got)
	}
	if got := h.metric("fairlead_ca_certificates_issued_total", "jwt"); got != 2 {
		t.Errorf("%v certificates issued by token, want 2", got)
	}
}

// agent runs what Fairlead's programs have inside until the test ends, and waits for its first certificate. The roots
// are those of rootFile.
func (h *harness) agent(rootFile string) *svid.Manager {
	h.t.Helper()
	manager, err := svid.New(svid.Config{
		CAAddress: h.server.Addr("grpc-address").String(),
		CAIDs:     []spiffeid.ID{spiffeid.RequireFromString("spiffe://cluster.local/ns/istio-system/sa/ca")},
		TokenFile: h.issuer.TokenFile("default", "reviews", contract.TokenAudience), RootFile: rootFile,
		Identity: spiffeid.RequireFromString(reviewsID), TTL: contract.CertificateTTL, Log: testkit.Logger(h.t),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	testkit.Background(h.t, manager.Run)
	wait, stop := context.WithTimeout(h.t.Context(), testkit.Patience)
	defer stop()
	if err := manager.WaitReady(wait); err != nil {
		h.t.Fatal(err)
	}
	return manager
}

// waitRenewed waits until the agent has another certificate than this.
func waitRenewed(t *testing.T, manager *svid.Manager, than *tlsconf.Material) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		now, err := manager.Current()
		if err != nil {
			return err
		}
		if now.Certificate.Leaf.SerialNumber.Cmp(than.Certificate.Leaf.SerialNumber) == 0 {
			return fmt.Errorf("still the certificate %x", than.Certificate.Leaf.SerialNumber)
		}
		return nil
	})
}
