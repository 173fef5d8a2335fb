package app

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

const strictApps = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: apps}
spec: {mtls: {mode: STRICT}}
`

// put writes a file and makes its directory.
func put(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, path, []byte(content))
}

// waits expects the service to be unready for a reason that names its parts, without a revision and without telling
// paths to everybody.
func (r *running) waits(want ...string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		code, body, err := r.Get("/readyz", "")
		if err != nil || code != http.StatusServiceUnavailable {
			return fmt.Errorf("/readyz: %d %w", code, err)
		}
		for _, w := range want {
			if !strings.Contains(body, w) {
				return fmt.Errorf("%q lacks %q", body, w)
			}
		}
		if strings.Contains(body, r.dir) {
			r.t.Errorf("a path is told to anybody: %s", body)
		}
		return nil
	})
	if snapshot, _ := r.revisions.Current(); snapshot != nil {
		r.t.Error("a revision without a source that nobody has read")
	}
}

// statefulOptions are options with a directory of state and one of configuration, which holds the shop.
func (f *fixture) statefulOptions() (o Options, dir string) {
	o, dir = f.options(), filepath.Join(f.dir, "mesh")
	o.ConfigDirs, o.StateDir = []string{dir}, filepath.Join(f.dir, "state")
	put(f.t, filepath.Join(dir, "a.yaml"), shop+"---"+strictApps)
	return o, dir
}

func (r *running) strict() *security.PeerAuthentication {
	r.t.Helper()
	sub := r.subscribe(nil, nil)
	sub.next()
	spec := &security.PeerAuthentication{}
	if res := sub.get("PeerAuthentication", "apps", "strict").GetIstioConfig().GetSpec(); res == nil {
		r.t.Errorf("no PeerAuthentication among %d resources", len(sub.held))
	} else if err := res.UnmarshalTo(spec); err != nil {
		r.t.Error(err)
	}
	if sub.get("Service", "apps", "server.apps.svc.cluster.local") == nil {
		r.t.Errorf("the mesh is empty: %v", sub.held)
	}
	return spec
}

// TestNoRevisionFromSourceNeverRead: while a source has not been read even once there is no revision, and readiness
// says whose it is and what to do.
func TestNoRevisionFromSourceNeverRead(t *testing.T) {
	f := newFixture(t)
	o, dir := f.statefulOptions()
	if err := os.Rename(dir, dir+"-aside"); err != nil {
		t.Fatal(err)
	}
	for _, state := range []string{"", o.StateDir} {
		o.StateDir = state
		r := f.start(o)
		r.waits("file cannot be read", "--config-dir")
		if body := r.body(t, "/readyz/sources", ""); !strings.Contains(body, `"degraded": "cannot be read"`) || strings.Contains(body, f.dir) {
			t.Errorf("sources: %s", body)
		}
		if metrics := r.body(t, "/metrics", ""); !strings.Contains(metrics, `fairlead_config_watcher_source_degraded{source="file"} 1`) {
			t.Error("no metric tells")
		}
		if state != "" {
			// It comes later: served then.
			if err := os.Rename(dir+"-aside", dir); err != nil {
				t.Fatal(err)
			}
			r.WaitReady()
			r.strict()
		}
		r.Stop()
	}
}

// TestSourcesUnreadableAtRestart: what was read once is served from its last good state, which says so, and is current
// again without a restart.
func TestSourcesUnreadableAtRestart(t *testing.T) {
	f := newFixture(t)
	o, dir := f.statefulOptions()
	mesh := filepath.Join(f.dir, "mesh-config.yaml")
	testkit.WriteFile(t, mesh, []byte("accessLogFile: /dev/stdout\n"))
	o.MeshConfigFile = mesh
	r := f.start(o)
	r.WaitReady()
	r.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: stored}\n")
	r.Stop()
	journal := filepath.Join(o.StoreDir, "journal.json")
	for name, c := range map[string]struct {
		harm, mend  func()
		source, log string
	}{
		"config directory": {
			func() { _ = os.Rename(dir, dir+"-aside") }, func() { _ = os.Rename(dir+"-aside", dir) }, "file", "",
		},
		"mesh configuration": {
			func() { _ = os.Rename(mesh, mesh+"-aside") }, func() { _ = os.Rename(mesh+"-aside", mesh) }, "mesh-config-file", "",
		},
		"store's directory": {
			func() { _ = os.Rename(o.StoreDir, o.StoreDir+"-aside") },
			func() { _ = os.RemoveAll(o.StoreDir); _ = os.Rename(o.StoreDir+"-aside", o.StoreDir) }, "memory", "",
		},
		"store's journal": {func() { put(t, journal, `{"sha256":"12","journal":{"rename":[{"te`) }, func() {}, "",
			"journal of an interrupted write is damaged"},
		"stored object": {
			func() { put(t, filepath.Join(o.StoreDir, "Namespace", "_cluster", "stored.json"), `{"key":{"ki`) }, func() {}, "",
			"Namespace stored: file is damaged",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.harm()
			r := f.start(o)
			r.WaitReady()
			sub := r.subscribe(nil, nil)
			sub.next()
			if sub.get("Service", "apps", "server.apps.svc.cluster.local") == nil || sub.get("PeerAuthentication", "apps", "strict") == nil ||
				sub.get("Namespace", "", "stored") == nil || sub.get("MeshConfig", "", "default").GetMeshConfig().GetSource() == nil {
				t.Errorf("the mesh has lost objects: %v", sub.held)
			}
			token := f.admin()
			if page := r.body(t, "/debug/sources", token); !strings.Contains(page, c.log) {
				t.Errorf("%q is not told: %s", c.log, page)
			}
			lastGood := fmt.Sprintf("fairlead_config_watcher_source_last_good{source=%q}", c.source)
			if c.source != "" {
				if body := r.body(t, "/readyz/sources", ""); !strings.Contains(body, `"last_good": "`) {
					t.Errorf("nothing says that an old state is served: %s", body)
				}
				if metrics := r.body(t, "/metrics", ""); !strings.Contains(metrics, lastGood+" 1") {
					t.Error("no metric says that an old state is served")
				}
			}
			c.mend()
			testkit.Eventually(t, patience, func() error {
				if c.source != "" && !strings.Contains(r.body(t, "/metrics", ""), lastGood+" 0") {
					return errors.New("still served from the last good state")
				}
				return nil
			})
			if c.source == "" {
				r.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: stored, labels: {again: " + `"` + fmt.Sprint(len(name)) + `"}}` + "\n")
			}
			r.Stop()
		})
	}
}

// TestBrokenPeerAuthenticationAfterRestart is the attack on a STRICT mesh: cut the object's file off and restart.
func TestBrokenPeerAuthenticationAfterRestart(t *testing.T) {
	f := newFixture(t)
	o, dir := f.statefulOptions()
	path := filepath.Join(dir, "strict.yaml")
	put(t, filepath.Join(dir, "a.yaml"), shop)
	put(t, path, strictApps)
	r := f.start(o)
	if got := r.strict().GetMtls().GetMode(); got != security.PeerAuthentication_MutualTLS_STRICT {
		t.Errorf("mode %v", got)
	}
	r.Stop()
	for name, text := range map[string]string{"cut off": strictApps[:len(strictApps)-14],
		"misspelt": strings.Replace(strictApps, "STRICT", "STRIKT", 1)} {
		put(t, path, text)
		for _, state := range []string{o.StateDir, filepath.Join(f.dir, "empty-"+strings.ReplaceAll(name, " ", "-"))} {
			c := o
			c.StateDir = state
			r := f.start(c)
			if got := r.strict().GetMtls().GetMode(); got != security.PeerAuthentication_MutualTLS_STRICT {
				t.Errorf("%s: mode %v", name, got)
			}
			page := r.body(t, "/debug/sources", f.admin())
			if held := strings.Contains(page, "holds namespace apps closed: STRICT until corrected"); held != (state != o.StateDir) ||
				!strings.Contains(page, "strict.yaml") {
				t.Errorf("%s: %s", name, page)
			}
			r.Stop()
		}
	}
}

// TestOneOwnerOfDirectories: a second config-watcher on a directory refuses to start, and names the first.
func TestOneOwnerOfDirectories(t *testing.T) {
	f := newFixture(t)
	o, _ := f.statefulOptions()
	first := f.start(o)
	for flag, change := range map[string]func(*Options){
		"--store-dir": func(c *Options) { c.StateDir = filepath.Join(f.dir, "other") },
		"--state-dir": func(c *Options) { c.StoreDir = filepath.Join(f.dir, "another") },
	} {
		c := o
		change(&c)
		_, err := open(context.Background(), &c, f.deps(f.ca.RootsOnly()))
		if err == nil || process.ExitCode(err) != process.ExitUsage || !strings.Contains(err.Error(), flag) ||
			!strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
			t.Errorf("%s: %v", flag, err)
		}
	}
	first.Stop()
	f.start(o).WaitReady()
}

