package e2e

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// TestSourcesHarmedWhileDown kills config-watcher and harms what it reads before it starts again: the directory of
// files is gone, the store's journal and an object in the store are cut off, the file with the PeerAuthentication ends
// in the middle. Every xds-server is killed as well, so that nobody has the mesh from before. Traffic goes on, and what
// was closed stays closed.
func TestSourcesHarmedWhileDown(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}})
	m.WaitPods(t, "client-0", "server-v1-0")
	const strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata:\n  name: default\n  namespace: apps\nspec:\n  " +
		"mtls:\n    mode: STRICT\n"
	m.WriteConfig(t, "mtls.yaml", strict)
	route := filepath.Join(t.TempDir(), "route.yaml")
	if err := os.WriteFile(route, []byte(
		virtualService("    - route: [{destination: {host: server, subset: v1}}]\n      headers:\n        response: {set: {x-route: stored}}\n")),
		0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := m.CLI(t, "config", "apply", "-f", route); code != 0 {
		t.Fatalf("apply: %s %s", out, errs)
	}
	client := m.From(t, "client-0")
	plain := fleet.Request{URL: "http://" + m.Pod(t, "server-v1-0").IP + ":8080/"}
	asBefore := func() error {
		a, err := client.Get(t.Context(), "http://server/")
		if err != nil {
			return err
		}
		if a.Status != 200 {
			return fmt.Errorf("status %d: %s", a.Status, a.Body)
		}
		if p, err := fleet.Direct().Do(t.Context(), plain); err == nil {
			return fmt.Errorf("a plaintext request got status %d", p.Status)
		}
		return header(a, "X-Route", "stored")
	}
	m.Eventually(t, takesEffect, asBefore)
	// config-watcher saves the last good state a moment after it takes effect; a kill before that loses it.
	m.Eventually(t, testkit.Patience, func() error {
		return saved(filepath.Join(filepath.Dir(m.ConfigDir), "run", "services", "config-watcher", "sources"), "STRICT", "x-route")
	})

	store := filepath.Join(filepath.Dir(m.ConfigDir), "run", "store")
	aside := m.ConfigDir + "-aside"
	virtual := filepath.Join(store, "VirtualService.networking.istio.io", "apps", "server.json")
	for _, c := range []struct {
		name       string
		harm, mend func() error
	}{
		{"the directory of files is gone", func() error { return os.Rename(m.ConfigDir, aside) },
			func() error { return os.Rename(aside, m.ConfigDir) }},
		{"the store's journal is cut off", func() error { return os.WriteFile(filepath.Join(store, "journal.json"), []byte(`{"sha2`), 0o600) },
			func() error { return nil }},
		{"a stored object is cut off", func() error { return os.Truncate(virtual, 100) }, func() error { return nil }},
		{"a file ends in the middle", func() error { return os.Truncate(filepath.Join(m.ConfigDir, "mtls.yaml"), int64(len(strict)-8)) },
			func() error { m.WriteConfig(t, "mtls.yaml", strict); return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.CloseGate(t, "config-watcher")
			m.Kill(t, "config-watcher")
			if err := c.harm(); err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{"xds-server-0", "xds-server-1"} {
				m.Kill(t, s)
			}
			m.OpenGate(t, "config-watcher")
			m.Eventually(t, testkit.Patience, func() error {
				status, err := sources(t, m)
				if err == nil && !strings.Contains(status, "last_good") && !strings.Contains(status, `"refused": 1`) {
					err = fmt.Errorf("nothing tells that something is wrong: %s", status)
				}
				return err
			})
			m.WaitReady(t)
			m.Eventually(t, takesEffect, asBefore)
			if err := c.mend(); err != nil {
				t.Fatal(err)
			}
		})
	}
	m.Eventually(t, testkit.Patience, func() error {
		status, err := sources(t, m)
		if err == nil && strings.Contains(status, "last_good") {
			err = fmt.Errorf("mended, and still %s", status)
		}
		return err
	})
	m.AssertNothingRejected(t)
}

// saved returns an error unless each of the texts stands in a file below dir.
func saved(dir string, texts ...string) error {
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return err
	})
	for _, text := range texts {
		if err == nil && !strings.Contains(all.String(), text) {
			err = fmt.Errorf("no file below %s has %q yet", dir, text)
		}
	}
	return err
}

// sources is what config-watcher tells anybody of its sources.
func sources(t *testing.T, m *fleet.Mesh) (string, error) {
	t.Helper()
	s, err := m.State(t).Service("config-watcher")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + s.OpsAddress + "/readyz/sources")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}
