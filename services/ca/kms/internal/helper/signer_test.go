//go:build cgo

package helper

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/held"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/intermediate"
	"fairlead.dev/services/ca/internal/signer/keys/keystest"
	"fairlead.dev/services/ca/internal/signer/keys/kms"
	"fairlead.dev/services/ca/internal/signer/selfsigned"
)

// opened is a signer whose root and intermediate are in the token, and the root.
func (h *hsm) opened(cfg kms.Config) (*held.Signer, *x509.Certificate) {
	h.t.Helper()
	keys := h.openBy(cfg, clock.Real())
	mesh := spiffeid.RequireTrustDomainFromString("cluster.local")
	root, err := (&selfsigned.Config{Keys: keys, Algorithm: signer.ECDSAP256, TrustDomain: mesh, TTL: 24 * time.Hour, Now: time.Now}).
		Make(h.t.Context(), "root")
	if err != nil {
		h.t.Fatal(err)
	}
	config := intermediate.Config{Keys: keys, Minter: root, Algorithm: signer.ECDSAP256, TrustDomain: mesh, TTL: 12 * time.Hour,
		MinTTL: 2 * time.Hour}
	made, err := config.Make(h.t.Context(), "intermediate", time.Now())
	if err != nil {
		h.t.Fatal(err)
	}
	s, err := intermediate.Open(h.t.Context(), keys, made)
	if err != nil {
		h.t.Fatal(err)
	}
	return s, root.Certificate
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
	s, root := h.opened(h.config())
	roots := x509.NewCertPool()
	roots.AddCert(root)
	issue := func() error {
		request := leaf(t)
		chain, err := s.Issue(t.Context(), request)
		if err != nil {
			return err
		}
		if refused := signer.Check(request, s.Capabilities(), chain, roots, time.Now()); refused != nil {
			return refused
		}
		return nil
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

// daemon is p11-kit's server of the token, and of a client's module that asks it, as for a token in the network.
func (h *hsm) daemon(socket string) (stop func()) {
	h.t.Helper()
	server := exec.Command("p11-kit", "server", "--foreground", "--provider", h.module, "--name", socket, "pkcs11:token=mesh")
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := server.Start(); err != nil {
		h.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = syscall.Kill(-server.Process.Pid, syscall.SIGKILL)
		_ = server.Wait()
		_ = os.Remove(socket)
	})
	h.t.Cleanup(stop)
	testkit.Eventually(h.t, testkit.Patience, func() error {
		_, err := os.Stat(socket)
		return err
	})
	return stop
}

// A daemon that a module asks ends, and comes back: keys are away, and are there again.
func TestDaemonRestarted(t *testing.T) {
	h := newHSM(t)
	clients, _ := filepath.Glob("/usr/lib/*/pkcs11/p11-kit-client.so")
	if _, err := exec.LookPath("p11-kit"); err != nil || len(clients) == 0 {
		t.Skip("there is no p11-kit with a client's module: install Debian's p11-kit and p11-kit-modules")
	}
	socket := filepath.Join(h.dir, "socket")
	t.Setenv("P11_KIT_SERVER_ADDRESS", "unix:path="+socket)
	cfg := h.config()
	cfg.Module = clients[0]
	stop := h.daemon(socket)
	keys := h.open(cfg)
	key, err := keys.Make(t.Context(), "root", signer.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	if err := keystest.Signs(key); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		stop()
		_, err := key.Sign(rand.Reader, make([]byte, 32), crypto.SHA256)
		want(t, err, signer.Away)
		t.Logf("without the daemon: %v", err)
		_, err = keys.Find(t.Context(), "root")
		want(t, err, signer.Away)
		stop = h.daemon(socket)
		h.clock.Advance(time.Minute)
		if err := keystest.Signs(key); err != nil {
			t.Errorf("with the daemon again: %v", err)
		}
		// It ends and begins between two requests.
		stop()
		stop = h.daemon(socket)
		if err := keystest.Signs(key); err != nil {
			t.Errorf("after it was started again: %v", err)
		}
	}
}

// BenchmarkIssue measures one leaf by a signer with all of its keys in a token.
func BenchmarkIssue(b *testing.B) {
	h := newHSM(b)
	s, _ := h.opened(h.config())
	request := leaf(b)
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Issue(b.Context(), request); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("64-at-once", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := s.Issue(b.Context(), request); err != nil {
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
