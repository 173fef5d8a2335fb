package guard

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer"
)

// upstream is a signer of another process.
type upstream struct {
	signer.Issuer
	can         signer.Capabilities
	authorities *signer.Authorities
	root        *catest.CA
	takes       time.Duration
	err         error
	// change makes a lie of the template.
	change func(*x509.Certificate)
	asked  atomic.Int64
	mu     sync.Mutex
	most   int
	now    int
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	root := catest.NewCA(t, nil, catest.Key(t), catest.Valid(time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)))
	return &upstream{root: root, can: signer.Capabilities{NamesBesideCSR: true, Validity: true, Remote: true},
		authorities: &signer.Authorities{Roots: []*x509.Certificate{root.Cert}, NotAfter: root.Cert.NotAfter}}
}

func (u *upstream) Capabilities() signer.Capabilities { return u.can }

func (u *upstream) Authorities() (*signer.Authorities, <-chan struct{}) { return u.authorities, nil }

func (u *upstream) Issue(ctx context.Context, r *signer.Request) ([]*x509.Certificate, error) {
	u.asked.Add(1)
	u.mu.Lock()
	u.now++
	u.most = max(u.most, u.now)
	u.mu.Unlock()
	defer func() { u.mu.Lock(); u.now--; u.mu.Unlock() }()
	select {
	case <-ctx.Done():
		return nil, signer.Errorf(signer.Away, "%w", context.Cause(ctx))
	case <-time.After(u.takes):
	}
	if u.err != nil {
		return nil, u.err
	}
	template := *r.Template
	if u.change != nil {
		u.change(&template)
	}
	template.SerialNumber = new(big.Int).Lsh(big.NewInt(0x5a5a), 100)
	der, err := x509.CreateCertificate(rand.Reader, &template, u.root.Cert, template.PublicKey, u.root.Key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	return []*x509.Certificate{leaf, u.root.Cert}, err
}

var leafKey = sync.OnceValues(func() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) })

func request(t *testing.T, account string) *signer.Request {
	t.Helper()
	key, err := leafKey()
	if err != nil {
		t.Fatal(err)
	}
	id := spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/" + account)
	return &signer.Request{Identity: id, Template: &x509.Certificate{
		PublicKey: &key.PublicKey, URIs: []*url.URL{id.URL()}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}}
}

func fault(err error) signer.Fault {
	if e, ok := errors.AsType[*signer.Error](err); ok {
		return e.Fault
	}
	return 0
}

func TestIssueReturnsTheChainWithoutTheRoot(t *testing.T) {
	g := New(newUpstream(t), Config{})
	chain, err := g.Issue(t.Context(), request(t, "web"))
	if err != nil || len(chain) != 1 {
		t.Fatalf("chain of %d: %v", len(chain), err)
	}
}

func TestALieIsNeverReturned(t *testing.T) {
	u := newUpstream(t)
	u.change = func(c *x509.Certificate) { c.DNSNames = []string{"istiod.istio-system.svc"} }
	if _, err := New(u, Config{}).Issue(t.Context(), request(t, "web")); fault(err) != signer.Lied {
		t.Errorf("got %v", err)
	}
}

func TestASlowSignerTakesFewRequestsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t)
		u.takes = time.Second
		g := New(u, Config{InFlight: 4, Waiting: 8, Patience: 10 * time.Second})
		var issued, busy atomic.Int64
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				switch _, err := g.Issue(t.Context(), request(t, "web")); {
				case err == nil:
					issued.Add(1)
				case fault(err) == signer.Busy:
					busy.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if issued.Load() != 12 || busy.Load() != 8 || u.most != 4 {
			t.Errorf("%d issued, %d sent away, %d at once; want 12, 8, 4", issued.Load(), busy.Load(), u.most)
		}
	})
}

func TestOneCallersFloodDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t)
		u.takes = time.Second
		g := New(u, Config{InFlight: 1, Waiting: 8, Patience: time.Minute})
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { _, _ = g.Issue(t.Context(), request(t, "flood")) })
		}
		synctest.Wait()
		start := time.Now()
		if _, err := g.Issue(t.Context(), request(t, "web")); err != nil || time.Since(start) > 3*time.Second {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		all.Wait()
	})
}

func TestASignerThatIsAwayIsAskedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t)
		u.takes = time.Hour
		g := New(u, Config{Timeout: time.Second})
		start := time.Now()
		for time.Since(start) < 5*time.Minute {
			_, err := g.Issue(t.Context(), request(t, "web"))
			if fault(err) != signer.Away {
				t.Fatal(err)
			}
			if g.State().Open && !strings.Contains(err.Error(), "did not answer within 1s") {
				t.Errorf("the last error is not named: %v", err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := u.asked.Load(); n < 10 || n > 20 {
			t.Errorf("asked %d times in five minutes, want 10 to 20", n)
		}
		u.takes = 0
		time.Sleep(lastPause)
		if _, err := g.Issue(t.Context(), request(t, "web")); err != nil {
			t.Errorf("after it has come back: %v", err)
		}
		if s := g.State(); s.Open || s.Failures != 0 {
			t.Errorf("state %+v", s)
		}
	})
}

func TestWhatTheSignerRefusesDoesNotOpenTheBreaker(t *testing.T) {
	u := newUpstream(t)
	u.err = signer.Errorf(signer.Refused, "the role does not allow it")
	g := New(u, Config{})
	for range 20 {
		if _, err := g.Issue(t.Context(), request(t, "web")); fault(err) != signer.Refused {
			t.Fatal(err)
		}
	}
	if u.asked.Load() != 20 {
		t.Errorf("asked %d times", u.asked.Load())
	}
}

func TestCallersThatGiveUpDoNotOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t)
		u.takes = time.Hour
		g := New(u, Config{Timeout: time.Minute})
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Millisecond, cancel)
			if _, err := g.Issue(ctx, request(t, "web")); fault(err) != signer.Away {
				t.Fatal(err)
			}
		}
		if s := g.State(); s.Open || s.Failures != 0 {
			t.Errorf("state %+v", s)
		}
	})
}

func TestRequestsThatTheSignerCannotServeAreNotSent(t *testing.T) {
	for name, tc := range map[string]struct {
		can    signer.Capabilities
		change func(*signer.Request)
		says   string
	}{
		"without the token that it needs":      {can: signer.Capabilities{NamesBesideCSR: true, Token: true}, says: "send a token"},
		"without a request that has the names": {says: "there is none"},
		"with a request that is none":          {change: func(r *signer.Request) { r.CSR = []byte("x") }, says: "certificate request"},
		"with a request without names": {change: func(r *signer.Request) {
			key, _ := leafKey()
			r.CSR, _ = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		}, says: "send one that has exactly the URIs"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t)
			u.can = tc.can
			r := request(t, "web")
			if tc.change != nil {
				tc.change(r)
			}
			_, err := New(u, Config{}).Issue(t.Context(), r)
			if fault(err) != signer.Unsuitable || !strings.Contains(err.Error(), tc.says) || u.asked.Load() > 0 {
				t.Errorf("got %v, asked %d times", err, u.asked.Load())
			}
		})
	}
}

// A signer that copies the names of the request would sign for the trust domain that the mesh has had before: that is
// the request's fault, and not a lie of the signer.
func TestNamesOfAnAliasDoNotReachASignerThatCopiesThem(t *testing.T) {
	const now, before = "spiffe://mesh.example/ns/shop/sa/web", "spiffe://cluster.local/ns/shop/sa/web"
	for asked, ok := range map[string]bool{now: true, before: false} {
		block, _ := pem.Decode([]byte(catest.CSR(t, catest.Key(t), catest.Names(t, asked))))
		uri, err := url.Parse(now)
		if err != nil {
			t.Fatal(err)
		}
		r := &signer.Request{CSR: block.Bytes, Template: &x509.Certificate{URIs: []*url.URL{uri}}}
		if err := unsuitable(signer.Capabilities{}, r); (err == nil) != ok || !ok && !strings.Contains(err.Error(), now) {
			t.Errorf("asked for %s: %v", asked, err)
		}
		if err := unsuitable(signer.Capabilities{NamesBesideCSR: true}, r); err != nil {
			t.Errorf("asked for %s of a signer that writes names itself: %v", asked, err)
		}
	}
}
