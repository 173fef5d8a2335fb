package serve_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/acks"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/plan/plantest"
	"fairlead.dev/services/xds-server/internal/serve"
	"fairlead.dev/services/xds-server/internal/servetest"
	"fairlead.dev/services/xds-server/internal/translate/signedbundle"
)

const bundles = contract.SignedBundleType

// startSigned is start with the ca's bundles, and with what the ca is told of agents.
func startSigned(t *testing.T) (*fixture, *acks.Ledger) {
	t.Helper()
	ledger := acks.New()
	r := startWith(t, setup{
		log:         testkit.Logger(t),
		translators: func(set *plantest.Set) []plan.Translator { return append(set.Translators(), signedbundle.Translator{}) },
		change:      func(c *serve.Config) { c.Trust = ledger },
	}, basicMesh())
	return r, ledger
}

// publish makes a generation the current one; signature distinguishes what the ca has signed anew.
func (r *fixture) publish(l *acks.Ledger, generation uint64, signature string) {
	r.t.Helper()
	bundle, err := proto.Marshal(&cav1.TrustBundle{Epoch: 1, Generation: generation})
	if err != nil {
		r.t.Fatal(err)
	}
	l.SetCurrent(acks.Point{Epoch: 1, Generation: generation})
	r.Engine.ApplySignedBundle(&cav1.SignedBundle{Bundle: bundle, Signature: []byte(signature)})
}

// told waits until the ca is to be told of the holders: generation, and certificate or Pod.
func (r *fixture) told(l *acks.Ledger, want ...string) {
	r.t.Helper()
	var got []string
	testkit.Eventually(r.t, patience, func() error {
		for _, m := range l.Take(false) {
			for _, a := range m {
				for _, c := range a.GetCertificates() {
					got = append(got, fmt.Sprintf("%d %x", a.GetGeneration(), c))
				}
				for _, uid := range a.GetPodUids() {
					got = append(got, fmt.Sprintf("%d %s", a.GetGeneration(), uid))
				}
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("told %q, want %q", got, want)
		}
		return nil
	})
}

// fingerprint is how the ca knows a certificate.
func fingerprint(t *testing.T, s *testkit.Static) string {
	t.Helper()
	m, err := s.Current()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(m.Certificate.Certificate[0])
	return fmt.Sprintf("%x", sum[:16])
}

func (r *fixture) behind(want ...string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		s := r.ADS.Trust()
		if s.Behind != len(want) || len(s.BehindFirst) != len(want) {
			return fmt.Errorf("behind are %v, want %v", s.BehindFirst, want)
		}
		for i, name := range want {
			if !strings.Contains(s.BehindFirst[i], name) {
				return fmt.Errorf("behind are %v, want %v", s.BehindFirst, want)
			}
		}
		return nil
	})
}

// An agent counts as one that verifies with a generation once it has acknowledged the response with it, by the
// certificate of its connection.
func TestAcknowledgementsOfTheTrustBundle(t *testing.T) {
	r, ledger := startSigned(t)
	pki := testkit.PKI(t)
	connect, web := r.secure(t, pki), pki.NewSVID("default", "web")
	conn := connect(web)
	who := fingerprint(t, web)
	r.publish(ledger, 1, "")
	c := r.deltaOver(context.Background(), conn, node("pod", "default"))
	c.connectAll()
	r.behind() // Envoys alone do not subscribe
	c.subscribe(bundles)
	first := c.expect(bundles, "+"+signedbundle.Name)
	r.behind("pod")
	c.ack(first)
	r.told(ledger, "1 "+who)
	r.behind()

	r.publish(ledger, 2, "")
	second := c.expect(bundles, "+"+signedbundle.Name)
	r.behind("pod")
	c.nack(second, "not signed by the ca")
	r.rejected("pod", bundles)
	r.told(ledger)
	r.publish(ledger, 2, "again")
	second = c.expect(bundles, "+"+signedbundle.Name)
	c.ack(second)
	r.told(ledger, "2 "+who)
	r.publish(ledger, 2, "and again") // nothing new for the ca
	held := c.expect(bundles, "+"+signedbundle.Name)
	c.ack(held)
	r.acked("pod")
	r.told(ledger)

	// A new stream says that it holds the bundle, and is sent none.
	c.cancel()
	testkit.Eventually(t, patience, func() error {
		if n := r.ADS.Trust().Agents; n != 0 {
			return fmt.Errorf("%d agents are known after the stream has ended", n)
		}
		return nil
	})
	again := r.deltaOver(context.Background(), conn, node("pod", "default"))
	again.connectAll()
	again.send(&discovery.DeltaDiscoveryRequest{TypeUrl: bundles,
		InitialResourceVersions: map[string]string{signedbundle.Name: held.GetResources()[0].GetVersion()}})
	r.told(ledger, "2 "+who)
	r.behind()
	again.cancel()

	// Nor does what it holds of another version count.
	other := r.deltaOver(context.Background(), conn, node("pod", "default"))
	other.connectAll()
	other.send(&discovery.DeltaDiscoveryRequest{TypeUrl: bundles,
		InitialResourceVersions: map[string]string{signedbundle.Name: first.GetResources()[0].GetVersion(), "else": "1"}})
	last := other.expect(bundles, "+"+signedbundle.Name, "-else")
	r.behind("pod")
	r.told(ledger)
	other.ack(last)
	r.told(ledger, "2 "+who)
}

func TestAcknowledgementsOfTheTrustBundleSotw(t *testing.T) {
	r, ledger := startSigned(t)
	r.publish(ledger, 1, "")
	c := r.sotw("pod", "default")
	c.subscribe(bundles)
	m := c.next()
	r.behind("pod")
	c.ack(m)
	r.behind()
	r.told(ledger) // on the plaintext port nobody has shown who he is
	r.publish(ledger, 2, "")
	m = c.next()
	c.nack(m, "no")
	r.rejected("pod", bundles)
	r.behind("pod")
}

// poddy authenticates every caller as one with a token that is bound to a Pod.
type poddy struct {
	auth.Peer
}

func (p poddy) Authenticate(context.Context) (auth.Peer, error) { return p.Peer, nil }

func TestAcknowledgementsOfAgentsWithTokens(t *testing.T) {
	r, ledger := startSigned(t)
	pki := testkit.PKI(t)
	peer := auth.Peer{ID: pki.ID("default", "web"), Method: auth.MethodJWT, Token: &auth.Token{PodUID: "uid-1"}}
	lis := testkit.LoopbackListener(t)
	t.Cleanup(r.Listen(lis, rpc.ServerConfig{Authenticator: poddy{peer}, Insecure: true,
		Policy: servetest.Policy(auth.InTrustDomain(pki.TrustDomain))}))
	conn, err := rpc.Dial(rpc.ClientConfig{Target: lis.Addr().String(), Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r.publish(ledger, 5, "")
	c := r.deltaOver(context.Background(), conn, node("pod", "default"))
	c.subscribe(bundles)
	c.ack(c.expect(bundles, "+"+signedbundle.Name))
	r.told(ledger, "5 uid-1")
}
