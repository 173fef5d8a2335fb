package attack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// watched is how long what must not happen after a fault is waited for.
const watched = 4 * time.Second

// TestMeshWithFaults breaks what config-watcher reads and writes, one thing after another.
func TestMeshWithFaults(t *testing.T) {
	needsAll(t)
	f := newFixture(t)
	f.observe(t)
	for _, fault := range []struct {
		claim string
		test  func(*testing.T, *fixture)
	}{
		{"a second config-watcher on one store is refused", testSecondWatcher},
		{"a write that fails refuses no other", testFailedWrite},
		{"a configuration directory that is missing at the start empties nothing", testMissingDirectory},
		{"a truncated STRICT PeerAuthentication stays closed over a restart", testTruncatedPolicy},
		{"a truncated object of the store costs that object alone", testTruncatedObject},
		{"a truncated journal of the store empties nothing", testTruncatedJournal},
		// Last: the file system that it mounts stays until the mesh is gone.
		{"a full disk refuses writes, not deletions, and passes by", func(s *testing.T, f *fixture) { testFullDisk(s, t, f) }},
	} {
		t.Run(fault.claim, func(t *testing.T) { fault.test(t, f) })
	}
}

// restarted kills config-watcher, calls meanwhile while it is away, and waits until it answers again.
func (f *fixture) restarted(t *testing.T, meanwhile func()) {
	t.Helper()
	f.CloseGate(t, "config-watcher")
	f.Kill(t, "config-watcher")
	meanwhile()
	f.OpenGate(t, "config-watcher")
	f.Eventually(t, fleet.Ready, func() error {
		_, err := f.asked(t.Context(), "config-watcher", "/livez", t)
		return err
	})
}

// asked gets a page of a service's ops port; a status other than 200 is an error with what the page says.
func (f *fixture) asked(ctx context.Context, service, path string, t *testing.T) (string, error) {
	a, err := fleet.Direct().Get(ctx, "http://"+f.service(t, service).OpsAddress+path)
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("%s of %s: status %d: %s", path, service, a.Status, a.Body)
	}
	return string(a.Body), err
}

// clusters counts the clusters that a proxy is given that connects now.
func (f *fixture) clusters(ctx context.Context, id *identity, t *testing.T) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, closeAll, err := openDelta(ctx, id, f.service(t, "xds-server-0").GRPCAddress, node(id.pod))
	if err != nil {
		return 0, err
	}
	defer closeAll()
	if err := stream.Subscribe(resource.ClusterType, "*"); err != nil {
		return 0, err
	}
	m, err := stream.Recv()
	return len(m.GetResources()), err
}

// stays asserts for a while that a condition holds.
func stays(t *testing.T, holds func() error) {
	t.Helper()
	tick := time.NewTicker(sampled)
	defer tick.Stop()
	for deadline := time.Now().Add(watched); time.Now().Before(deadline); <-tick.C {
		if err := holds(); err != nil {
			t.Error(err)
			return
		}
	}
}

// survives breaks something while config-watcher is away, and asserts that the mesh serves as before when it is back:
// requests pass, new proxies are given all clusters, and, if config-watcher calls itself ready, the store has its
// objects.
func (f *fixture) survives(t *testing.T, break_ func()) {
	t.Helper()
	id := f.identity(t, rightful, time.Hour)
	client := f.From(t, "client-0")
	before, err := f.clusters(t.Context(), id, t)
	if err != nil {
		t.Fatal(err)
	}
	f.restarted(t, break_)
	stays(t, func() error {
		a, err := client.Get(t.Context(), "http://server.apps/")
		if err == nil && a.Status != http.StatusOK {
			err = fmt.Errorf("a request is answered %d: %.200s", a.Status, a.Body)
		}
		if err != nil {
			return err
		}
		now, err := f.clusters(t.Context(), id, t)
		if err == nil && now < before {
			err = fmt.Errorf("a proxy that connects now is given %d clusters, before the fault it was %d", now, before)
		}
		return err
	})
	said, notReady := f.asked(t.Context(), "config-watcher", "/readyz", t)
	t.Logf("config-watcher: %s %v", strings.TrimSpace(said), notReady)
	if notReady != nil {
		return // it serves nobody, so nothing can be missing
	}
	if code, _, errOut := f.CLI(t, "config", "get", "pod", "server-0", "-n", "apps"); code != 0 {
		t.Errorf("config-watcher is ready and has lost Pod apps/server-0: %s", errOut)
	}
}

