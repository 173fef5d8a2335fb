package e2e

import (
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/proto/fairlead/trust"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// TestAgentsAreSentTheSignedBundle has a workload ask on its stream for what the mesh verifies with. The bundle comes
// through an xds-server, and verifies as the ca's; so does the next generation, on the open stream and within seconds.
func TestAgentsAreSentTheSignedBundle(t *testing.T) {
	extra := t.TempDir() + "/extra.pem"
	testkit.WriteFile(t, extra, testkit.PKI(t).RootPEM)
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/echo.yaml"},
		Flags: map[string][]string{"ca": {"--extra-roots-file=" + extra}}})
	m.WaitReady(t)
	root, err := os.ReadFile(m.State(t).RootCertFile)
	if err != nil {
		t.Fatal(err)
	}
	receiver := trust.Receiver{Roots: x509.NewCertPool(), CAs: []string{"spiffe://cluster.local/ns/istio-system/sa/ca"},
		TrustDomain: "cluster.local", Now: time.Now()}
	if !receiver.Roots.AppendCertsFromPEM(root) {
		t.Fatal("no root")
	}
	stream := m.ADS(t, "client-0", "xds-server-0")
	testkit.NoError(t, stream.Subscribe(contract.SignedBundleType, "*"))
	next := func() *trust.Verified {
		t.Helper()
		got := testkit.Must(stream.Next(contract.SignedBundleType))(t)
		testkit.NoError(t, stream.Answer(got, nil))
		return verified(t, receiver, got)
	}
	first := next()
	testkit.WriteFile(t, extra, append(testkit.PKI(t).RootPEM, testkit.PKI(t).RootPEM...))
	started := time.Now()
	second := next()
	for second.GetGeneration() == first.GetGeneration() { // signed anew
		second = next()
	}
	if took := time.Since(started); second.GetGeneration() <= first.GetGeneration() || len(second.Roots) != len(first.Roots)+1 ||
		took > takesEffect {
		t.Errorf("generation %d with %d roots after %d with %d, in %s", second.GetGeneration(), len(second.Roots), first.GetGeneration(),
			len(first.Roots), took)
	}
}

func verified(t *testing.T, r trust.Receiver, m *discovery.DeltaDiscoveryResponse) *trust.Verified {
	t.Helper()
	if len(m.GetResources()) != 1 {
		t.Fatal(fmt.Errorf("%d resources, removed %s", len(m.GetResources()), strings.Join(m.GetRemovedResources(), " ")))
	}
	signed := &cav1.SignedBundle{}
	testkit.NoError(t, m.GetResources()[0].GetResource().UnmarshalTo(signed))
	return testkit.Must(r.Verify(signed))(t)
}
