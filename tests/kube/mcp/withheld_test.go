package mcp

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// withheldFor is how long a source withholds at least.
const withheldFor = 30 * time.Second

// entryOf is a ServiceEntry of west.
func entryOf(name string) string {
	return fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: %[1]s, namespace: %[2]s}, spec: {hosts: "+
		"[%[1]s.example.com], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}}\n---\n", name, west)
}

// withholds waits until config-watcher withholds so many objects of istiod.
func (r *rig) withholds(n int) {
	r.t.Helper()
	testkit.Eventually(r.t, testkit.Patience, func() error {
		resp, err := http.Get("http://" + r.ops + "/readyz/sources") //nolint:noctx // a test
		if err != nil {
			return err
		}
		defer resp.Body.Close() //nolint:errcheck // a test
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		var all []struct {
			Name     string
			Withheld []struct{ Objects int }
		}
		if err := json.Unmarshal(raw, &all); err != nil {
			return err
		}
		got := 0
		for _, s := range all {
			if s.Name == "mcp/"+r.secure {
				for _, w := range s.Withheld {
					got += w.Objects
				}
			}
		}
		if got != n {
			return fmt.Errorf("%d objects are withheld, want %d", got, n)
		}
		return nil
	})
}

// counts waits until config-watcher has so many objects in force.
func (r *rig) counts(n int) {
	r.t.Helper()
	testkit.Eventually(r.t, testkit.Patience, func() error {
		got, err := r.ofWatcher(r.t.Context())
		if err == nil && len(got) != n {
			err = fmt.Errorf("%d objects, want %d: %v", len(got), n, got)
		}
		return err
	})
}

// TestAnIstiodThatHasLostItsConfigurationIsHeld: it starts again with an empty directory. Nothing leaves the mesh until
// a second stream says the same, or an administrator; what is new counts at once, and a config-watcher that starts anew
// holds on too.
func TestAnIstiodThatHasLostItsConfigurationIsHeld(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(r.dir, "config")
	write := func(prefix string, n int) {
		t.Helper()
		text := ""
		for i := range n {
			text += entryOf(fmt.Sprintf("%s%02d", prefix, i))
		}
		testkit.WriteFile(t, filepath.Join(dir, "objects.yaml"), []byte(text))
	}
	testkit.NoError(t, os.MkdirAll(dir, 0o755))
	const size = 15
	write("old", size)
	files := map[string]any{"address": "fs://" + dir}
	r.startWatcher()
	r.startIstiodOf(files)
	r.follow()
	r.counts(size)
	r.istiod.Kill()
	testkit.NoError(t, os.Remove(filepath.Join(dir, "objects.yaml")))
	r.startIstiodOf(files)
	r.withholds(size)
	began := time.Now()
	r.counts(size)
	write("new", 2)
	r.counts(size + 2)
	r.withholds(0)
	if took := time.Since(began); took < withheldFor-testkit.Patience/20 {
		t.Errorf("a second list has confirmed it after %s", took)
	}
	r.counts(2)

	write("old", size)
	r.counts(size)
	write("last", 1)
	r.withholds(size)
	began = time.Now()
	testkit.NoError(t, r.watcher.Stop(testkit.Patience))
	r.runWatcher()
	r.withholds(size)
	r.counts(size + 1)
	res, err := r.store.AcceptSource(t.Context(), &configv1.AcceptSourceRequest{Name: "mcp/" + r.secure})
	if err != nil || res.GetRemoved() != size {
		t.Errorf("accepted: %v, %v", res, err)
	}
	r.counts(1)
	if took := time.Since(began); took >= withheldFor {
		t.Errorf("it took %s", took)
	}
}
