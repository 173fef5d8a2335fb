package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
)

// startProgram starts a program that ends with the test, and logs the end of its output if the test failed.
func startProgram(t testing.TB, path string, args ...string) {
	t.Helper()
	log := &testkit.Buffer{}
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			text := log.String()
			t.Logf("end of the log of %s:\n%s", filepath.Base(path), text[max(0, len(text)-8_000):])
		}
	})
}

// certificate writes the key and the certificate of a service account of the mesh's own namespace.
func certificate(t testing.TB, ca *testkit.CA, path, account string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	valid := testkit.Valid(time.Now().Add(-time.Minute), time.Now().AddDate(1, 0, 0))
	testkit.WriteFile(t, path, slices.Concat(testkit.KeyPEM(t, key), ca.Sign(ca.ID(meshNamespace, account), key.Public(), valid)))
}

// startXDS starts an xds-server that reads a config-watcher, and returns the address of its ADS port.
func startXDS(t testing.TB, w *watcher) netip.AddrPort {
	t.Helper()
	dir, address, ops := t.TempDir(), testkit.FreeAddress(t), testkit.FreeAddress(t)
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	certificate(t, w.ca, filepath.Join(state, svid.CacheFile), "xds-server")
	set, err := binaries.Find(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	startProgram(t, set.Path("xds-server"), "--secure-address", address.String(), "--ops-address", ops.String(), "--config-watcher-address",
		w.grpc,
		"--ca-address", "127.0.0.1:1", "--root-cert-file", w.ca.WriteRoot(dir), "--state-dir", state, "--trust-domain", testkit.TrustDomain)
	testkit.Eventually(t, patience, func() error {
		resp, err := http.Get("http://" + ops.String() + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close() //nolint:errcheck // a test
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("xds-server's /readyz answers %s", resp.Status)
		}
		return nil
	})
	return address
}

// bootstrap is that of an Envoy which has everything else from an xds-server, with a service account's certificate.
const bootstrap = `
node: {id: "%s", cluster: gateway, metadata: {CLUSTER_ID: %s}}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
dynamic_resources:
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds}}]}
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: xds
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: xds
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %s, port_value: %d}}}}]}]
    transport_socket:
      name: tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context:
          tls_params: {tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3}
          tls_certificates: [{certificate_chain: {filename: %[5]s}, private_key: {filename: %[5]s}}]
          validation_context: {trusted_ca: {filename: %[6]s}}
`

// startGateway starts an Envoy as the Pod of a gateway, with the certificate of the Pod's service account.
func startGateway(t testing.TB, w *watcher, xds netip.AddrPort, pod, ip, account string) {
	t.Helper()
	envoy := os.Getenv("ENVOY")
	if envoy == "" {
		t.Fatal("ENVOY is not set: set it to the path of an Envoy, as make test-kube does")
	}
	dir := t.TempDir()
	certificate(t, w.ca, filepath.Join(dir, "own.pem"), account)
	id := fmt.Sprintf("router~%s~%s.%s~%s.svc.cluster.local", ip, pod, meshNamespace, meshNamespace)
	file := filepath.Join(dir, "envoy.yaml")
	testkit.WriteFile(t, file, fmt.Appendf(nil, bootstrap, id, clusterID, xds.Addr(), xds.Port(), filepath.Join(dir, "own.pem"),
		w.ca.WriteRoot(dir)))
	startProgram(t, envoy, "-c", file, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning")
}
