package trustbundle

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/trust"
)

// What the watch sends can be passed on, and verified by whoever has one of the roots already.
func TestTheBundleIsSignedByTheCA(t *testing.T) {
	start := time.Now()
	clock := testkit.NewClock(start)
	pki, next := testkit.PKI(t), testkit.PKI(t)
	own := pki.NewSVID("istio-system", "ca")
	publisher := NewPublisher("cluster.local", counter())
	if err := publisher.Publish(t.Context(), nil, []string{string(pki.RootPEM), string(next.RootPEM)}); err != nil {
		t.Fatal(err)
	}
	signatures := NewSignatures(own, clock)
	bundle, _ := publisher.Current()
	signed, _, err := signatures.Sign(bundle)
	if err != nil {
		t.Fatal(err)
	}
	material, err := own.Current()
	if err != nil {
		t.Fatal(err)
	}
	receiver := trust.Receiver{Roots: x509.NewCertPool(), CAs: []string{pki.ID("istio-system", "ca").String()}, TrustDomain: "cluster.local",
		Now: start}
	receiver.Roots.AppendCertsFromPEM(material.RootsPEM)
	got, err := receiver.Verify(signed)
	if err != nil || got.GetGeneration() != bundle.Generation || len(got.Roots) != 2 || !got.GetSignedAt().AsTime().Equal(start) {
		t.Errorf("got %v, %v", got, err)
	}
	if again, _, err := signatures.Sign(bundle); err != nil || again != signed {
		t.Errorf("signed twice: %v", err)
	}
	receiver.CAs = []string{pki.ID("istio-system", "xds-server").String()}
	if _, err := receiver.Verify(signed); err == nil || !strings.Contains(err.Error(), "not the ca") {
		t.Errorf("got %v", err)
	}
}

// A receiver refuses what an expired certificate has signed, so the bundle is sent again when the ca has a new one.
func TestTheBundleIsSentAgainWithTheNextCertificate(t *testing.T) {
	pki := testkit.PKI(t)
	own := pki.NewSVID("istio-system", "ca")
	publisher := NewPublisher("cluster.local", counter())
	if err := publisher.Publish(t.Context(), nil, []string{string(pki.RootPEM)}); err != nil {
		t.Fatal(err)
	}
	stream, err := serveSigned(t, publisher, NewWatches(1), own, nil).WatchBundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&cav1.WatchBundleRequest{Subscriber: "a"}); err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	next, err := pki.NewSVID("istio-system", "ca").Current()
	if err != nil {
		t.Fatal(err)
	}
	own.Set(next)
	second, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if second.GetGeneration() != first.GetGeneration() ||
		string(second.GetSignedBundle().GetCertificateChain()[0]) == string(first.GetSignedBundle().GetCertificateChain()[0]) {
		t.Errorf("generation %d with the same certificate", second.GetGeneration())
	}
}

// What a bundle has beside roots is signed with it. Lists that make it too large for agents are left out, since roots
// matter more, and the operator is told.
func TestRevocationListsAndTaintedKeysAreSigned(t *testing.T) {
	pki := testkit.PKI(t)
	own := pki.NewSVID("istio-system", "ca")
	material, err := own.Current()
	if err != nil {
		t.Fatal(err)
	}
	receiver := trust.Receiver{Roots: material.Roots, CAs: []string{pki.ID("istio-system", "ca").String()}, TrustDomain: "cluster.local",
		Now: time.Now()}
	for name, tc := range map[string]struct {
		size  int
		lists int
	}{"small": {100, 1}, "too large": {trust.MaxBytes, 0}} {
		t.Run(name, func(t *testing.T) {
			signatures := NewSignatures(own, nil)
			signed, _, err := signatures.Sign(&Bundle{TrustDomain: "cluster.local", Epoch: 4, Generation: 5, Roots: []string{string(pki.RootPEM)},
				Tainted: [][]byte{{1, 2}}, CRLs: [][]byte{make([]byte, tc.size)}})
			if err != nil {
				t.Fatal(err)
			}
			got, err := receiver.Verify(signed)
			if err != nil {
				t.Fatal(err)
			}
			if got.GetEpoch() != 4 || got.GetGeneration() != 5 || len(got.GetTaintedKeyIds()) != 1 || len(got.GetRevocationLists()) != tc.lists {
				t.Errorf("got generation %d of epoch %d with %d tainted keys and %d lists", got.GetGeneration(), got.GetEpoch(),
					len(got.GetTaintedKeyIds()), len(got.GetRevocationLists()))
			}
			if problem := signatures.Problem(); (problem != nil) != (tc.lists == 0) {
				t.Errorf("problem %v", problem)
			}
		})
	}
}