// TestStoredSecretsAreEncrypted writes a Secret and reads the files; without its key the service refuses to start and
// leaves them alone.
func TestStoredSecretsAreEncrypted(t *testing.T) {
	f := newFixture(t)
	o, dir := f.statefulOptions()
	keyFile := filepath.Join(f.dir, "keys")
	put(t, keyFile, hex.EncodeToString([]byte(strings.Repeat("k", 32))))
	o.StoreKeyFile = keyFile
	secret := func(name string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: " + name + ", namespace: apps}\nstringData: {password: hunter2}\n"
	}
	put(t, filepath.Join(dir, "secret.yaml"), secret("filed"))
	r := f.start(o)
	r.WaitReady()
	r.apply(secret("stored"))
	r.Stop()
	for _, d := range []string{o.StoreDir, o.StateDir} {
		files := 0
		_ = filepath.WalkDir(d, func(path string, e os.DirEntry, _ error) error {
			if e.IsDir() {
				return nil
			}
			files++
			content, err := os.ReadFile(path)
			if err != nil || strings.Contains(string(content), "hunter2") || strings.Contains(string(content), "aHVudGVyMg") {
				t.Errorf("%s holds the password: %v", path, err)
			}
			if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v %v", path, info.Mode(), err)
			}
			return nil
		})
		if files < 3 {
			t.Errorf("%d files in %s", files, d)
		}
	}
	other := filepath.Join(f.dir, "other-keys")
	put(t, other, hex.EncodeToString([]byte(strings.Repeat("x", 32))))
	stored := filepath.Join(o.StoreDir, "Secret", "apps", "stored.json")
	before, err := os.ReadFile(stored)
	if err != nil {
		t.Fatal(err)
	}
	for _, keys := range []string{"", other} {
		c := o
		c.StoreKeyFile = keys
		s, err := open(context.Background(), &c, f.deps(f.ca.RootsOnly()))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err = s.Run(ctx)
		cancel()
		if err == nil || process.ExitCode(err) != process.ExitUsage || !strings.Contains(err.Error(), "Secret apps/stored") ||
			!strings.Contains(err.Error(), "--store-encryption-key-file") {
			t.Errorf("with keys %q: %v", keys, err)
		}
	}
	if after, err := os.ReadFile(stored); err != nil || string(after) != string(before) {
		t.Errorf("the file was changed: %v", err)
	}
	r = f.start(o)
	r.WaitReady()
	if _, err := r.store().Get(context.Background(),
		&configv1.GetRequest{Key: &configv1.ObjectKey{Kind: "Secret", Namespace: "apps", Name: "stored"}}); err != nil {
		t.Error(err)
	}
}

