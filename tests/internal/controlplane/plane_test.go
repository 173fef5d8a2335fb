package controlplane_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/controlplane"
	"fairlead.dev/tests/internal/process"
)

// ports are free ones of loopback.
func ports(t *testing.T) controlplane.Ports {
	t.Helper()
	return controlplane.Ports{GRPC: testkit.FreeAddress(t).String(), Ops: testkit.FreeAddress(t).String()}
}

// TestServicesFindAndTrustEachOther starts one of each, kills one, and asks another as an administrator.
func TestServicesFindAndTrustEachOther(t *testing.T) {
	dir := t.TempDir()
	bin, err := binaries.Find(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	plane, err := controlplane.New(controlplane.Config{
		Dir: dir, Binaries: bin, CAPorts: ports(t), Start: func(p process.Program) (*process.Process, error) { return process.Start(p, nil) },
		Domain: "example.org", Args: []string{"--log-level", "warn"},
	})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := plane.ConfigWatcher(ports(t), "--store-dir", filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := plane.XDSServer(1, ports(t), watcher.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	if err := plane.StartCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(testkit.Patience); err != nil {
			t.Error(err)
		}
	})
	for _, s := range []*controlplane.Service{watcher, server} {
		if err := errors.Join(s.Start(), s.Start()); err != nil {
			t.Fatal(err)
		}
		if err := s.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("by name and by program", func(t *testing.T) {
		for target, want := range map[string]int{"ca": 1, "xds-server": 1, "xds-server/1": 1, "xds-server/2": 0, "xds": 0} {
			if got := len(plane.Find(target)); got != want {
				t.Errorf("%s are %d services, want %d", target, got, want)
			}
		}
	})
	t.Run("a killed one comes back", func(t *testing.T) {
		server.Kill()
		if server.Running() || server.Process() != nil {
			t.Error("it runs")
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		if err := server.WaitReady(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("one that cannot start says why", func(t *testing.T) {
		broken, err := plane.ConfigWatcher(ports(t), "--no-such-flag")
		if err != nil {
			t.Fatal(err)
		}
		if err := broken.Start(); err != nil {
			t.Fatal(err)
		}
		if err := broken.WaitReady(t.Context()); err == nil || !strings.Contains(err.Error(), "no-such-flag") {
			t.Errorf("got %v", err)
		}
		broken.Kill()
	})
	t.Run("an administrator's token opens the pages for debugging", func(t *testing.T) {
		file := filepath.Join(dir, "admin")
		if err := plane.WriteToken(file, 0, contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience); err != nil {
			t.Fatal(err)
		}
		token, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Ops+"/debug/version", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+string(token))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Error(res.Status)
		}
	})
	if id := plane.ID("apps", "web").String(); id != "spiffe://example.org/ns/apps/sa/web" {
		t.Error(id)
	}
}
