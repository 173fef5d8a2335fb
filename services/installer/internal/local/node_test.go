package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/configapi/configapitest"
	"fairlead.dev/services/installer/internal/local/console"
	"fairlead.dev/services/installer/internal/local/meshfile"
	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/local/supervise"
)

// within bounds every wait, with time for a busy machine.
const within = testkit.Patience

// TestMain runs the programs of the fixtures' Pods and services in the test binary, under other names.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "service", "config-watcher":
		select {}
	case "picky":
		fmt.Fprintln(os.Stderr, "picky: unknown flag: --new")
		os.Exit(2)
	case "deaf":
		// It ignores $HOST and $PORT.
		_ = http.ListenAndServe("127.0.0.1:0", http.NotFoundHandler()) //nolint:gosec // a test's
	case "flap":
		fmt.Fprintln(os.Stderr, "no database")
		os.Exit(7)
	case "web":
		// It answers on $HOST:$PORT, 503 while the file "sick" is there.
		err := http.ListenAndServe(net.JoinHostPort(os.Getenv("HOST"), os.Getenv("PORT")),
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { //nolint:gosec // a test's
				if _, err := os.Stat(os.Getenv("SICK")); err == nil {
					http.Error(w, "sick", http.StatusServiceUnavailable)
				}
			}))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// fixture is a node with a fake config-watcher and one plain Pod.
type fixture struct {
	cfg    Config
	server *configapitest.Server
	screen *testkit.Buffer
	sick   string
	// problems is config-watcher's answer about the files.
	mu       sync.Mutex
	problems string
}

func (w *fixture) setProblems(json string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = json
}

// program links the test binary under a name.
func program(t *testing.T, dir, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func newFixture(t *testing.T, extra string) *fixture {
	t.Helper()
	dir := t.TempDir()
	w := &fixture{screen: &testkit.Buffer{}, sick: filepath.Join(dir, "sick")}
	file := filepath.Join(dir, "mesh.yaml")
	testkit.WriteFile(t, file, []byte(`apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, sidecar.istio.io/inject: "false"}}
    spec:
      containers:
      - name: web
        command: [`+program(t, dir, "web")+`]
        env: [{name: SICK, value: `+w.sick+`}]
        ports: [{containerPort: 18080}]
        readinessProbe: {httpGet: {path: /, port: 18080}, periodSeconds: 1, failureThreshold: 1}
        `+extra+`
`))
	m, err := meshfile.Load([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	layout := rundir.NewLayout(filepath.Join(dir, "run"), plan.LongestPodID(m))
	lock, err := rundir.Acquire(layout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Release() })

	// The server starts with a key set, and follows its file, which the node replaces by its own keys.
	issuer := testkit.NewIssuer(t)
	if err := fileio.Replace(layout.JWKS(), mustRead(t, issuer.JWKSFile)); err != nil {
		t.Fatal(err)
	}
	w.server = configapitest.Start(t, configapitest.Config{JWKSFile: layout.JWKS(), Issuer: plan.Issuer})
	if err := fileio.Replace(layout.RootCert(), mustRead(t, w.server.RootFile)); err != nil {
		t.Fatal(err)
	}
	ops := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/sources" {
			return
		}
		if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ey") {
			http.Error(rw, "no token", http.StatusUnauthorized)
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		fmt.Fprintf(rw, `{"sources":[{"name":"file","problems":[%s]}],"warnings":["x has no effect"]}`, w.problems)
	}))
	t.Cleanup(ops.Close)

	p, err := plan.New(m, plan.Options{
		Layout: layout, Range: netip.MustParsePrefix("127.66.0.0/16"), XDSServers: 1, TrustDomain: testkit.TrustDomain, LogLevel: "info",
		Find:     func(name string) (string, error) { return name, nil },
		FreePort: func() (uint16, error) { return 0, errors.New("no port is needed") },
	})
	if err != nil {
		t.Fatal(err)
	}
	service := program(t, dir, "service")
	for _, s := range p.Services {
		s.Path, s.Args = service, nil
		s.GRPC = netip.MustParseAddrPort(w.server.Address)
		s.Ops = netip.MustParseAddrPort(ops.Listener.Addr().String())
		s.Grace = time.Second
	}
	// No other process uses the Pod's address.
	free := testkit.FreeAddress(t)
	c := &p.Pods[0].Containers[0]
	c.Env = append(c.Env, "HOST="+free.Addr().String(), fmt.Sprintf("PORT=%d", free.Port()))
	c.Probe.URL = "http://" + free.String() + "/"
	c.Ports[0].Listen = free
	c.Grace = time.Second

	w.cfg = Config{
		Plan: p, Layout: layout, Clock: clock.Real(), Log: testkit.Logger(t), Console: console.NewPlain(w.screen, clock.Real()),
		ConfigPaths: []string{file}, ReadyFile: filepath.Join(dir, "ready"), StopTimeout: within,
	}
	return w
}

