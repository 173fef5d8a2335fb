package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// TestClaimsAreNotBelieved has a workload of a gateway's namespace say that it were the gateway, by name, by label and
// as what a DestinationRule selects, and refuse configuration in others' names.
func TestClaimsAreNotBelieved(t *testing.T) {
	chain, key := testkit.PKI(t).NewServer("shop.example.com")
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/echo.yaml", "testdata/identity.yaml"}})
	m.WriteConfig(t, "shop-tls.yaml", strings.ReplaceAll(tlsSecret("shop-tls", chain, key, nil), "istio-system", "apps"))
	m.WaitReady(t)
	gateway := m.Pod(t, "gateway-0")
	const secret = "kubernetes://shop-tls"
	claim := func(id string, labels map[string]any) *adstest.Delta {
		t.Helper()
		return m.Claiming(t, "client-0", "xds-server-0",
			adstest.Node(id, map[string]any{"NAMESPACE": "apps", "LABELS": labels, "INSTANCE_IPS": gateway.IP}))
	}
	edge, v2 := map[string]any{"app": "edge-gateway"}, map[string]any{"app": "server", "version": "v2"}
	client := m.Pod(t, "client-0")
	for name, a := range map[string]*adstest.Delta{
		"a made-up router":       claim("router~"+gateway.IP+"~made-up.apps~apps.svc.cluster.local", edge),
		"the client as a router": claim("router~"+client.IP+"~client-0.apps~apps.svc.cluster.local", edge),
		"a made-up sidecar":      claim("sidecar~"+gateway.IP+"~made-up-2.apps~apps.svc.cluster.local", v2),
	} {
		t.Run(name, func(t *testing.T) {
			testkit.NoError(t, a.Subscribe(resource.SecretType, secret))
			got := testkit.Must(a.Next(resource.SecretType))(t)
			if len(got.GetResources()) > 0 || !slices.Equal(got.GetRemovedResources(), []string{secret}) {
				t.Errorf("was answered with %d secrets, removed %v", len(got.GetResources()), got.GetRemovedResources())
			}
			testkit.NoError(t, a.Answer(got, nil))
			testkit.NoError(t, a.Subscribe(listenerType, "*"))
			listeners := testkit.Must(a.Next(listenerType))(t)
			testkit.NoError(t, a.Answer(listeners, nil))
			for _, l := range listeners.GetResources() {
				if strings.HasSuffix(l.GetName(), "_8443") {
					t.Errorf("was given the gateway's listener %s", l.GetName())
				}
			}
		})
	}
	own := claim("router~"+gateway.IP+"~gateway-0.apps~apps.svc.cluster.local", edge)
	testkit.NoError(t, own.Subscribe(resource.SecretType, secret))
	if _, err := own.Recv(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "gateway-0") ||
		!strings.Contains(err.Error(), "/sa/client") {
		t.Errorf("with the gateway's node id: %v", err)
	}

	// What it rejects is shown for what it is, and nobody waits for it.
	forger := claim("sidecar~"+gateway.IP+"~made-up-3.apps~apps.svc.cluster.local", edge)
	testkit.NoError(t, forger.Subscribe(clusterType, "*"))
	testkit.NoError(t, forger.Answer(testkit.Must(forger.Next(clusterType))(t), errors.New("forged")))
	m.Eventually(t, takesEffect, func() error {
		code, out, errOut := m.CLI(t, "proxy-status")
		if line := lineOf(out, "made-up-3.apps (unverified)"); code != 0 || !strings.Contains(line, "ERROR") {
			return fmt.Errorf("exit code %d: %s%s", code, out, errOut)
		}
		return nil
	})
	file := filepath.Join(t.TempDir(), "route.yaml")
	testkit.WriteFile(t, file, []byte(virtualService("    - route: [{destination: {host: server, subset: v1}}]\n")))
	if code, out, errOut := m.CLI(t, "config", "apply", "--wait", "-f", file); code != 0 {
		t.Errorf("config apply --wait: exit code %d: %s%s", code, out, errOut)
	}
}
