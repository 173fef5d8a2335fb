package thirdparty

import (
	"fmt"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// A sidecar of a whole mesh starts again while ca and xds-server are away, and calls as before, with mutual TLS: its
// agent answers Envoy's requests for virtual hosts as the xds-server does. When they are back it follows changes.
func TestSidecarRestartsWithoutControlPlane(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/stock.yaml"}, Args: []string{"--xds-servers", "1"}})
	m.WaitReady(t)
	a := newAgent(t, m, "ours", 3)
	a.path = binaries.Path("node-agent")
	a.args = []string{
		"proxy", "sidecar", "--cache", "--discovery-address", processOf(t, m, "xds-server-0").GRPCAddress,
		"--ca-address", processOf(t, m, "ca").GRPCAddress, "--envoy-binary", binaries.Envoy, "--bind", a.ip, "--state-dir", "state",
	}
	a.env = append(a.env, "ISTIO_META_INTERCEPTION_MODE=NONE", "TERMINATION_DRAIN_DURATION_SECONDS=0", "FAIRLEAD_LAST_GOOD_AFTER=1s")
	client := &stock{mesh: m, ip: a.ip}
	calls := func(header string) {
		t.Helper()
		m.Eventually(t, takesEffect, func() error {
			seen, err := client.get(t.Context(), "http://server.apps/")
			if err == nil && seen.Headers.Get("X-After") != header {
				err = fmt.Errorf("headers %v", seen.Headers)
			}
			return err
		})
	}
	end := func() {
		t.Helper()
		a.process.Expect()
		if err := a.process.Stop(testkit.Patience); err != nil {
			t.Fatal(err)
		}
	}
	a.start(t, m)
	calls("")
	end()

	for _, program := range []string{"xds-server", "ca"} {
		m.CloseGate(t, program)
	}
	m.Kill(t, "xds-server-0")
	m.Kill(t, "ca")
	began := time.Now()
	a.start(t, m)
	t.Cleanup(end)
	calls("")
	t.Logf("a call was answered %s after the start", time.Since(began).Round(time.Millisecond))

	for _, program := range []string{"ca", "xds-server"} {
		m.OpenGate(t, program)
	}
	m.WriteConfig(t, "route.yaml", `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: apps}
spec:
  hosts: [server]
  http: [{route: [{destination: {host: server}}], headers: {request: {set: {x-after: restart}}}}]
`)
	calls("restart")
}
