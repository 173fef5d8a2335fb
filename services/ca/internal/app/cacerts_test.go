package app

import (
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
)

// A ca signs with the files of Istio's Secret cacerts, and with others once they are replaced.
func TestAPluggedInCASigns(t *testing.T) {
	dir := t.TempDir()
	root := catest.NewCA(t, nil, catest.Key(t))
	replace := func() *catest.CA {
		issuing := catest.NewCA(t, root, catest.RSAKey(t, 2048))
		for name, content := range map[string][]byte{
			"ca-cert.pem": catest.Certs(issuing), "ca-key.pem": catest.KeyPEM(t, issuing.Key), "root-cert.pem": catest.Certs(root),
			"cert-chain.pem": catest.Certs(issuing, root),
		} {
			testkit.WriteFile(t, filepath.Join(dir, name), content)
		}
		return issuing
	}
	issuing := replace()
	h := start(t, func(o *Options) {
		o.SignerFile = filepath.Join(t.TempDir(), "signer.yaml")
		testkit.WriteFile(t, o.SignerFile, fmt.Appendf(nil,
			"apiVersion: ca.fairlead.dev/v1\nkind: Signer\nname: cacerts\ncaCerts: {directory: %s}\n", dir))
	})
	token, conn := h.token("default", "reviews"), h.dial(nil)
	signs := func(ca *catest.CA) error {
		res, err := create(as(t.Context(), token), conn, &security.IstioCertificateRequest{
			Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{}),
		})
		if err != nil {
			t.Fatal(err)
		}
		chain := res.GetCertChain()
		switch {
		case len(chain) != 3 || chain[2] != string(catest.Certs(root)):
			return fmt.Errorf("a chain of %d elements, want leaf, intermediate, and the bundle last", len(chain))
		case chain[1] != string(catest.Certs(ca)):
			return errors.New("another intermediate")
		}
		return parse(t, chain[0]).CheckSignatureFrom(ca.Cert)
	}
	if err := signs(issuing); err != nil {
		t.Fatal(err)
	}
	next := replace()
	testkit.Eventually(t, testkit.Patience, func() error { return signs(next) })
	if problem := h.metric("fairlead_ca_signer_problem", ""); problem != 0 {
		t.Errorf("a problem: %v", problem)
	}
	testkit.WriteFile(t, filepath.Join(dir, "ca-key.pem"), []byte("half a"))
	testkit.Eventually(t, testkit.Patience, func() error {
		if h.metric("fairlead_ca_signer_problem", "") != 1 {
			return errors.New("nothing is wrong")
		}
		return nil
	})
	if err := signs(next); err != nil {
		t.Error(err)
	}
}
