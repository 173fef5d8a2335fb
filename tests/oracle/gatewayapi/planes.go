package gatewayapi

import (
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// system is where both control planes are.
const system = "istio-system"

// meshConfig is that of both: no mutual TLS with backends, which have no proxies.
const meshConfig = `
trustDomain: cluster.local
rootNamespace: istio-system
enableAutoMtls: false
`

// startIstiod runs Istio's pilot-discovery as its chart does, but for deployments of gateways and for what Istio's own
// filters in Envoy do.
func startIstiod(t *testing.T, bin string, s *kubeapi.Server, ca *testkit.CA) *plane {
	t.Helper()
	dir := t.TempDir()
	root, both, mesh := ca.WriteRoot(dir), filepath.Join(dir, "both.pem"), filepath.Join(dir, "mesh.yaml")
	cert, key := filepath.Join(dir, "istiod.crt"), filepath.Join(dir, "istiod.key")
	ca.WriteSVID(both, system, "istiod")
	block, rest := pem.Decode(testkit.Must(os.ReadFile(both))(t))
	testkit.WriteFile(t, key, pem.EncodeToMemory(block))
	testkit.WriteFile(t, cert, rest)
	testkit.WriteFile(t, mesh, []byte(meshConfig))
	free := func() string { return testkit.FreeAddress(t).String() }
	http, secure := free(), free()
	p := process.Run(t, process.Program{
		Name: "istiod", Path: filepath.Join(bin, "pilot-discovery"),
		Args: []string{
			"discovery", "--kubeconfig", s.Kubeconfig, "--meshConfig", mesh, "--httpAddr", http, "--grpcAddr", free(), "--secureGRPCAddr", secure,
			"--monitoringAddr", free(), "--httpsAddr", free(), "--ctrlz_port", "0", "--tlsCertFile", cert, "--tlsKeyFile", key,
			"--caCertFile", root, "--log_output_level", "default:warn",
		},
		Env: []string{
			"POD_NAMESPACE=" + system, "POD_NAME=istiod", "SERVICE_ACCOUNT=istiod", "CLUSTER_ID=Kubernetes", "ENABLE_CA_SERVER=false",
			"VALIDATION_WEBHOOK_CONFIG_NAME=", "INJECTION_WEBHOOK_CONFIG_NAME=", "PILOT_ENABLE_ANALYSIS=false",
			"PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER=false", "PILOT_ENABLE_ALPHA_GATEWAY_API=true",
			"PILOT_ENABLE_METADATA_EXCHANGE=false", "PILOT_ENABLE_ALPN_FILTER=false",
			// Envoy waits a quarter of a minute for each credential of clusters of other inputs that it may not have.
			"PILOT_FILTER_GATEWAY_CLUSTER_CONFIG=true",
		},
		Change: func(cmd *exec.Cmd) error { cmd.Dir = dir; return nil },
	})
	testkit.NoError(t, p.Until(t.Context(), testkit.Patience, func() error {
		return probe.Ready(t.Context(), probe.Client(nil), "http://"+http+"/ready")
	}))
	return &plane{name: "Istio", address: secure, account: "istiod", ca: ca, stop: func() { testkit.NoError(t, p.Stop(testkit.Patience)) }}
}

// startFairlead runs config-watcher and xds-server, whose certificates last longer than the test.
func startFairlead(t *testing.T, s *kubeapi.Server, ca *testkit.CA) *plane {
	t.Helper()
	dir := t.TempDir()
	mesh := filepath.Join(dir, "mesh.yaml")
	testkit.WriteFile(t, mesh, []byte(meshConfig))
	own := func(account string) (ops string, args []string) {
		state := filepath.Join(dir, account)
		ca.WriteSVID(filepath.Join(state, "svid", svid.CacheFile), system, account)
		if account == "xds-server" {
			ca.WriteSVID(filepath.Join(state, svid.CacheFile), system, account)
		}
		ops = testkit.FreeAddress(t).String()
		return ops, []string{"--ops-address", ops, "--trust-domain", testkit.TrustDomain, "--root-cert-file", ca.WriteRoot(dir),
			"--state-dir", state, "--ca-address", "127.0.0.1:1", "--log-level", "warn"}
	}
	var processes []*process.Process
	run := func(name, ops string, args []string) {
		processes = append(processes, process.Run(t, process.Program{Name: name, Path: binaries.Built(t, name), Args: args}))
		testkit.Eventually(t, testkit.Patience, func() error {
			return probe.Ready(t.Context(), probe.Client(nil), "http://"+ops+"/readyz")
		})
	}
	config, address := testkit.FreeAddress(t).String(), testkit.FreeAddress(t).String()
	ops, args := own("config-watcher")
	run("config-watcher", ops, append(args, "--grpc-address", config, "--kubernetes", "--kubeconfig", s.Kubeconfig, "--cluster-id", "Kubernetes",
		"--mesh-config-file", mesh))
	ops, args = own("xds-server")
	run("xds-server", ops, append(args, "--secure-address", address, "--config-watcher-address", config,
		"--forward-certificate-requests=false", "--instance", "xds-server-test"))
	return &plane{name: "Fairlead", address: address, account: "xds-server", ca: ca, stop: func() {
		for _, p := range processes {
			testkit.NoError(t, p.Stop(testkit.Patience))
		}
	}}
}
