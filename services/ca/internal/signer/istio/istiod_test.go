package istio_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/emptykube"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/istio"
	"fairlead.dev/services/ca/internal/signer/signertest"
)

// istiod is Istio's own pilot-discovery as a CA, without Kubernetes: its signing key is in files, and it verifies
// tokens by the keys of an issuer.
type istiod struct {
	key     *rsa.PrivateKey
	ca      *signertest.CA
	dir     string
	address string
	log     testkit.Buffer
}

func newIstiod(t *testing.T) *istiod {
	t.Helper()
	bin := os.Getenv("ISTIO_BIN")
	if bin == "" {
		t.Skip("ISTIO_BIN names no directory with Istio's pilot-discovery: run `make signers`, or set it to the output of " +
			"tools/build-cached.sh istio")
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &istiod{key: key, dir: t.TempDir(), address: testkit.FreeAddress(t).String()}
	first := signertest.NewCA(t, "istio")
	i.writeCA(t, first, first.Root)
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "one", Use: "sig"}}})
	}))
	t.Cleanup(keys.Close)
	kube := emptykube.Start()
	t.Cleanup(kube.Close)
	kubeconfig := filepath.Join(i.dir, "kubeconfig")
	testkit.WriteFile(t, kubeconfig, kube.Kubeconfig())
	mesh := filepath.Join(i.dir, "mesh.yaml")
	testkit.WriteFile(t, mesh, []byte("trustDomain: cluster.local\n"))
	other := func() string { return testkit.FreeAddress(t).String() }
	ready := other()
	testkit.Background(t, func(ctx context.Context) error {
		c := exec.CommandContext(ctx, filepath.Join(bin, "pilot-discovery"), "discovery", "--registries=", "--kubeconfig", kubeconfig,
			"--meshConfig", mesh, "--httpAddr", ready, "--grpcAddr", "", "--secureGRPCAddr", i.address, "--monitoringAddr", other(),
			"--httpsAddr", "", "--ctrlz_port", "0")
		c.Dir = i.dir
		c.Env = append(os.Environ(), "POD_NAMESPACE=istio-system", "POD_NAME=istiod", "KUBE_FEATURE_WatchListClient=false", "ISTIO_MULTIROOT_MESH=true", "ROOT_CA_DIR="+filepath.Join(i.dir, "cacerts"),
			fmt.Sprintf(`JWT_RULE={"issuer":%q,"jwks_uri":%q,"audiences":["istio-ca"]}`, issuer, keys.URL))
		c.Stdout, c.Stderr = &i.log, &i.log
		if err := c.Run(); ctx.Err() == nil {
			return errors.Join(err, errors.New(i.log.String()))
		}
		return nil
	})
	testkit.Eventually(t, time.Minute, func() error {
		resp, err := http.Get("http://" + ready + "/ready")
		if err != nil {
			return fmt.Errorf("%w: %s", err, tail(i.log.String()))
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", resp.Status, tail(i.log.String()))
		}
		return nil
	})
	return i
}

func tail(text string) string { return text[max(0, len(text)-3000):] }

// writeCA writes the files of a plugged-in CA.
func (i *istiod) writeCA(t *testing.T, ca *signertest.CA, roots ...*x509.Certificate) {
	t.Helper()
	i.ca = ca
	dir := filepath.Join(i.dir, "cacerts")
	testkit.NoError(t, os.MkdirAll(dir, 0o700))
	key, err := x509.MarshalPKCS8PrivateKey(ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"ca-cert.pem": signertest.PEM(ca.Intermediate)[0], "cert-chain.pem": strings.Join(signertest.PEM(ca.Intermediate, ca.Root), ""),
		"root-cert.pem": strings.Join(signertest.PEM(roots...), ""),
		"ca-key.pem":    string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
	} {
		testkit.WriteFile(t, filepath.Join(dir, name), []byte(text))
	}
}