// arguments are those that config-watcher runs with, changed where flags are given.
func (f *fixture) arguments(t *testing.T, flags map[string]string) []string {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", f.service(t, "config-watcher").PID))
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Split(strings.TrimSuffix(string(content), "\x00"), "\x00")[1:]
	for i := range args {
		if value, ok := flags[args[i]]; ok {
			args[i+1] = value
		}
	}
	return args
}

func testSecondWatcher(t *testing.T, f *fixture) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binaries.Path("config-watcher"), f.arguments(t, map[string]string{
		"--grpc-address": testkit.FreeAddress(t).String(), "--ops-address": testkit.FreeAddress(t).String(),
		"--state-dir": filepath.Join(t.TempDir(), "state"),
	})...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if ctx.Err() != nil || !errors.As(err, &exit) {
		t.Fatalf("a second config-watcher on the store runs on (%v): %.600s", err, out)
	}
	if !strings.Contains(string(out), f.Path("store")) {
		t.Errorf("it ends with %v and does not name the directory: %.600s", err, out)
	}
	t.Logf("it ends with %v: %.600s", err, out)
}

// configMap is an object that concerns nobody.
func configMap(name string, size int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: edge}\ndata: {text: %q}\n", name,
		strings.Repeat("x", size))
}

// apply applies an object by the command line; the error is what it said.
func (f *fixture) apply(t *testing.T, manifest string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "object.yaml")
	testkit.WriteFile(t, file, []byte(manifest))
	if code, _, errOut := f.CLI(t, "config", "apply", "-f", file); code != 0 {
		return fmt.Errorf("config apply: exit code %d: %s", code, errOut)
	}
	return nil
}

func (f *fixture) remove(t *testing.T, kind, name string) error {
	t.Helper()
	if code, _, errOut := f.CLI(t, "config", "delete", kind, name, "-n", "edge"); code != 0 {
		return fmt.Errorf("config delete: exit code %d: %s", code, errOut)
	}
	return nil
}

func testFailedWrite(t *testing.T, f *fixture) {
	long := strings.Repeat(strings.Repeat("n", 62)+".", 4) + "n"
	t.Logf("an object whose name is as long as Kubernetes allows: %v", f.apply(t, configMap(long, 1)))
	if err := f.apply(t, configMap("after", 1)); err != nil {
		t.Errorf("a write after it: %v", err)
	}
	if err := f.remove(t, "configmap", "after"); err != nil {
		t.Errorf("a deletion after it: %v", err)
	}
}

func testMissingDirectory(t *testing.T, f *fixture) {
	away := f.ConfigDir + ".away"
	f.survives(t, func() {
		if err := os.Rename(f.ConfigDir, away); err != nil {
			t.Fatal(err)
		}
	})
	if err := os.Rename(away, f.ConfigDir); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		_, err := f.asked(t.Context(), "config-watcher", "/readyz", t)
		return err
	})
}

func testTruncatedPolicy(t *testing.T, f *fixture) {
	const strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: apps}\nspec:\n  " +
		"mtls:\n    mode: STRICT\n"
	url := "http://" + net.JoinHostPort(f.Pod(t, "server-0").IP, "8080") + "/"
	closed := func() error {
		if a, err := fleet.Direct().Get(t.Context(), url); err == nil {
			return fmt.Errorf("a caller without a certificate is answered %d where STRICT was said", a.Status)
		}
		return nil
	}
	f.WriteConfig(t, "strict.yaml", strict)
	f.Eventually(t, testkit.Patience, closed)
	f.restarted(t, func() { f.WriteConfig(t, "strict.yaml", strict[:strings.Index(strict, "de: STRICT")]) })
	stays(t, closed)
	if log := f.Log(t, "config-watcher"); !strings.Contains(log, "strict.yaml") {
		t.Error("config-watcher's log does not name strict.yaml")
	}
	removed(t, filepath.Join(f.ConfigDir, "strict.yaml"))
	testkit.Eventually(t, testkit.Patience, func() error {
		a, err := fleet.Direct().Get(t.Context(), url)
		if err == nil && a.Status != http.StatusOK {
			err = fmt.Errorf("status %d", a.Status)
		}
		return err
	})
}

