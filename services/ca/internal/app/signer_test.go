package app

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
)

// signerFile writes one that keeps its keys in a directory of the test's.
func signerFile(t *testing.T, o *Options) {
	t.Helper()
	dir := t.TempDir()
	o.SignerFile = filepath.Join(dir, "signer.yaml")
	testkit.WriteFile(t, o.SignerFile, fmt.Appendf(nil, `apiVersion: ca.fairlead.dev/v1
kind: Signer
name: disk
intermediate:
  keys: {directory: {dir: %s/keys}}
  selfSigned: {}
`, dir))
}

func TestASignerFileChoosesTheSigner(t *testing.T) {
	h := start(t, func(o *Options) { signerFile(t, o) })
	conn := h.dial(nil)
	key := catest.Key(t)
	res, err := create(as(t.Context(), h.token("default", "reviews")), conn,
		&security.IstioCertificateRequest{Csr: catest.CSR(t, key, &x509.CertificateRequest{})})
	if err != nil {
		t.Fatal(err)
	}
	bundle, _ := h.server.publisher.Current()
	if chain := res.GetCertChain(); len(chain) != 3 || chain[2] != strings.Join(bundle.Roots, "") {
		t.Fatalf("chain of %d elements, want leaf, intermediate, and the bundle last", len(chain))
	}
	leaf, intermediates := parse(t, res.CertChain[0]), x509.NewCertPool()
	intermediates.AddCert(parse(t, res.CertChain[1]))
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: h.roots(), Intermediates: intermediates,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if at := h.metric("fairlead_ca_issuer_expiry_timestamp_seconds", ""); at < float64(time.Now().Add(29*24*time.Hour).Unix()) {
		t.Errorf("the intermediate ends at %f", at)
	}
}

// Stock agents take roots from the last element of the answer alone.
func TestTheLastElementIsTheWholeBundle(t *testing.T) {
	other := testkit.PKI(t).RootPEM
	h := start(t, func(o *Options) {
		o.ExtraRootsFile = filepath.Join(t.TempDir(), "extra.pem")
		testkit.WriteFile(t, o.ExtraRootsFile, other)
	})
	res, err := create(as(t.Context(), h.token("default", "reviews")), h.dial(nil),
		&security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})})
	if err != nil {
		t.Fatal(err)
	}
	last := []byte(res.CertChain[len(res.CertChain)-1])
	count := 0
	for block, rest := pem.Decode(last); block != nil; block, rest = pem.Decode(rest) {
		count++
	}
	if count != 2 || !strings.Contains(string(last), string(other)) {
		t.Errorf("%d roots in the last element, want that of the ca and the extra one", count)
	}
}

func TestABadSignerFileStopsTheStart(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	o := defaults(t, issuer)
	o.SignerFile = filepath.Join(t.TempDir(), "signer.yaml")
	if _, err := open(t.Context(), &o, deps{Deps: service.Deps{Registry: prometheus.NewRegistry(), Log: testkit.Logger(t)}}); err == nil ||
		!strings.Contains(err.Error(), "--signer-file") {
		t.Errorf("got %v", err)
	}
}

// Another ca signs for workloads; it gives no DNS names, so the ca signs its services' certificates with its own root.
func TestAnotherCASignsWithEachWorkloadsToken(t *testing.T) {
	other := start(t, func(o *Options) { o.DNSNames = []string{"istio-system/ca=localhost"} })
	roots := filepath.Join(t.TempDir(), "roots.pem")
	bundle, _ := other.server.publisher.Current()
	testkit.WriteFile(t, roots, []byte(strings.Join(bundle.Roots, "")))
	o := defaults(t, other.issuer)
	o.SignerFile = filepath.Join(t.TempDir(), "signer.yaml")
	o.DNSNames = append(o.DNSNames, "istio-system/injector=injector.istio-system.svc")
	testkit.WriteFile(t, o.SignerFile, fmt.Appendf(nil, `apiVersion: ca.fairlead.dev/v1
kind: Signer
name: other
istio: {address: %q, serverName: localhost, rootsFile: %s}
`, other.Address("grpc-address"), roots))
	h := startWith(t, other.issuer, o)
	issue := func(namespace, account string) (leaf *x509.Certificate, err error) {
		id := "spiffe://" + testkit.TrustDomain + "/ns/" + namespace + "/sa/" + account
		res, err := create(as(t.Context(), h.token(namespace, account)), h.dial(nil),
			&security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), catest.Names(t, id))})
		if err != nil {
			return nil, err
		}
		return parse(t, res.CertChain[0]), nil
	}
	workload, err := issue("default", "reviews")
	if err != nil {
		t.Fatal(err)
	}
	theirs := x509.NewCertPool()
	theirs.AppendCertsFromPEM([]byte(strings.Join(bundle.Roots, "")))
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := workload.Verify(x509.VerifyOptions{Roots: theirs, KeyUsages: usages}); err != nil {
		t.Errorf("the workload's certificate is not the other ca's: %v", err)
	}
	service, err := issue("istio-system", "injector")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := service.Verify(x509.VerifyOptions{Roots: theirs, KeyUsages: usages}); err == nil ||
		service.DNSNames[0] != "injector.istio-system.svc" {
		t.Errorf("the service's certificate has the names %q, and is the other ca's", service.DNSNames)
	}
	if _, err := service.Verify(x509.VerifyOptions{Roots: h.roots(), KeyUsages: usages}); err != nil {
		t.Error(err)
	}
}
