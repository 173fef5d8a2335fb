package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/cni/install"
	"fairlead.dev/services/node-agent/internal/cni/kube"
	"fairlead.dev/services/node-agent/internal/cni/plugin"
	"fairlead.dev/services/node-agent/internal/redirect"
)

var quiet = slog.New(slog.DiscardHandler)

// cluster is Kubernetes as the agent sees it. It keeps what the agent does.
type cluster struct {
	mu    sync.Mutex
	pods  []*kube.Pod
	err   error
	did   []string
	gone  bool
	taint bool
}

func (c *cluster) note(format string, args ...any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.did = append(c.did, fmt.Sprintf(format, args...))
	return c.err
}

func (c *cluster) all() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.did, "; ")
}

func (c *cluster) Pod(_ context.Context, namespace, name string) (*kube.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	for _, p := range c.pods {
		if p.Metadata.Namespace == namespace && p.Metadata.Name == name {
			return p, nil
		}
	}
	return nil, &kube.StatusError{Code: 404, Message: "not found"}
}

func (c *cluster) FollowPods(ctx context.Context, node string, ready func(), f func(*kube.Pod)) error {
	if node != "n1" {
		return errors.New("another node")
	}
	for _, p := range c.pods {
		f(p)
		f(p) // a change that changes nothing here
	}
	ready()
	<-ctx.Done()
	return nil
}

func (c *cluster) DeletePod(_ context.Context, p *kube.Pod) error {
	return c.note("delete %s", p.Metadata.Name)
}

func (c *cluster) LabelPod(_ context.Context, p *kube.Pod, key, value string) error {
	return c.note("label %s %s=%s", p.Metadata.Name, key, value)
}

func (c *cluster) Report(_ context.Context, p *kube.Pod, kind, reason, _, host string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.did = append(c.did, fmt.Sprintf("event %s %s %s %s", p.Metadata.Name, kind, reason, host))
	return nil
}

func (c *cluster) DaemonSetGone(_ context.Context, namespace, name string) (bool, error) {
	if namespace+"/"+name != "system/agent" {
		return false, errors.New("another DaemonSet")
	}
	return c.gone, c.err
}

func (c *cluster) Untaint(context.Context, string, string) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	had := c.taint
	c.taint = false
	return had, c.err
}

func TestTheSocketAnswersThePlugin(t *testing.T) {
	dir, err := os.MkdirTemp("", "cni") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "run", "s")
	lis, err := listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for p, mode := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", p, info, err)
		}
	}
	k := &cluster{pods: []*kube.Pod{pod(t), pod(t, "web-1", "wrong-1", `status: "{}"`, `status: "{}", sidecar.istio.io/interceptionMode: X`)}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- (&server{pods: k, metrics: newMetrics(prometheus.NewRegistry()), log: quiet}).serve(ctx, lis)
	}()
	ask := func(r plugin.Request) *plugin.Answer {
		t.Helper()
		answer, err := plugin.Ask(t.Context(), path, r)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	if a := ask(plugin.Request{}); a.Error != "" || a.Redirect {
		t.Errorf("whether it is there: %+v", a)
	}
	if a := ask(plugin.Request{Namespace: "apps", Name: "web-1", UID: "u-1"}); !a.Redirect || a.Options.OutboundPort != "15001" {
		t.Errorf("a Pod with a sidecar: %+v", a)
	}
	if a := ask(plugin.Request{Namespace: "apps", Name: "wrong-1"}); !strings.Contains(a.Error, "--istio-inbound-interception-mode") {
		t.Errorf("a Pod whose annotation is wrong: %+v", a)
	}
	k.mu.Lock()
	k.err = &kube.StatusError{Code: 403, Message: "no"}
	k.mu.Unlock()
	if a := ask(plugin.Request{Namespace: "apps", Name: "web-1"}); !strings.Contains(a.Error, "403") {
		t.Errorf("without rights: %+v", a)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("what is no request is answered with %d bytes", n)
	}
	next, err := listen(t.Context(), path)
	if err != nil {
		t.Fatalf("where an earlier agent is: %v", err)
	}
	t.Cleanup(func() { next.Close() })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if conn, err = net.Dial("unix", path); err != nil {
		t.Fatalf("the end of the earlier agent takes the later one's socket away: %v", err)
	}
	conn.Close()
}

// noHandles is a listener that has no file handle for the first connections.
type noHandles struct {
	net.Listener
	failures atomic.Int32
}

func (l *noHandles) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

func TestTheSocketOutlivesALackOfFileHandles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	lis, err := listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	short := &noHandles{Listener: lis}
	short.failures.Store(3)
	s := &server{pods: &cluster{pods: []*kube.Pod{pod(t)}}, metrics: newMetrics(prometheus.NewRegistry()), log: quiet}
	stop := testkit.Background(t, func(ctx context.Context) error { return s.serve(ctx, short) })
	if a, err := plugin.Ask(t.Context(), path, plugin.Request{Namespace: "apps", Name: "web-1", UID: "u-1"}); err != nil || !a.Redirect {
		t.Errorf("answer %+v, %v", a, err)
	}
	if n := testutil.ToFloat64(s.metrics.acceptErrors); n != 3 {
		t.Errorf("%v errors are counted, want 3", n)
	}
	stop()
}

