package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// TestStartsWithoutCA starts with no certificate and gets one while it runs.
func TestStartsWithoutCA(t *testing.T) {
	w := newWorld(t)
	identity := w.ca.RootsOnly()
	r := w.start(w.options(), func(d *deps) { d.Identity = identity })
	testkit.Eventually(t, patience, func() error {
		resp, err := r.http("/readyz", "")
		if err != nil {
			return err
		}
		defer resp.Body.Close() //nolint:errcheck // test
		if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "own-certificate") || strings.Contains(string(body), `"sources"`) {
			return fmt.Errorf("%s: %s", resp.Status, body)
		}
		return nil
	})
	m, err := w.ca.NewSVID("istio-system", "config-watcher").Current()
	if err != nil {
		t.Fatal(err)
	}
	identity.Set(m)
	r.ready()
	r.apply(shop)
}

// TestCAAway runs with a real certificate manager whose ca does not exist.
func TestCAAway(t *testing.T) {
	w := newWorld(t)
	o := w.options()
	o.RootCertFile = w.ca.WriteRoot(w.dir)
	o.CATokenFile = w.issuer.TokenFile("istio-system", "config-watcher", "istio-ca")
	o.StateDir = filepath.Join(w.dir, "state")
	r := w.start(o, func(d *deps) { d.Identity = nil })
	testkit.Eventually(t, patience, func() error {
		if snapshot, _ := r.revisions.Current(); snapshot == nil {
			return fmt.Errorf("no revision without the ca")
		}
		return nil
	})
}

func TestBrokenObjectAtStartStopsNothing(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.dir, "mesh")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, filepath.Join(dir, "a.yaml"), []byte(shop+"---\n"+route(-5)))
	testkit.WriteFile(t, filepath.Join(dir, "b.yaml"), []byte("{{{"))
	o := w.options()
	o.ConfigDirs = []string{dir}
	r := w.start(o)
	sub := r.subscribe(nil, nil)
	sub.next()
	if sub.get("Service", "apps", "server.apps.svc.cluster.local") == nil {
		t.Errorf("held %v", sub.held)
	}
	metrics := r.body(t, "/metrics", "")
	for _, want := range []string{`fairlead_config_watcher_source_degraded{source="file"} 0`, `fairlead_config_watcher_source_problems{source="file"} 2`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestStoreWinsOverFiles(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.dir, "mesh")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, filepath.Join(dir, "a.yaml"), []byte(shop))
	mesh := filepath.Join(w.dir, "mesh-config.yaml")
	testkit.WriteFile(t, mesh, []byte("accessLogFile: /dev/stdout\n"))
	o := w.options()
	o.ConfigDirs, o.MeshConfigFile = []string{dir}, mesh
	r := w.start(o)
	sub := r.subscribe(nil, nil)
	sub.next()
	generation := func() string {
		ref := sub.get("VirtualService", "apps", "server").GetIstioConfig().GetSource()
		return ref.GetSource() + " " + ref.GetLocation()
	}
	if got := generation(); got != "file mesh/a.yaml:16" {
		t.Errorf("source %q", got)
	}
	if got := sub.get("MeshConfig", "", "default").GetMeshConfig().GetSource().GetSource(); got != "mesh-config-file" {
		t.Errorf("mesh configuration from %q", got)
	}
	key := &configv1.ObjectKey{Kind: "VirtualService", Namespace: "apps", Name: "server"}
	_, err := r.store().Delete(context.Background(), &configv1.DeleteRequest{Key: key})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "comes from source file (mesh/a.yaml:16)") {
		t.Errorf("deleting an object of a file: %v", err)
	}
	sub.until(r.apply(route(5)).Revision)
	if got := generation(); got != "memory " {
		t.Errorf("source %q", got)
	}
	if page := r.body(t, "/debug/sources", w.issuer.Token("istio-system", "fairlead-admin", "fairlead")); !strings.Contains(page, `"shadowed"`) {
		t.Errorf("the conflict is not told: %s", page)
	}
	deleted, err := r.store().Delete(context.Background(), &configv1.DeleteRequest{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	sub.until(deleted.Revision)
	if got := generation(); got != "file mesh/a.yaml:16" {
		t.Errorf("source %q", got)
	}
}

func TestOptions(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"good":                     {func(*Options) {}, ""},
		"no root":                  {func(o *Options) { o.RootCertFile = "" }, "--root-cert-file: is required"},
		"keys without issuer":      {func(o *Options) { o.Issuer = "" }, "--issuer: is required with --jwks-file"},
		"trust domain":             {func(o *Options) { o.TrustDomain = "Not One" }, "--trust-domain: "},
		"the same directory twice": {func(o *Options) { o.ConfigDirs = []string{"/a", "/a/"} }, "--config-dir: /a/ is given twice"},
		"resync":                   {func(o *Options) { o.ResyncPeriod = time.Millisecond }, "--resync-period: 1ms is less than 1s"},
		"cluster":                  {func(o *Options) { o.ClusterID = "a/b" }, "--cluster-id: "},
	} {
		o := w.options()
		c.change(&o)
		_, err := o.check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
