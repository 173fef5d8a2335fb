package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/process"
)

const (
	patience = testkit.Patience
	// meshNamespace is where the mesh's own identities are, and the ConfigMap of its settings.
	meshNamespace = "istio-system"
	clusterID     = "Kubernetes"
	// sourceName is what config-watcher calls the API server of a test.
	sourceName = "kubernetes/" + clusterID
)

// watcher is a config-watcher that reads an API server.
type watcher struct {
	t         testing.TB
	args      []string
	ca        *testkit.CA
	grpc, ops string
	state     string
	process   *process.Process
}

// newWatcher prepares a config-watcher that reads the API server of a kubeconfig. Its certificate lasts longer than the
// test, so that it needs no ca.
func newWatcher(t testing.TB, kubeconfig string, args ...string) *watcher {
	t.Helper()
	return newReplica(t, testkit.PKI(t), kubeconfig, args...)
}

// newReplica is newWatcher for one of several processes of one mesh, whose certificates are of one ca.
func newReplica(t testing.TB, ca *testkit.CA, kubeconfig string, args ...string) *watcher {
	t.Helper()
	dir := t.TempDir()
	w := &watcher{
		t: t, ca: ca, grpc: testkit.FreeAddress(t).String(), ops: testkit.FreeAddress(t).String(), state: filepath.Join(dir, "state"),
	}
	w.ca.WriteSVID(filepath.Join(w.state, "svid", svid.CacheFile), meshNamespace, "config-watcher")
	w.args = append([]string{
		"--grpc-address", w.grpc, "--ops-address", w.ops, "--trust-domain", testkit.TrustDomain, "--root-cert-file", w.ca.WriteRoot(dir),
		"--state-dir", w.state, "--ca-address", "127.0.0.1:1", "--kubernetes", "--kubeconfig", kubeconfig, "--cluster-id", clusterID,
	}, args...)
	return w
}

// startWatcher starts a config-watcher and waits until it is ready.
func startWatcher(t testing.TB, kubeconfig string, args ...string) *watcher {
	t.Helper()
	w := newWatcher(t, kubeconfig, args...)
	w.start()
	w.ready()
	return w
}

// start starts the process, which ends with the test.
func (w *watcher) start() {
	w.t.Helper()
	w.process = process.Run(w.t, process.Program{Name: "config-watcher", Path: binaries.Built(w.t, "config-watcher"), Args: w.args})
}

// stop ends the process as Kubernetes does.
func (w *watcher) stop() {
	w.t.Helper()
	testkit.NoError(w.t, w.process.Stop(patience))
}

func (w *watcher) signal(s syscall.Signal) {
	w.t.Helper()
	testkit.NoError(w.t, w.process.Signal(s))
}

// get asks the HTTP port.
func (w *watcher) get(path string) (code int, body string, err error) {
	resp, err := http.Get("http://" + w.ops + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close() //nolint:errcheck // a test
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func (w *watcher) ready() {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() error {
		code, body, err := w.get("/readyz")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("/readyz answers %d: %s", code, body)
		}
		return err
	})
}

// sourceState is the API server in /readyz/sources.
type sourceState struct {
	Name          string     `json:"name"`
	Synced        bool       `json:"synced"`
	Degraded      string     `json:"degraded"`
	LastGood      *time.Time `json:"last_good"`
	Objects       int        `json:"objects"`
	Refused       int        `json:"refused"`
	Held          int        `json:"held_closed"`
	DegradedKinds []struct {
		Kind, Reason, Text string
		Objects            int
		Since              time.Time
	} `json:"degraded_kinds"`
}

// degraded returns why a kind cannot be read, in one word; "" if it can.
func (s sourceState) degraded(kind string) string {
	for _, k := range s.DegradedKinds {
		if k.Kind == kind {
			return k.Reason
		}
	}
	return ""
}

// until waits for a state of the source.
func (w *watcher) until(what string, f func(sourceState) bool) (last sourceState) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() error {
		_, body, err := w.get("/readyz/sources")
		if err != nil {
			return err
		}
		var all []sourceState
		if err := json.Unmarshal([]byte(body), &all); err != nil {
			return fmt.Errorf("%w: %s", err, body)
		}
		i := slices.IndexFunc(all, func(s sourceState) bool { return s.Name == sourceName })
		if i < 0 || !f(all[i]) {
			return fmt.Errorf("not %s: %s", what, body)
		}
		last = all[i]
		return nil
	})
	return last
}