func TestAPodIsKnownByItsUID(t *testing.T) {
	p := pod(t, `status: "{}"`, `status: "{}", kubernetes.io/config.hash: h`)
	for uid, want := range map[string]bool{"u-1": true, "": true, "h": true, "u-2": false} {
		if got := isThat(p, uid); got != want {
			t.Errorf("%q: %t", uid, got)
		}
	}
}

func TestBrokenPodsAreRepairedOnce(t *testing.T) {
	proc, dir := procs(t)
	var wrote []string
	for mode, want := range map[Repair]string{
		RepairLabel:  "label web-1 k=v; event web-1 Normal Unredirected n1",
		RepairDelete: "delete web-1; event web-1 Normal Unredirected n1",
		RepairPod:    "event web-1 Normal Redirected n1",
	} {
		healthy := pod(t, "web-1", "healthy-1", "exitCode: 126", "exitCode: 0")
		ending := pod(t, "web-1", "ending-1", "uid: u-1", "uid: u-1, deletionTimestamp: now", "  uid: u-1",
			"  uid: u-1\n  deletionTimestamp: now")
		others := pod(t, "web-1", "others-1", "sidecar.istio.io/status", "x")
		k := &cluster{pods: []*kube.Pod{healthy, ending, others, pod(t)}}
		r := repairerOf(k, mode, proc)
		r.write = func(_ context.Context, namespace string, o *redirect.Options) error {
			to, err := os.Readlink(namespace)
			wrote = append(wrote, to+" "+string(o.Mode)+" "+fmt.Sprint(o.UIDs))
			return err
		}
		if r.ready() == nil {
			t.Error("ready before it has seen the Pods")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.run(ctx) }()
		testkit.Eventually(t, testkit.Patience, r.ready)
		testkit.Eventually(t, testkit.Patience, r.idle)
		cancel()
		if err := <-ended; err != nil || k.all() != want {
			t.Errorf("%s: %s, %v, want %s", mode, k.all(), err, want)
		}
	}
	if got, want := strings.Join(wrote, ", "), dir+"/ns/net REDIRECT [1337]"; got != want {
		t.Errorf("rules in %q, want %q", got, want)
	}
}

func TestARepairThatFailsIsAnEventAndIsTriedAgain(t *testing.T) {
	k := &cluster{err: errors.New("refused")}
	r := repairerOf(k, RepairDelete, "")
	for range 2 {
		r.look(t.Context(), pod(t))
		testkit.Eventually(t, testkit.Patience, r.idle)
	}
	const once = "delete web-1; event web-1 Warning Unredirected n1"
	if got := k.all(); got != once+"; "+once {
		t.Errorf("%s", got)
	}
	k = &cluster{}
	r = repairerOf(k, RepairPod, t.TempDir())
	r.look(t.Context(), pod(t))
	if testkit.Eventually(t, testkit.Patience, r.idle); k.all() != "event web-1 Warning Unredirected n1" {
		t.Errorf("without the node's processes: %s", k.all())
	}
}

func repairerOf(k *cluster, mode Repair, proc string) *repairer {
	return &repairer{
		mode: mode, pods: k, node: "n1", container: "istio-validation", labelKey: "k", labelValue: "v", proc: proc,
		clock: clock.Real(), metrics: newMetrics(prometheus.NewRegistry()), log: quiet, done: map[string]bool{},
		begun: map[string]bool{}, turns: repairTurns(),
	}
}

// idle returns an error while Pods are repaired.
func (r *repairer) idle() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.begun) > 0 {
		return fmt.Errorf("%d Pods are repaired or wait", len(r.begun))
	}
	return nil
}

