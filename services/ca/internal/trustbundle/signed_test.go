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
	if err := publisher.Publish(t.Context(), []string{string(pki.RootPEM), string(next.RootPEM)}); err != nil {
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
	if err := publisher.Publish(t.Context(), []string{string(pki.RootPEM)}); err != nil {
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
