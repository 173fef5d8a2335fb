package kube

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// startXDSServer starts an xds-server that follows a config-watcher, and returns the address of its ADS port.
func startXDSServer(t testing.TB, w *watcher) netip.AddrPort {
	t.Helper()
	dir, address, ops := t.TempDir(), testkit.FreeAddress(t), testkit.FreeAddress(t)
	state := filepath.Join(dir, "state")
	w.ca.WriteSVID(filepath.Join(state, svid.CacheFile), meshNamespace, "xds-server")
	process.Run(t, process.Program{Name: "xds-server", Path: binaries.Built(t, "xds-server"), Args: []string{
		"--secure-address", address.String(), "--ops-address", ops.String(), "--trust-domain", testkit.TrustDomain,
		"--config-watcher-address", w.grpc, "--ca-address", "127.0.0.1:1", "--root-cert-file", w.ca.WriteRoot(dir), "--state-dir", state,
		"--forward-certificate-requests=false", "--instance", "xds-server-test",
	}})
	testkit.Eventually(t, patience, func() error { return probe.Ready(t.Context(), probe.Client(nil), "http://"+ops.String()+"/readyz") })
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

// startGateway starts an Envoy as the Pod of a gateway in the mesh's namespace, with the certificate of the Pod's
// service account.
func startGateway(t testing.TB, w *watcher, xds netip.AddrPort, pod, ip, account string) {
	t.Helper()
	startGatewayOf(t, w, xds, meshNamespace, pod, ip, account)
}

// startGatewayOf is startGateway for any namespace.
func startGatewayOf(t testing.TB, w *watcher, xds netip.AddrPort, namespace, pod, ip, account string) {
	t.Helper()
	envoy := os.Getenv("ENVOY")
	if envoy == "" {
		t.Fatal("ENVOY is not set: set it to the path of an Envoy, as make test-kube does")
	}
	dir := t.TempDir()
	w.ca.WriteSVID(filepath.Join(dir, "own.pem"), namespace, account)
	id := fmt.Sprintf("router~%s~%s.%s~%s.svc.cluster.local", ip, pod, namespace, namespace)
	file := filepath.Join(dir, "envoy.yaml")
	testkit.WriteFile(t, file, fmt.Appendf(nil, bootstrap, id, clusterID, xds.Addr(), xds.Port(), filepath.Join(dir, "own.pem"),
		w.ca.WriteRoot(dir)))
	process.Run(t, process.Program{Name: "envoy", Path: envoy,
		Args: []string{"-c", file, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"}})
}