// metric sums the samples of a metric that have all of the labels, written as kind="Pod".
func (w *watcher) metric(name string, labels ...string) (sum float64) {
	w.t.Helper()
	_, body, err := w.get("/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(body) {
		rest, ok := strings.CutPrefix(line, "fairlead_config_watcher_"+name)
		if !ok || rest[0] != ' ' && rest[0] != '{' || slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			continue
		}
		line = strings.TrimSpace(line)
		var v float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v); err != nil {
			w.t.Fatalf("%s: %v", line, err)
		}
		sum += v
	}
	return sum
}

// dial connects with the identity of a service account of the mesh's namespace.
func (w *watcher) dial(account string) *grpc.ClientConn {
	w.t.Helper()
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target: w.grpc, TLS: tlsconf.Client(w.ca.NewSVID(meshNamespace, account), w.ca.ID(meshNamespace, "config-watcher")),
		MaxRecvBytes: 32 << 20,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// admin is the configuration API as the administrator has it.
func (w *watcher) admin() configv1.ConfigStoreServiceClient {
	w.t.Helper()
	return configv1.NewConfigStoreServiceClient(w.dial("fairlead-admin"))
}

// view is what an xds-server holds.
type view struct {
	t testing.TB

	mu      sync.Mutex
	held    map[string]*configv1.Resource
	removed int
}

// subscribe follows the revisions as an xds-server does.
func (w *watcher) subscribe() *view {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	stream, err := configv1.NewConfigServiceClient(w.dial("xds-server")).Watch(ctx, grpc.WaitForReady(true))
	if err != nil {
		w.t.Fatal(err)
	}
	hello := &configv1.WatchHello{Subscriber: &configv1.Subscriber{Instance: "xds-server-test"}}
	if err := stream.Send(&configv1.WatchRequest{Message: &configv1.WatchRequest_Hello{Hello: hello}}); err != nil {
		w.t.Fatal(err)
	}
	v := &view{t: w.t, held: map[string]*configv1.Resource{}}
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			v.take(m)
			if !m.Commit {
				continue
			}
			ack := &configv1.WatchAck{Sequence: m.Revision.Sequence}
			if stream.Send(&configv1.WatchRequest{Message: &configv1.WatchRequest_Ack{Ack: ack}}) != nil {
				return
			}
		}
	}()
	return v
}

func (v *view) take(m *configv1.WatchResponse) {
	v.mu.Lock()
	defer v.mu.Unlock()
	name := func(k *configv1.ResourceKey) string { return k.Kind + " " + k.Namespace + "/" + k.Name }
	for _, r := range m.Upserts {
		v.held[name(r.Key)] = r
	}
	for _, k := range m.Removed {
		v.removed++
		delete(v.held, name(k))
	}
}

// get returns a resource by a key like "VirtualService apps/server"; nil if the view has none.
func (v *view) get(key string) *configv1.Resource {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.held[key]
}

// removals is the number of resources that were removed so far.
func (v *view) removals() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.removed
}

// count counts the resources of a kind.
func (v *view) count(kind string) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for k := range v.held {
		if strings.HasPrefix(k, kind+" ") {
			n++
		}
	}
	return n
}

// has waits until the view has a resource for which f holds; f may be nil.
func (v *view) has(key string, f func(*configv1.Resource) bool) {
	v.t.Helper()
	testkit.Eventually(v.t, patience, func() error {
		switch r := v.get(key); {
		case r == nil:
			return fmt.Errorf("no %s", key)
		case f != nil && !f(r):
			return fmt.Errorf("%s is %v", key, r)
		}
		return nil
	})
}

// lacks waits until the view has no such resource.
func (v *view) lacks(key string) {
	v.t.Helper()
	testkit.Eventually(v.t, patience, func() error {
		if v.get(key) != nil {
			return fmt.Errorf("%s is there", key)
		}
		return nil
	})
}
