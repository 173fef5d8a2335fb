package issuance

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net/url"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/admission"
	"fairlead.dev/services/ca/internal/authority/authoritytest"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/holders"
)

// BenchmarkFloor is what issuing costs at least: a request is parsed and its signature verified, and a certificate is
// signed, which crypto/x509 verifies.
func BenchmarkFloor(b *testing.B) {
	ca := testkit.NewCA(b, "cluster.local", time.Now())
	key := catest.Key(b)
	text := catest.CSR(b, key, &x509.CertificateRequest{})
	uri, err := url.Parse("spiffe://cluster.local/ns/default/sa/reviews")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		block, _ := pem.Decode([]byte(text))
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			b.Fatal(err)
		}
		if err := request.CheckSignature(); err != nil {
			b.Fatal(err)
		}
		serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: serial, URIs: []*url.URL{uri}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}, ca.Cert, request.PublicKey.(*ecdsa.PublicKey), ca.Key); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreateCertificate is a whole request without gRPC and authentication.
func BenchmarkCreateCertificate(b *testing.B) {
	ca := testkit.NewCA(b, "cluster.local", time.Now())
	s := newService(b, ca, testkit.NewClock(time.Now()), authoritytest.New(b, ca.Cert, ca.Key), &bytes.Buffer{})
	ctx := auth.NewContext(b.Context(), auth.Peer{ID: ca.ID("default", "reviews"), Method: auth.MethodJWT})
	request := &security.IstioCertificateRequest{Csr: catest.CSR(b, catest.Key(b), &x509.CertificateRequest{})}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.CreateCertificate(ctx, request); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkInFlight has 64 requests in flight, with and without the registry of holders and its journal.
func BenchmarkInFlight(b *testing.B) {
	for name, dir := range map[string]string{"no registry": "none", "in memory": "", "with a journal": b.TempDir()} {
		b.Run(name, func(b *testing.B) {
			ca := testkit.NewCA(b, "cluster.local", time.Now())
			s := newService(b, ca, testkit.NewClock(time.Now()), authoritytest.New(b, ca.Cert, ca.Key), &bytes.Buffer{})
			gate, err := admission.New(admission.Config{Workers: runtime.GOMAXPROCS(0), Queue: 256, Wait: time.Minute, Clock: clock.Real()})
			if err != nil {
				b.Fatal(err)
			}
			s.cfg.Gate, s.cfg.Clock, s.cfg.Log = gate, clock.Real(), slog.New(slog.DiscardHandler)
			if dir != "none" {
				registry, err := holders.Open(holders.Config{Dir: dir, LongestTTL: time.Hour, Clock: clock.Real(), Log: s.cfg.Log})
				if err != nil {
					b.Fatal(err)
				}
				testkit.Background(b, registry.Run)
				s.cfg.Holders = registry
			}
			request := &security.IstioCertificateRequest{Csr: catest.CSR(b, catest.Key(b), &x509.CertificateRequest{})}
			var made atomic.Int64
			var mu sync.Mutex
			var took []time.Duration
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				var mine []time.Duration
				for pb.Next() {
					pod := fmt.Sprint("web-", made.Add(1)%10_000)
					ctx := auth.NewContext(b.Context(), auth.Peer{ID: ca.ID("default", "reviews"), Method: auth.MethodJWT,
						Token: &auth.Token{Pod: pod, PodUID: pod}})
					began := time.Now()
					if _, err := s.CreateCertificate(ctx, request); err != nil {
						b.Error(err)
						return
					}
					mine = append(mine, time.Since(began))
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, mine...)
			})
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}
