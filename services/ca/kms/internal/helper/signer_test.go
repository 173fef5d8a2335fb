//go:build cgo

package helper

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/keys/kms"
	"fairlead.dev/services/ca/internal/signer/kinds"
)

// opened is a signer whose root and intermediate are in the token, ready to issue.
func (h *hsm) opened(cfg kms.Config) *kinds.Opened {
	h.t.Helper()
	spec := kinds.Spec{Name: "hsm", Intermediate: &kinds.Intermediate{Keys: kinds.Keys{KMS: &cfg}, SelfSigned: &kinds.SelfSigned{}}}
	mesh := spiffeid.RequireTrustDomainFromString("cluster.local")
	env := kinds.Env{Deps: signer.Deps{TrustDomain: mesh, Clock: clock.Real(), Log: slog.New(slog.NewTextHandler(h, nil))},
		Identity: spiffeid.RequireFromPath(mesh, "/ns/istio-system/sa/ca"), LeafTTL: time.Hour}
	o, err := kinds.Open(&spec, 1, env)
	if err != nil {
		h.t.Fatal(err)
	}
	testkit.Background(h.t, o.Run)
	kept, err := o.Prepare(h.t.Context(), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := o.Adopt(h.t.Context(), kept); err != nil {
		h.t.Fatal(err)
	}
	return o
}

func leaf(t testing.TB) *signer.Request {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id := spiffeid.RequireFromString("spiffe://cluster.local/ns/default/sa/web")
	return &signer.Request{Identity: id, Template: &x509.Certificate{
		PublicKey: key.Public(), URIs: []*url.URL{id.URL()}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}}
}

// A signer of the ca with all of its keys in a token issues, says that the token is away, and issues again.
func TestSignerInAToken(t *testing.T) {
	h := newHSM(t)
	o := h.opened(h.config())
	issue := func() error {
		request := leaf(t)
		chain, err := o.Guard.Signer().Issue(t.Context(), request)
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		authorities, _ := o.Guard.Authorities()
		for _, r := range authorities.Roots {
			roots.AddCert(r)
		}
		if refused := signer.Check(request, o.Guard.Capabilities(), chain, roots, time.Now()); refused != nil {
			return refused
		}
		return nil
	}
	if !o.Guard.Capabilities().Remote {
		t.Error("a token may hold workers of the ca")
	}
	if err := issue(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(h.tokens(), h.tokens()+".away"); err != nil {
		t.Fatal(err)
	}
	want(t, issue(), signer.Away)
	if err := os.Rename(h.tokens()+".away", h.tokens()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, issue)
}

// BenchmarkIssue measures one leaf by a signer with all of its keys in a token.
func BenchmarkIssue(b *testing.B) {
	h := newHSM(b)
	o := h.opened(h.config())
	request := leaf(b)
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			if _, err := o.Guard.Signer().Issue(b.Context(), request); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("64-at-once", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := o.Guard.Signer().Issue(b.Context(), request); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// BenchmarkSign measures one signature, with the way to the helper and back, and the share of a certificate around it.
func BenchmarkSign(b *testing.B) {
	h := newHSM(b)
	keys := h.open(h.config())
	digest := sha256.Sum256([]byte("x"))
	for _, a := range []signer.Algorithm{signer.ECDSAP256, signer.ECDSAP384, signer.RSA2048} {
		key, err := keys.Make(b.Context(), strings.ToLower(string(a)), a)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(string(a), func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				if _, err := key.Sign(rand.Reader, digest[:], crypto.SHA256); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
		b.Run(string(a)+"-64-at-once", func(b *testing.B) {
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := key.Sign(rand.Reader, digest[:], crypto.SHA256); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
