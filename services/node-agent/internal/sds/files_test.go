package sds

import (
	"bytes"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

// watched is a stream for one secret, as Envoy opens them.
type watched struct {
	t    *testing.T
	name string
	secretv3.SecretDiscoveryService_StreamSecretsClient
}

func (f *fixture) watch(t *testing.T, name string) *watched {
	t.Helper()
	stream, err := f.client.StreamSecrets(f.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: TypeURL, ResourceNames: []string{name}}); err != nil {
		t.Fatal(err)
	}
	return &watched{t, name, stream}
}

// next receives the next secret and acknowledges it.
func (w *watched) next() *tlsv3.Secret {
	w.t.Helper()
	r, err := w.Recv()
	if err != nil {
		w.t.Fatal(err)
	}
	if len(r.GetResources()) != 1 {
		w.t.Fatalf("%d secrets", len(r.GetResources()))
	}
	if err := w.Send(&discoveryv3.DiscoveryRequest{
		TypeUrl: TypeURL, ResourceNames: []string{w.name}, ResponseNonce: r.GetNonce(), VersionInfo: r.GetVersionInfo(),
	}); err != nil {
		w.t.Fatal(err)
	}
	s := unpack(w.t, r.GetResources()[0])
	if s.GetName() != w.name {
		w.t.Errorf("secret %q for %q", s.GetName(), w.name)
	}
	return s
}

func (w *watched) wantPair(m *tlsconf.Material) {
	w.t.Helper()
	got := w.next().GetTlsCertificate()
	if !bytes.Equal(got.GetCertificateChain().GetInlineBytes(), bytes.TrimSpace(m.CertPEM)) ||
		!bytes.Equal(got.GetPrivateKey().GetInlineBytes(), bytes.TrimSpace(m.KeyPEM)) {
		w.t.Error("another pair")
	}
}

func writePair(t *testing.T, dir string, m *tlsconf.Material) {
	t.Helper()
	for name, content := range map[string][]byte{"cert.pem": m.CertPEM, "key.pem": m.KeyPEM} {
		testkit.WriteFile(t, filepath.Join(dir, name), content)
	}
}

// The secret is sent when the files appear, and again when both are replaced, in place or by a link to another
// directory. The workload has no certificate of its own.
func TestPairOfFilesIsSentWhenComplete(t *testing.T) {
	ca := testkit.PKI(t)
	f := newFixture(t, nil, ca)
	testkit.Background(t, f.server.Run)
	dir := filepath.Join(t.TempDir(), "later")
	name := pairPrefix + filepath.Join(dir, "cert.pem") + pairSeparator + filepath.Join(dir, "key.pem")
	w := f.watch(t, name)
	first, second := current(t, ca.NewSVID("a", "b")), current(t, ca.NewSVID("a", "c"))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	writePair(t, dir, first)
	w.wantPair(first)

	// Replaced by half: no secret is sent before the key is replaced too.
	testkit.WriteFile(t, filepath.Join(dir, "cert.pem"), second.CertPEM)
	testkit.Eventually(t, testkit.Patience, func() error {
		f.server.files.mu.Lock()
		defer f.server.files.mu.Unlock()
		if s := f.server.files.secrets[name]; !strings.Contains(s.problem, "does not match") {
			return fmt.Errorf("problem: %q", s.problem)
		}
		return nil
	})
	testkit.WriteFile(t, filepath.Join(dir, "key.pem"), second.KeyPEM)
	w.wantPair(second)

	// Kubernetes replaces a volume's files by a link to another directory.
	third := current(t, ca.NewSVID("a", "d"))
	other := f.watch(t, name)
	other.wantPair(second)
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Mkdir(moved, 0o700); err != nil {
		t.Fatal(err)
	}
	writePair(t, moved, third)
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(moved, dir); err != nil {
		t.Fatal(err)
	}
	w.wantPair(third)
	other.wantPair(third)

	for _, stream := range []*watched{w, other} {
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		f.server.files.mu.Lock()
		defer f.server.files.mu.Unlock()
		if n := len(f.server.files.secrets); n != 0 {
			return fmt.Errorf("%d names are still followed", n)
		}
		return nil
	})
}

func TestRootsOfFiles(t *testing.T) {
	ca := testkit.PKI(t)
	f := newFixture(t, current(t, ca.NewSVID("a", "b")), ca)
	testkit.Background(t, f.server.Run)
	path := filepath.Join(t.TempDir(), "root.pem")
	testkit.WriteFile(t, path, []byte("no certificate"))
	w := f.watch(t, rootPrefix+path)
	testkit.WriteFile(t, path, ca.RootPEM)
	if got := w.next().GetValidationContext().GetTrustedCa().GetInlineBytes(); !bytes.Equal(got, bytes.TrimSpace(ca.RootPEM)) {
		t.Errorf("roots %q", got)
	}
	system := f.watch(t, rootPrefix+systemRoots)
	for _, known := range systemFiles {
		if _, err := os.Stat(known); err == nil {
			if got := system.next().GetValidationContext().GetTrustedCa().GetInlineBytes(); !bytes.Contains(got, []byte("BEGIN CERTIFICATE")) {
				t.Errorf("the system's roots are %.40q", got)
			}
			break
		}
	}
}

func TestRootsWithARevocationListFollowTheList(t *testing.T) {
	ca := testkit.PKI(t)
	f := newFixture(t, nil, ca)
	testkit.Background(t, f.server.Run)
	dir := t.TempDir()
	root, list := filepath.Join(dir, "root.pem"), filepath.Join(dir, "list.pem")
	testkit.WriteFile(t, root, ca.RootPEM)
	testkit.WriteFile(t, list, []byte("no list"))
	w := f.watch(t, rootPrefix+root+pairSeparator+list)
	for _, crl := range [][]byte{ca.Revoke(big.NewInt(1)), ca.Revoke(big.NewInt(1), big.NewInt(2))} {
		testkit.WriteFile(t, list, crl)
		got := w.next().GetValidationContext()
		if !bytes.Equal(got.GetTrustedCa().GetInlineBytes(), bytes.TrimSpace(ca.RootPEM)) ||
			!bytes.Equal(got.GetCrl().GetInlineBytes(), bytes.TrimSpace(crl)) {
			t.Errorf("got %v", got)
		}
	}
	for name, wrong := range map[string][]byte{"another kind": ca.RootPEM,
		"broken": []byte("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")} {
		if checkCRL(wrong) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestLabelOfSecretNames(t *testing.T) {
	for name, want := range map[string]string{
		"file-cert:/a~/b": fromFile, "file-root:/a": fromFile, "file-root:system": fromFile, "file-root:/a~/b": fromFile, "file-root:/a~": "",
		"file-root:~/b": "", "file-root:/a~/b~/c": "", Default: Default, RootCA: RootCA,
		"file-cert:/a": "", "file-cert:/a~": "", "file-cert:~/b": "", "file-cert:/a~/b~/c": "", "file-root:": "", "other": "", "": "",
	} {
		if got := label(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}
