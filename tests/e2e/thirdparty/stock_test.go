package thirdparty

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"fairlead.dev/tests/e2e/internal/fleet"
)

const stockID = "spiffe://cluster.local/ns/apps/sa/stock"

// TestStockSidecar runs Istio's own pilot-agent with Envoy in a mesh that `fairlead up` runs, and asks Istio's own
// istioctl about it.
func TestStockSidecar(t *testing.T) {
	istio(t)
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/stock.yaml"}, Args: []string{"--xds-servers", "1"}})
	m.WaitReady(t)
	s := startStock(t, m)
	s.waitReady(t)
	trafficBothWays(t, m, s)

	t.Run("certificates come through the xds-server", func(t *testing.T) {
		for line := range strings.Lines(m.Log(t, "ca")) {
			if strings.Contains(line, `"decision":"issued"`) && strings.Contains(line, `"caller":"`+stockID+`","method":"jwt"`) &&
				strings.Contains(line, `"via":"spiffe://cluster.local/ns/istio-system/sa/xds-server"`) {
				return
			}
		}
		t.Errorf("the ca's audit log has no certificate of %s that came through the xds-server:\n%s", stockID, m.Log(t, "ca"))
	})
	t.Run("the certificate is renewed", func(t *testing.T) {
		before, err := s.serial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m.Eventually(t, takesEffect, func() error {
			now, err := s.serial(t.Context())
			if err == nil && now == before {
				err = fmt.Errorf("envoy still uses certificate %s", now)
			}
			return err
		})
		trafficBothWays(t, m, s)
	})
	t.Run("STRICT", func(t *testing.T) {
		if a, err := fleet.Direct().Get(t.Context(), "http://"+net.JoinHostPort(s.ip, "8080")+"/"); err == nil {
			t.Errorf("plaintext is answered: %d %s", a.Status, a.Body)
		}
	})
	t.Run("DNS", func(t *testing.T) {
		resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(s.ip, "15053"))
		}}
		m.Eventually(t, takesEffect, func() error {
			got, err := resolver.LookupHost(t.Context(), "named.example.com.")
			if err == nil && !slices.Equal(got, []string{"198.51.100.7"}) {
				err = fmt.Errorf("the agent answers %v", got)
			}
			return err
		})
	})
	t.Run("istioctl", func(t *testing.T) { istioctl(t, m, s) })
	t.Run("an xds-server that ends asks to reconnect", func(t *testing.T) {
		before := len(s.logged(t, "connected to delta upstream XDS server"))
		if err := syscall.Kill(processOf(t, m, "xds-server-0").PID, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		m.Eventually(t, takesEffect, func() error {
			if n := len(s.logged(t, "connected to delta upstream XDS server")); n == before {
				return errors.New("the agent has not connected again")
			}
			return nil
		})
		// What it is sent from now on shows that it follows again.
		m.WriteConfig(t, "route.yaml", `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: apps}
spec:
  hosts: [server]
  http: [{route: [{destination: {host: server}}], headers: {request: {set: {x-after: restart}}}}]
`)
		m.Eventually(t, takesEffect, func() error {
			seen, err := s.get(t.Context(), "http://server.apps/")
			if err == nil && seen.Headers.Get("X-After") != "restart" {
				err = fmt.Errorf("headers %v", seen.Headers)
			}
			return err
		})
		if lines := s.logged(t, "\twarn\t"); len(lines) > 0 {
			t.Errorf("the agent warns: %s", lines)
		}
	})
	trafficBothWays(t, m, s)
}

// trafficBothWays calls from the stock sidecar to one of ours and back, with mutual TLS.
func trafficBothWays(t *testing.T, m *fleet.Mesh, s *stock) {
	t.Helper()
	by := func(seen fleet.Seen, identity string) error {
		if xfcc := seen.Headers.Get("X-Forwarded-Client-Cert"); !strings.Contains(xfcc, "URI="+identity) {
			return fmt.Errorf("the caller's certificate is %q, want that of %s", xfcc, identity)
		}
		return nil
	}
	m.Eventually(t, takesEffect, func() error {
		seen, err := s.get(t.Context(), "http://server.apps/")
		if err != nil {
			return fmt.Errorf("from the stock sidecar: %w", err)
		}
		return by(seen, stockID)
	})
	m.Eventually(t, takesEffect, func() error {
		a, err := m.From(t, "client-0").Get(t.Context(), "http://stock.apps/")
		if err != nil || a.Seen.Pod != "stock" {
			return fmt.Errorf("to the stock sidecar: %d %s, %w", a.Status, a.Body, err)
		}
		return by(a.Seen, clientID)
	})
}

// istioctl shows all proxies to the administrator, and nothing to a workload.
func istioctl(t *testing.T, m *fleet.Mesh, s *stock) {
	dir := t.TempDir()
	admin, workload := filepath.Join(dir, "admin"), filepath.Join(dir, "workload")
	for out, account := range map[string]string{admin: "istio-system/fairlead-admin", workload: "apps/stock"} {
		if code, text, errOut := m.CLI(t, "credentials", account, "--out", out); code != 0 {
			t.Fatalf("fairlead credentials: exit %d: %s%s", code, text, errOut)
		}
	}
	proxies := []string{"client-0.apps", "server-0.apps", "stock-0.apps"}
	m.Eventually(t, takesEffect, func() error {
		out, errOut, err := s.istioctl(t, admin, "proxy-status", "-v=1")
		if err != nil {
			return fmt.Errorf("%w: %s", err, errOut)
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != len(proxies)+1 {
			return fmt.Errorf("proxy-status shows %d proxies, want %v:\n%s", len(lines)-1, proxies, out)
		}
		for i, p := range proxies {
			if !strings.Contains(lines[i+1], p) || strings.Count(lines[i+1], "SYNCED") < 4 || strings.Contains(lines[i+1], "STALE") {
				return fmt.Errorf("%s is not synced:\n%s", p, out)
			}
		}
		return nil
	})
	out, errOut, err := s.istioctl(t, admin, "x", "internal-debug", "syncz")
	var rows []struct{ Proxy string }
	if err != nil || json.Unmarshal([]byte(out), &rows) != nil || len(rows) != len(proxies) {
		t.Errorf("internal-debug syncz: %v\n%s%s", err, out, errOut)
	}
	if out, errOut, err = s.istioctl(t, admin, "x", "internal-debug", "config_dump?proxyID=stock-0.apps"); err != nil ||
		!strings.Contains(out, "outbound|80||server.apps.svc.cluster.local") {
		t.Errorf("internal-debug config_dump: %v\n%.2000s%s", err, out, errOut)
	}
	if out, errOut, err = s.istioctl(t, admin, "x", "internal-debug", "registryz"); err != nil || !strings.Contains(out, "config_dump") {
		t.Errorf("a page that there is not: %v\n%s%s", err, out, errOut)
	}
	if out, errOut, err = s.istioctl(t, workload, "proxy-status"); err == nil || !strings.Contains(errOut, "PermissionDenied") {
		t.Errorf("a workload is shown the fleet: %v\n%s%s", err, out, errOut)
	}
	if mode, err := os.Stat(filepath.Join(admin, "key.pem")); err != nil || mode.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", mode, err)
	}
}
