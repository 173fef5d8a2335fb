package ops_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

const (
	admin     = "spiffe://cluster.local/ns/istio-system/sa/fairlead-admin"
	goodToken = "admin"
)

func authenticate(r *http.Request) error {
	switch r.Header.Get("Authorization") {
	case "Bearer " + goodToken:
		return nil
	case "Bearer workload":
		return auth.ErrForbidden
	case "":
		return auth.ErrNoCredentials
	default:
		return errors.New("token has expired")
	}
}

type fixture struct {
	*ops.Server
	url string
}

func start(t *testing.T, change func(*ops.Config)) *fixture {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_test_things_total", Help: "Things."}))
	cfg := ops.Config{Listener: testkit.LoopbackListener(t), Log: testkit.Logger(t), Gatherer: reg, Authenticate: authenticate}
	if change != nil {
		change(&cfg)
	}
	f := &fixture{Server: ops.New(cfg), url: "http://" + cfg.Listener.Addr().String()}
	run(t, f.Server)
	return f
}

func run(t *testing.T, s *ops.Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (f *fixture) do(t *testing.T, method, path string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, f.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return send(t, http.DefaultClient, r)
}

func send(t *testing.T, c *http.Client, r *http.Request) (int, string) {
	t.Helper()
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestEveryHandlerAnonymously(t *testing.T) {
	f := start(t, nil)
	var reached atomic.Int32
	f.Debug("/debug/config", "the configuration", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))

	open := map[string]bool{"/metrics": true, "/livez": true, "/readyz": true}
	handlers := f.Handlers()
	if len(handlers) < 9 {
		t.Fatalf("only %d handlers are listed", len(handlers))
	}
	for _, h := range handlers {
		for who, headers := range map[string][]string{
			"anonymous": nil,
			"expired":   {"Authorization", "Bearer old"},
			"workload":  {"Authorization", "Bearer workload"},
		} {
			code, body := f.do(t, "GET", h.Path, headers...)
			switch {
			case open[h.Path] != h.Anonymous:
				t.Errorf("%s: anonymous is %t", h.Path, h.Anonymous)
			case h.Anonymous && code != http.StatusOK:
				t.Errorf("%s by %s: %d %s", h.Path, who, code, body)
			case !h.Anonymous && who == "workload" && code != http.StatusForbidden:
				t.Errorf("%s by %s: %d", h.Path, who, code)
			case !h.Anonymous && who != "workload" && code != http.StatusUnauthorized:
				t.Errorf("%s by %s: %d", h.Path, who, code)
			}
		}
	}
	for _, path := range []string{
		"/debug", "/", "/nothing", "//debug/config", "/livez/../debug/config", "/debug/../debug/config", "/metrics/", "/%64ebug/config",
		"/debug/pprof/heap", "/debug/pprof/goroutine?debug=2",
	} {
		if code, body := f.do(t, "GET", path); code != http.StatusUnauthorized {
			t.Errorf("%s anonymously: %d %s", path, code, body)
		}
	}
	if code, _ := f.do(t, "POST", "/metrics"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST /metrics: %d", code)
	}
	if code, _ := f.do(t, "GET", "/debug/config", "Authorization", "Bearer "+goodToken, "Origin",
		"https://evil.example"); code != http.StatusForbidden {
		t.Errorf("with a foreign origin: %d", code)
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("the handler was reached %d times", n)
	}
	if code, _ := f.do(t, "GET", "/debug/config", "Authorization", "Bearer "+goodToken); code != http.StatusOK || reached.Load() != 1 {
		t.Errorf("by an admin: %d", code)
	}
}

// What a container of the Pod may ask for is for nobody else: no other machine, no web page.
func TestOrdersAreForThisMachine(t *testing.T) {
	f := start(t, nil)
	var got atomic.Int64
	f.Order("/stop", "stops", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got.Add(1) }))
	ask := func(method string, change func(*http.Request)) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, f.url+"/stop", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(r)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if got := ask(http.MethodGet, nil); got != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", got)
	}
	if got := ask(http.MethodPost, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }); got != http.StatusForbidden {
		t.Errorf("from a web page: %d", got)
	}
	for name, at := range map[string]net.Addr{"another machine": &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 15020}, "no connection": nil} {
		r := httptest.NewRequest(http.MethodPost, "/stop", http.NoBody)
		if at != nil {
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, at))
		}
		w := httptest.NewRecorder()
		f.ServeHTTP(w, r)
		if w.Code != http.StatusForbidden {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	if got.Load() != 0 {
		t.Fatal("a refused request was obeyed")
	}
	if status := ask(http.MethodPost, nil); status != http.StatusOK || got.Load() != 1 {
		t.Errorf("POST: %d, obeyed %d times", status, got.Load())
	}
}

func TestReadiness(t *testing.T) {
	f := start(t, nil)
	var trouble atomic.Value
	f.Ready("svid", func() error { err, _ := trouble.Load().(error); return err })
	f.Ready("store", func() error { return nil })
	if code, body := f.do(t, "GET", "/readyz"); code != http.StatusOK || !strings.Contains(body, `"ready": true`) {
		t.Errorf("%d %s", code, body)
	}
	trouble.Store(errors.New("certificate has expired"))
	code, body := f.do(t, "GET", "/readyz")
	var got ops.Readiness
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if code != http.StatusServiceUnavailable || got.Ready || len(got.Failed) != 1 ||
		got.Failed[0] != (ops.Failure{Check: "svid", Error: "certificate has expired"}) {
		t.Errorf("%d %+v", code, got)
	}
	if code, _ := f.do(t, "GET", "/livez"); code != http.StatusOK {
		t.Errorf("not ready is not dead: %d", code)
	}
}