// A Pod decides what is in its root, and may be gone while it is looked at. None of that holds another's repair up, or
// leads out of the Pod.
func TestPodsDoNotHoldRepairsUp(t *testing.T) {
	proc, dir := procs(t)
	etc := filepath.Join(dir, "root/etc")
	if err := os.MkdirAll(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(etc, "resolv.conf")
	outside := filepath.Join(t.TempDir(), "resolv.conf")
	testkit.WriteFile(t, outside, []byte("nameserver 192.0.2.66\n"))
	testkit.WriteFile(t, filepath.Join(dir, "root/inside.conf"), []byte("nameserver 192.0.2.7\n"))
	for name, tc := range map[string]struct {
		make func() error
		want string
	}{
		"a file":                   {func() error { return os.WriteFile(conf, []byte("nameserver 192.0.2.1\n"), 0o600) }, "[192.0.2.1]"},
		"a pipe":                   {func() error { return syscall.Mkfifo(conf, 0o600) }, "[]"},
		"a link out of the root":   {func() error { return os.Symlink(outside, conf) }, "[]"},
		"a link upwards":           {func() error { return os.Symlink("../../../../../../inside.conf", conf) }, "[192.0.2.7]"},
		"an absolute link":         {func() error { return os.Symlink("/inside.conf", conf) }, "[192.0.2.7]"},
		"a link to a process":      {func() error { return os.Symlink("/proc/self/root"+outside, conf) }, "[]"},
		"a directory":              {func() error { return os.Mkdir(conf, 0o700) }, "[]"},
		"a socket's name, no file": {func() error { return nil }, "[]"},
	} {
		if err := errors.Join(os.RemoveAll(conf), tc.make()); err != nil {
			t.Fatal(err)
		}
		p, err := openProcess(proc, "u-1")
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(serversOf(p.root)); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
		p.close()
	}

	// Those of one namespace hang, whatever the reason; another namespace's is repaired.
	k := &cluster{}
	r := repairerOf(k, RepairPod, proc)
	hang, hung := make(chan struct{}), make(chan struct{}, 100)
	r.write = func(context.Context, string, *redirect.Options) error {
		hung <- struct{}{}
		<-hang
		return nil
	}
	for i := range maxNamespaceRepairs + 3 {
		p := pod(t)
		p.Metadata.Namespace, p.Metadata.UID = "tenant", "u-1"
		r.begin(t.Context(), fmt.Sprint(i), p)
	}
	for range maxNamespaceRepairs {
		<-hung
	}
	other := pod(t)
	r.look(t.Context(), other)
	<-hung
	if l := r.turns.Load(); l.Held != maxNamespaceRepairs+1 || l.Waiting != 3 {
		t.Errorf("%d Pods are repaired, %d wait", l.Held, l.Waiting)
	}
	close(hang)
	testkit.Eventually(t, testkit.Patience, r.idle)
}

// procs is a node's /proc with processes of the Pod u-1, and the directory of the one that has a network of its own.
func procs(t *testing.T) (proc, dir string) {
	t.Helper()
	proc = t.TempDir()
	for pid, cgroup := range map[string]string{
		"1": "0::/", "20": "4:memory:/kubepods/besteffort/podu-11/x", "21": "0::/kubepods.slice/kubepods-podu_1.slice/cri-x.scope",
		"22": "1:cpu:/kubepods/podu-1/x", "self": "",
	} {
		d := filepath.Join(proc, pid, "ns")
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "cgroup"), []byte(cgroup+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if pid == "21" { // it has kept the node's network
			if err := os.Link(filepath.Join(proc, "1/ns/net"), filepath.Join(d, "net")); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			continue
		}
		if err := errors.Join(os.WriteFile(filepath.Join(d, "net"), nil, 0o644),
			os.MkdirAll(filepath.Join(proc, pid, "root"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return proc, filepath.Join(proc, "22")
}

func TestNoProcessOfAPodIsAnError(t *testing.T) {
	proc, _ := procs(t)
	for _, uid := range []string{"", "u-2", "u", "."} {
		if p, err := openProcess(proc, uid); err == nil {
			t.Errorf("%q: %s", uid, p.netPath())
		}
	}
}

func TestThePluginStaysUnlessItsDaemonSetGoes(t *testing.T) {
	for name, tc := range map[string]struct {
		cluster *cluster
		left    bool
	}{
		"an update":                {&cluster{}, true},
		"Kubernetes is away":       {&cluster{err: errors.New("away"), gone: true}, true},
		"the DaemonSet is no more": {&cluster{gone: true}, false},
	} {
		dir := t.TempDir()
		c := Config{Install: install.Config{BinDir: dir, ConfDir: dir, Plugin: plugin.Config{AgentNamespace: "system", AgentName: "agent"}}}
		program := filepath.Join(dir, plugin.Name)
		if err := os.WriteFile(program, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := leave(t.Context(), tc.cluster, c, install.New(c.Install), quiet); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(program); (err == nil) != tc.left {
			t.Errorf("%s: the program: %v", name, err)
		}
	}
}

func TestTheTaintGoesOnceThePluginIsThere(t *testing.T) {
	k := &cluster{taint: true}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked, answers, ended := make(chan struct{}), make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		untaint(ctx, k, Config{Node: "n1", Taint: "x"}, func() error {
			select {
			case asked <- struct{}{}:
				return <-answers
			case <-ctx.Done():
				return ctx.Err()
			}
		}, quiet)
	}()
	tainted := func() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.taint }
	<-asked
	answers <- errors.New("not there")
	<-asked // again: the first answer has had its effect
	if !tainted() {
		t.Error("the taint is gone before the plugin is there")
	}
	answers <- nil
	testkit.Eventually(t, testkit.Patience, func() error {
		if tainted() {
			return errors.New("the taint is there")
		}
		return nil
	})
	cancel()
	<-ended
}

func TestMetricsFollowTheConventions(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	m.pods.WithLabelValues("left").Inc()
	m.repairs.WithLabelValues("repair", "failed").Inc()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 || len(families) != 3 {
		t.Errorf("%v, %v", problems, err)
	}
}
