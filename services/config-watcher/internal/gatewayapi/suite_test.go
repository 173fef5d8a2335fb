package gatewayapi_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/services/config-watcher/internal/object"
)

// suiteVariable names the directory of the module sigs.k8s.io/gateway-api/conformance; `make oracle` sets it.
const suiteVariable = "GATEWAY_API_CONFORMANCE"

// suite returns the manifests of the conformance suite by path.
func suite(t testing.TB) map[string]string {
	t.Helper()
	module := os.Getenv(suiteVariable)
	if module == "" {
		t.Skip(suiteVariable + " names no directory of the conformance suite: run `make oracle`")
	}
	out := map[string]string{}
	placeholders := strings.NewReplacer("{GATEWAY_CLASS_NAME}", "istio", "PLACEHOLDER_USABLE_ADDRS", "192.0.2.1",
		"PLACEHOLDER_UNUSABLE_ADDRS", "198.51.100.1")
	for _, pattern := range []string{"base/manifests.yaml", "mesh/manifests.yaml", "tests/*.yaml", "tests/mesh/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(module, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no manifests %s in %s: %v", pattern, module, err)
		}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			name, err := filepath.Rel(module, f)
			if err != nil {
				t.Fatal(err)
			}
			out[name] = placeholders.Replace(string(raw))
		}
	}
	return out
}

// authority is a certificate in PEM.
func authority(t testing.TB) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(1<<32, 0), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// suiteCA is the ConfigMap ca of a namespace with the certificate of an authority.
func suiteCA(t testing.TB, namespace string) string {
	return fmt.Sprintf("\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: ca, namespace: %s}\ndata:\n  ca.crt: |\n    %s\n", namespace,
		strings.ReplaceAll(authority(t), "\n", "\n    "))
}

func at(t testing.TB, text string) time.Time {
	t.Helper()
	out, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// suiteSetup has the Secrets and ConfigMaps that the suite makes in its own code.
func suiteSetup(t testing.TB) string {
	var b strings.Builder
	for _, name := range []string{
		"gateway-conformance-web-backend/certificate", "gateway-conformance-infra/tls-validity-checks-certificate",
		"gateway-conformance-infra/tls-validity-checks-client-certificate", "gateway-conformance-infra/tls-validity-checks-per-port-client-certificate",
		"gateway-conformance-infra/tls-checks-certificate", "gateway-conformance-infra/tls-checks-client-certificate",
		"gateway-conformance-infra/tls-passthrough-checks-certificate", "gateway-conformance-infra/tls-terminate-checks-certificate",
	} {
		ns, n, _ := strings.Cut(name, "/")
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\n", n, ns)
	}
	ca := strings.ReplaceAll(authority(t), "\n", "\n    ")
	for _, name := range []string{
		"gateway-conformance-web-backend/web-backend-cm", "gateway-conformance-infra/tls-validity-checks-ca-certificate",
		"gateway-conformance-infra/tls-validity-checks-per-port-ca-certificate", "gateway-conformance-infra/tls-checks-ca-certificate",
		"gateway-conformance-infra/mismatch-ca-certificate",
	} {
		ns, n, _ := strings.Cut(name, "/")
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata:\n  ca.crt: |\n    %s\n", n, ns, ca)
	}
	return b.String()
}

// suiteWorlds makes a world of each of the suite's files, with its base.
type suiteWorlds struct {
	t         testing.TB
	manifests map[string]string
	base      []*object.Object
}

func newSuiteWorlds(t testing.TB) *suiteWorlds {
	s := &suiteWorlds{t: t, manifests: suite(t)}
	s.base = parse(t, s.manifests["base/manifests.yaml"]+"\n---\n"+s.manifests["mesh/manifests.yaml"]+suiteSetup(t))
	return s
}

func (s *suiteWorlds) of(path string) (*world, []*object.Object) {
	s.t.Helper()
	own := parse(s.t, s.manifests[path])
	if len(own) == 0 {
		s.t.Fatalf("no objects in %s", path)
	}
	for _, o := range own {
		// The suite's malformed Secrets have data that is no certificate.
		if state, ok := o.Body.(*object.CredentialState); ok && strings.Contains(o.Key.Name, "malformed") {
			state.Problem = "tls.crt is no certificate"
		}
	}
	return scratch(append(slices.Clone(s.base), own...)), own
}

// TestSuite checks what the suite's own code expects of statuses, but for Programmed: testdata/suite.txt has a
// line with file, kind and object, and lines with parts of its status, where $ is the end of a line.
func TestSuite(t *testing.T) {
	raw, err := os.ReadFile("testdata/suite.txt")
	if err != nil {
		t.Fatal(err)
	}
	s := newSuiteWorlds(t)
	var of, status string
	checked := 0
	for line := range strings.Lines(string(raw)) {
		want, part := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "\t")
		if !part {
			of = want
			fields := strings.Fields(want)
			w, _ := s.of(fields[0])
			ns, n, _ := strings.Cut(fields[2], "/")
			status = statusText(w.statuses[gatewayKey(fields[1], ns, n)])
			continue
		}
		checked++
		if want = strings.ReplaceAll(want, "$", "\n"); !strings.Contains(status, want) {
			t.Errorf("%s:\n%shas not %q", of, status, want)
		}
	}
	if checked < 100 {
		t.Errorf("only %d expectations", checked)
	}
}

// TestSuiteIsAccepted checks that all other routes of the suite are taken by their parents: its tests send requests.
func TestSuiteIsAccepted(t *testing.T) {
	// Files with routes that are not accepted or not resolved, see testdata/suite.txt.
	refused := []string{
		"gateway-with-attached-routes", "httproute-disallowed-kind", "httproute-hostname-intersection", "httproute-invalid", "tcproute-invalid",
		"tlsroute-invalid", "udproute-invalid", "udproute-not-allowed", "listenerset-", "tlsroute-listener", "httproute-partially-invalid",
		"gateway-with-invalid-clientcertificate",
		"mesh/grpcroute-weight", // a backend of weight 0 does not exist
	}
	s := newSuiteWorlds(t)
	for path := range s.manifests {
		if slices.ContainsFunc(refused, func(f string) bool { return strings.Contains(path, "/"+f) }) {
			continue
		}
		w, own := s.of(path)
		for k, status := range w.statuses {
			text := statusText(status)
			bad := !strings.Contains(text, "Accepted=True") || strings.Contains(text, "False") || strings.Contains(text, "Invalid")
			if status.Route != nil && (bad || w.resources[k] == nil) {
				t.Errorf("%s: %s\n%s, resource %v", path, k, text, w.resources[k] != nil)
			}
		}
		for _, o := range own {
			if strings.HasSuffix(o.Key.Kind, "Route") && w.statuses[o.Key] == nil {
				t.Errorf("%s: %s has no status", path, o.Key)
			}
		}
	}
}