func TestMetricsAndDebug(t *testing.T) {
	f := start(t, nil)
	f.Debug("/debug/answer", "an answer", ops.JSON(func(*http.Request) (any, error) { return map[string]int{"n": 42}, nil }))
	f.Debug("/debug/trouble", "an error", ops.JSON(func(*http.Request) (any, error) { return nil, errors.New("cannot tell") }))
	if _, body := f.do(t, "GET", "/metrics"); !strings.Contains(body, "fairlead_test_things_total 0") {
		t.Errorf("metrics: %s", body)
	}
	token := []string{"Authorization", "Bearer " + goodToken}
	for path, want := range map[string]string{
		"/debug/":                        `"path": "/debug/answer"`,
		"/debug/answer":                  `"n": 42`,
		"/debug/version":                 `"version"`,
		"/debug/pprof/":                  "goroutine",
		"/debug/pprof/goroutine?debug=1": "goroutine profile",
	} {
		if code, body := f.do(t, "GET", path, token...); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, body := f.do(t, "GET", "/debug/trouble", token...); code != http.StatusInternalServerError ||
		!strings.Contains(body, "cannot tell") {
		t.Errorf("%d %s", code, body)
	}
	f.Debug("/debug/missing", "an error", ops.JSON(func(*http.Request) (any, error) {
		return nil, fmt.Errorf("page: %w", &ops.StatusError{Code: http.StatusNotFound, Err: errors.New("no such proxy")})
	}))
	if code, body := f.do(t, "GET", "/debug/missing", token...); code != http.StatusNotFound ||
		!strings.Contains(body, "page: no such proxy") {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := f.do(t, "GET", "/debug/nothing", token...); code != http.StatusNotFound {
		t.Errorf("unknown path: %d", code)
	}
}

func TestDebugIsOffWithoutAuthentication(t *testing.T) {
	f := start(t, func(c *ops.Config) { c.Authenticate = nil })
	if code, body := f.do(t, "GET", "/debug/", "Authorization", "Bearer "+goodToken); code != http.StatusForbidden ||
		!strings.Contains(body, "no authentication is configured") {
		t.Errorf("%d %s", code, body)
	}
}

// A token must not cross a network in the clear.
func TestDebugNeedsTLSOffLoopback(t *testing.T) {
	f := start(t, func(c *ops.Config) { c.Listener = elsewhere{c.Listener} })
	if code, body := f.do(t, "GET", "/debug/", "Authorization", "Bearer "+goodToken); code != http.StatusForbidden ||
		!strings.Contains(body, "TLS or a loopback") {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := f.do(t, "GET", "/readyz"); code != http.StatusOK {
		t.Errorf("readyz: %d", code)
	}
}

// elsewhere is a listener whose connections seem to come in on a public address.
type elsewhere struct{ net.Listener }

func (e elsewhere) Accept() (net.Conn, error) {
	c, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return elsewhereConn{c}, nil
}

type elsewhereConn struct{ net.Conn }

func (elsewhereConn) LocalAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 15014}
}

func TestDebugByClientCertificate(t *testing.T) {
	ca := testkit.PKI(t)
	f := start(t, func(c *ops.Config) {
		c.TLS = tlsconf.Server(ca.NewSVID("istio-system", "ca"), tls.VerifyClientCertIfGiven)
		c.Authenticate = auth.HTTP(auth.MTLS(), auth.IDs(admin))
	})
	for name, tc := range map[string]struct {
		src  tlsconf.Source
		want int
	}{
		"admin":          {ca.NewSVID("istio-system", "fairlead-admin"), http.StatusOK},
		"workload":       {ca.NewSVID("bookinfo", "reviews"), http.StatusForbidden},
		"no certificate": {ca.RootsOnly(), http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			transport := &http.Transport{TLSClientConfig: tlsconf.Client(tc.src, ca.ID("istio-system", "ca"))}
			defer transport.CloseIdleConnections()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(f.url, "http:", "https:", 1)+"/debug/version", nil)
			if err != nil {
				t.Fatal(err)
			}
			if code, body := send(t, &http.Client{Transport: transport}, r); code != tc.want {
				t.Errorf("%d %s, want %d", code, body, tc.want)
			}
		})
	}
}

func TestRunTellsWhyItCannotListen(t *testing.T) {
	lis := testkit.LoopbackListener(t)
	s := ops.New(ops.Config{Address: lis.Addr().String(), Log: testkit.Logger(t), Gatherer: prometheus.NewRegistry()})
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), lis.Addr().String()) {
		t.Errorf("got %v", err)
	}
}

func TestSlowHeadersAreCutOff(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a real timeout")
	}
	t.Parallel()
	f := start(t, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ")); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		t.Error("a client that never finishes its headers keeps the connection")
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func TestDebugPathIsChecked(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a path outside /debug/ is taken")
		}
	}()
	ops.New(ops.Config{Gatherer: prometheus.NewRegistry()}).Debug("/config", "", http.NotFoundHandler())
}