func mustRead(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// start runs the node; stop stops it and returns Run's error.
func (w *fixture) start(t *testing.T) (n *Node, stop func() error) {
	t.Helper()
	n, err := New(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return n, stop
}

// ready waits until the stored Pod's condition Ready is want.
func (w *fixture) ready(t *testing.T, want string) {
	t.Helper()
	testkit.Eventually(t, within, func() error {
		if got := podCondition(w.server.Object("Pod", "shop", "web-0")); got != want {
			return fmt.Errorf("the Pod's condition is %q, not %q; console:\n%s", got, want, w.screen)
		}
		return nil
	})
}

// podCondition is the status of condition Ready.
func podCondition(pod map[string]any) string {
	status, _ := pod["status"].(map[string]any)
	list, _ := status["conditions"].([]any)
	for _, c := range list {
		if c, ok := c.(map[string]any); ok && c["type"] == "Ready" {
			return fmt.Sprint(c["status"])
		}
	}
	return "unknown"
}

func TestNodeRunsAMeshUntilItIsStopped(t *testing.T) {
	w := newFixture(t, "")
	_, stop := w.start(t)
	testkit.Eventually(t, within, func() error {
		if _, err := os.Stat(w.cfg.ReadyFile); err != nil {
			return fmt.Errorf("%w; console:\n%s", err, w.screen)
		}
		return nil
	})
	w.ready(t, "True")
	state, err := rundir.Open(w.cfg.Layout.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if !state.Ready || len(state.Services) != 3 || len(state.Pods) != 1 || state.Pods[0].Containers[0].PID == 0 {
		t.Errorf("state %+v", state)
	}
	pid := state.Pods[0].Containers[0].PID

	// A failing probe makes the Pod not ready, without a restart.
	testkit.WriteFile(t, w.sick, nil)
	w.ready(t, "False")
	if err := os.Remove(w.sick); err != nil {
		t.Fatal(err)
	}
	w.ready(t, "True")

	// A crash makes it not ready too, and the application is restarted.
	testkit.WriteFile(t, w.sick, nil) // it stays not ready, so that the test sees it
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.ready(t, "False")
	if err := os.Remove(w.sick); err != nil {
		t.Fatal(err)
	}
	w.ready(t, "True")
	testkit.Eventually(t, within, func() error { // state.json may be written after the Pod's status
		state, err = rundir.Open(w.cfg.Layout.Dir)
		if err == nil && (state.Pods[0].Containers[0].PID == pid || state.Pods[0].Containers[0].Restarts == 0) {
			err = fmt.Errorf("after the crash: %+v", state)
		}
		return err
	})

	testkit.Eventually(t, within, w.prints("warning: x has no effect"))

	// The console prints config-watcher's warnings, and their end.
	w.server.SetWarnings([]*configv1.Warning{{Text: "VirtualService shop/web: no such host"}}, nil)
	testkit.Eventually(t, within, w.prints("warning: VirtualService shop/web: no such host"))
	w.server.SetWarnings(nil, nil)
	testkit.Eventually(t, within, w.prints("resolved: VirtualService shop/web: no such host"))

	// The console prints what config-watcher refuses later, and its end.
	w.setProblems(`"mesh.yaml:3: bad; mend it"`)
	testkit.Eventually(t, within, w.prints("refused, the last good version stays: mesh.yaml:3: bad; mend it"))
	w.setProblems("")
	testkit.Eventually(t, within, w.prints("nothing is refused any more"))

	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(w.cfg.ReadyFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ready file: %v", err)
	}
	for _, p := range state.Processes() {
		if p.PID > 0 && rundir.Birth(p.PID) == p.Birth {
			t.Errorf("%s still runs", p.Name)
		}
	}
}

func (w *fixture) prints(want string) func() error {
	return func() error {
		if !strings.Contains(w.screen.String(), want) {
			return fmt.Errorf("console lacks %q:\n%s", want, w.screen)
		}
		return nil
	}
}

func TestRefusedFileEndsTheRun(t *testing.T) {
	w := newFixture(t, "imagePullPolicy: broken")
	n, err := New(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = n.Run(context.Background())
	var refused *RefusedError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "Deployment shop/web") || !strings.Contains(err.Error(), "mend it") {
		t.Errorf("error %v", err)
	}
	if w.server.Object("Pod", "shop", "web-0") != nil {
		t.Error("the Pod was written all the same")
	}
}

func TestWrongFlagsEndTheRun(t *testing.T) {
	w := newFixture(t, "")
	w.cfg.Plan.Services[0].Path = program(t, t.TempDir(), "picky")
	n, err := New(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "ca does not accept its flags") ||
		!strings.Contains(err.Error(), "unknown flag: --new") {
		t.Errorf("error %v", err)
	}
}

// movable is a clock that a test can set forward.
type movable struct {
	clock.Clock
	ahead atomic.Int64
}

func (m *movable) Now() time.Time { return m.Clock.Now().Add(time.Duration(m.ahead.Load())) }

func TestReadyTimeoutNamesWhatIsMissing(t *testing.T) {
	w := newFixture(t, "")
	testkit.WriteFile(t, w.sick, nil)
	late := &movable{Clock: clock.Real()}
	w.cfg.Clock, w.cfg.ReadyTimeout = late, time.Hour
	n, err := New(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- n.Run(context.Background()) }()
	testkit.Eventually(t, within, func() error {
		missing := strings.Join(n.unready(), ", ")
		if !strings.Contains(missing, "sick") {
			return fmt.Errorf("nobody has said that it is sick: %s", missing)
		}
		return nil
	})
	late.ahead.Store(int64(2 * time.Hour))
	if err := <-done; err == nil || !strings.Contains(err.Error(), "web-0.shop/web") || !strings.Contains(err.Error(), "sick") {
		t.Errorf("error %v", err)
	}
}

func TestStatusesDropResultsForEarlierProcesses(t *testing.T) {
	b := newStatuses()
	changed := b.Changed()
	b.setProcess(statusOf("web", 1))
	select {
	case <-changed:
	default:
		t.Error("nobody was told")
	}
	b.setReadiness("web", 1, true, "")
	b.setProcess(statusOf("web", 2))
	if e := b.get("web"); e.Ready || e.PID != 2 {
		t.Errorf("a new process is ready at once: %+v", e)
	}
	b.setReadiness("web", 1, true, "")
	if b.get("web").Ready {
		t.Error("the verdict about an earlier process counts")
	}
	changed = b.Changed()
	b.setReadiness("web", 2, false, "starting")
	select {
	case <-changed:
		t.Error("told of nothing new")
	default:
	}
}

func statusOf(name string, pid int) supervise.Status {
	return supervise.Status{Name: name, PID: pid, StartedAt: time.Unix(int64(pid), 0)}
}