func TestIstiod(t *testing.T) {
	i := newIstiod(t)
	roots := filepath.Join(i.dir, "roots.pem")
	testkit.WriteFile(t, roots, []byte(signertest.PEM(i.ca.Root)[0]))
	var log testkit.Buffer
	cfg := istio.Config{Address: i.address, RootsFile: roots, ServerName: "istiod.istio-system.svc", ClusterID: "Kubernetes"}
	s, err := istio.New(cfg, deps(&log))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, s.Run)
	waitForRoots(t, s)
	r, _ := signertest.Request(t)
	r.Token = i.token(t, "shop:web", "istio-ca", time.Hour)
	r.Template.ExtraExtensions = []pkix.Extension{}
	chain, err := signertest.Issue(t, s, r)
	if err != nil {
		t.Fatalf("%v: %s", err, tail(i.log.String()))
	}
	if a, _ := s.Authorities(); len(chain) != 2 || len(a.Intermediates) != 1 || !a.Intermediates[0].Equal(i.ca.Intermediate) {
		t.Errorf("a chain of %d certificates, and %v", len(chain), a)
	}
	t.Run("many at once", func(t *testing.T) { signertest.Flood(t, s, r, 1024) })
	for name, tc := range map[string]struct {
		token string
		says  string
	}{
		"of another audience": {i.token(t, "shop:web", "vault", time.Hour), "audience"},
		"that has expired":    {i.token(t, "shop:web", "istio-ca", -time.Minute), "expired"},
		"of another issuer":   {testkit.NewIssuer(t).Token("shop", "web", "istio-ca"), "Unauthenticated"},
		"that is none":        {signertest.Token, "Unauthenticated"},
	} {
		t.Run("a token "+name, func(t *testing.T) {
			bad := *r
			bad.Token = tc.token
			_, err := s.Issue(t.Context(), &bad)
			signertest.WantError(t, err, signer.Refused, "send a new token", tc.says)
			if strings.Contains(err.Error(), tc.token) {
				t.Error("the error has the token")
			}
		})
	}
	t.Run("a token of another workload", func(t *testing.T) {
		bad := *r
		bad.Token = i.token(t, "kube-system:admin", "istio-ca", time.Hour)
		_, err := signertest.Issue(t, s, &bad)
		signertest.WantError(t, err, signer.Lied, "has the URIs", "kube-system")
	})
	t.Run("a lifetime that it does not give", func(t *testing.T) {
		longer, template := *r, *r.Template
		longer.Template, template.NotAfter = &template, time.Now().AddDate(1, 0, 0)
		_, err := s.Issue(t.Context(), &longer)
		signertest.WantError(t, err, signer.Refused, "TTL")
	})
	t.Run("another root", func(t *testing.T) {
		next := signertest.NewCA(t, "next")
		old := i.ca.Root
		i.writeCA(t, next, old, next.Root) // istiod takes no other root than one beside the last
		testkit.Eventually(t, time.Minute, func() error {
			if _, err = signertest.Issue(t, s, r); err == nil {
				return errors.New("the old root still signs")
			}
			return nil
		})
		signertest.WantError(t, err, signer.Lied, "calls these its roots", roots)
		testkit.WriteFile(t, roots, []byte(strings.Join(signertest.PEM(old, next.Root), "")))
		testkit.Eventually(t, testkit.Patience, func() error {
			_, err := signertest.Issue(t, s, r)
			return err
		})
	})
}

const issuer = "https://issuer.test"

// token is a service account's, signed with RS256, which is all that istiod takes.
func (i *istiod) token(t *testing.T, account, audience string, ttl time.Duration) string {
	t.Helper()
	return testkit.Must(sign(i.key, account, audience, ttl))(t)
}

func sign(key *rsa.PrivateKey, account, audience string, ttl time.Duration) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: key, KeyID: "one"}}, nil)
	if err != nil {
		return "", err
	}
	return jwt.Signed(signer).Claims(map[string]any{ // a single audience is a list of one, as Kubernetes writes it
		"iss": issuer, "sub": "system:serviceaccount:" + account, "aud": []string{audience}, "exp": time.Now().Add(ttl).Unix(),
	}).Serialize()
}