// TestStoreAlarm fills the store's disk: the service stays ready, says that writes are refused and why, lets objects be
// deleted, and recovers by itself.
func TestStoreAlarm(t *testing.T) {
	f := newFixture(t)
	var full atomic.Bool
	r := f.start(f.options(), func(d *deps) {
		d.StoreFS = fileio.FS{Fault: func(step fileio.Step, path string) error {
			if full.Load() && step == fileio.StepWrite {
				return &os.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
			}
			return nil
		}}
	})
	r.WaitReady()
	r.apply(shop)
	full.Store(true)
	tell := func(alarm bool) {
		t.Helper()
		r.WaitReady()
		if body := r.body(t, "/readyz/sources", ""); strings.Contains(body, `"alarm": "takes no writes`) != alarm ||
			strings.Contains(body, f.dir) {
			t.Errorf("alarm %v: %s", alarm, body)
		}
		want := map[bool]string{true: "fairlead_config_watcher_store_alarm 1", false: "fairlead_config_watcher_store_alarm 0"}[alarm]
		if metrics := r.body(t, "/metrics", ""); !strings.Contains(metrics, want) ||
			alarm && strings.Contains(metrics, "store_refused_writes_total 0") {
			t.Errorf("metrics lack %s", want)
		}
	}
	for range 2 {
		if _, err := r.tryApply(strictApps); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no space left on device") {
			t.Errorf("got %v", err)
		}
		tell(true)
	}
	remove := func(kind string) {
		t.Helper()
		if _, err := r.store().Delete(context.Background(),
			&configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: kind, Namespace: "apps", Name: "server"}}); err != nil {
			t.Error(err)
		}
	}
	remove("VirtualService")
	tell(true)
	full.Store(false)
	remove("Service")
	tell(false)
	r.apply(strictApps)
}
