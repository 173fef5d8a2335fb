package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// TestWorkloadsOfDifferentRootsAcceptEachOther has two sidecars whose certificates come from authorities of their own.
// They refuse each other until the mesh's caCertificates has both roots. No agent is restarted for it.
func TestWorkloadsOfDifferentRootsAcceptEachOther(t *testing.T) {
	certs := t.TempDir()
	roots := map[string]*testkit.CA{}
	for _, account := range []string{"client", "server"} {
		ca := testkit.NewCA(t, "cluster.local", time.Now())
		own, err := ca.NewSVID("apps", account).Current()
		if err != nil {
			t.Fatal(err)
		}
		roots[account] = ca
		pod := filepath.Join(certs, map[string]string{"client": "client-0", "server": "server-v1-0"}[account])
		if err := os.Mkdir(pod, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string][]byte{"cert-chain.pem": own.CertPEM, "key.pem": own.KeyPEM, "root-cert.pem": ca.RootPEM} {
			testkit.WriteFile(t, filepath.Join(pod, name), content)
		}
	}
	in := func(name string) string { return filepath.Join(certs, "$POD_NAME", name) }
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}, Env: map[string][]string{"node-agent": {
		"PROXY_CONFIG_XDS_AGENT=true", "FILE_MOUNTED_CERTS=true", "ISTIO_META_TLS_CLIENT_CERT_CHAIN=" + in("cert-chain.pem"),
		"ISTIO_META_TLS_CLIENT_KEY=" + in("key.pem"), "ISTIO_META_TLS_CLIENT_ROOT_CERT=" + in("root-cert.pem"),
	}}})
	const strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: apps}\nspec: {mtls: " +
		"{mode: STRICT}}\n"
	m.WriteConfig(t, "mtls.yaml", strict)
	m.WaitPods(t, "client-0", "server-v1-0")
	client := m.From(t, "client-0")
	refused := func() error {
		a, err := client.Get(t.Context(), "http://server/")
		if err == nil && a.Status != 503 {
			err = fmt.Errorf("status %d: %s", a.Status, a.Body)
		}
		return err
	}
	trust := func(accounts ...string) {
		t.Helper()
		text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    caCertificates:\n"
		for _, account := range accounts {
			text += "    - pem: |\n        " + strings.ReplaceAll(strings.TrimSpace(string(roots[account].RootPEM)), "\n", "\n        ") + "\n"
		}
		m.WriteConfig(t, "istio.yaml", text)
	}
	m.Eventually(t, takesEffect, refused)
	before := [2]int{m.Pod(t, "client-0").Agent.PID, m.Pod(t, "server-v1-0").Agent.PID}
	trust("client", "server")
	mustReach(t, m, client, clientID)
	if after := [2]int{m.Pod(t, "client-0").Agent.PID, m.Pod(t, "server-v1-0").Agent.PID}; after != before {
		t.Errorf("agents were restarted: %v, before %v", after, before)
	}
}