func testTruncatedObject(t *testing.T, f *fixture) {
	if err := f.apply(t, configMap("damaged", 2000)); err != nil {
		t.Fatal(err)
	}
	var path string
	f.survives(t, func() { path = truncate(t, f.Path("store"), "damaged") })
	if log := f.Log(t, "config-watcher"); !strings.Contains(log, filepath.Base(path)) {
		t.Errorf("config-watcher's log does not name %s", path)
	}
}

// truncate cuts the file in half that holds the object.
func truncate(t *testing.T, dir, name string) string {
	t.Helper()
	var found string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(content), name) {
			found = path
		}
		return err
	})
	if err != nil || found == "" {
		t.Fatalf("no file of %s holds %s: %v", dir, name, err)
	}
	info, err := os.Stat(found)
	if err == nil {
		err = os.Truncate(found, info.Size()/2)
	}
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func testTruncatedJournal(t *testing.T, f *fixture) {
	journal := f.Path("store", "journal.json")
	f.survives(t, func() { testkit.WriteFile(t, journal, []byte(`{"sha256":"12","journal":{"rename":[{"te`)) })
	if log := f.Log(t, "config-watcher"); !strings.Contains(log, "journal.json") {
		t.Error("config-watcher's log does not name journal.json")
	}
	// As the runbook says, for whoever comes next.
	f.restarted(t, func() { _ = os.Remove(journal) })
}

// testFullDisk puts the store on a file system of its own that becomes as small as what it holds. mesh is the test
// whose end is the mesh's.
func testFullDisk(t, mesh *testing.T, f *fixture) {
	store := f.Path("store")
	probe := t.TempDir()
	if err := unix.Mount("tmpfs", probe, "tmpfs", 0, "size=4k"); err != nil {
		t.Skipf("cannot mount a small file system, which needs root: %v", err)
	}
	if err := unix.Unmount(probe, 0); err != nil {
		t.Fatal(err)
	}
	const roomy = "size=32m,mode=0700"
	f.restarted(t, func() {
		run := func(name string, args ...string) {
			if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
				t.Fatalf("%s %v: %v: %s", name, args, err, out)
			}
		}
		run("cp", "-a", store, store+".copy")
		if err := unix.Mount("tmpfs", store, "tmpfs", 0, roomy); err != nil {
			t.Fatal(err)
		}
		mesh.Cleanup(func() {
			if err := unix.Unmount(store, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		run("cp", "-a", store+".copy/.", store)
	})
	f.Eventually(t, testkit.Patience, func() error { return f.apply(t, configMap("makes-room", 100_000)) })

	var fs unix.Statfs_t
	if err := unix.Statfs(store, &fs); err != nil {
		t.Fatal(err)
	}
	used := (fs.Blocks - fs.Bfree) * uint64(fs.Bsize)
	if err := unix.Mount("tmpfs", store, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("size=%d", used)); err != nil {
		t.Fatal(err)
	}
	err := f.apply(t, configMap("too-much", 100_000))
	if err == nil {
		t.Fatal("a write on a full disk is accepted")
	}
	t.Logf("a write on a full disk: %v", err)
	if !strings.Contains(err.Error(), "no space left") {
		t.Errorf("the refusal does not say why: %v", err)
	}
	if err := f.apply(t, configMap("makes-room", 150_000)); err == nil {
		t.Error("a change on a full disk is accepted")
	}
	for page, tells := range map[string]string{"/readyz/sources": "takes no writes", "/metrics": "fairlead_config_watcher_store_alarm 1"} {
		said, err := f.asked(t.Context(), "config-watcher", page, t)
		if err != nil || !strings.Contains(said, tells) {
			t.Errorf("config-watcher takes no writes, and %s does not say %q: %v", page, tells, err)
		}
	}
	if err := f.remove(t, "configmap", "makes-room"); err != nil {
		t.Errorf("a deletion on a full disk: %v", err)
	}
	if err := unix.Mount("tmpfs", store, "tmpfs", unix.MS_REMOUNT, roomy); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 20*time.Second, func() error { return f.apply(t, configMap("fits-again", 100_000)) })
}
