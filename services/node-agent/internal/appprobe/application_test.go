package appprobe

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"fairlead.dev/pkg/testkit"
)

// application listens in every way that a probe can ask.
type application struct {
	http, https, grpc, closed uint16
	// released ends the answers of /slow.
	released chan struct{}
}

func startApplication(t *testing.T) *application {
	t.Helper()
	a := &application{released: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine\n") })
	mux.HandleFunc("/status", func(w http.ResponseWriter, r *http.Request) {
		var code int
		_, _ = fmt.Sscan(r.URL.RawQuery, &code)
		w.WriteHeader(code)
	})
	mux.HandleFunc("/big", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 64<<10)) })
	mux.HandleFunc("/near", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	mux.HandleFunc("/broken", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/status?500", http.StatusFound)
	})
	mux.HandleFunc("/far", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
	})
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-a.released:
		}
	})
	mux.HandleFunc("/seen", func(w http.ResponseWriter, r *http.Request) {
		from, _ := netip.ParseAddrPort(r.RemoteAddr)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"method": r.Method, "uri": r.RequestURI, "host": r.Host, "agent": r.UserAgent(), "list": r.Header.Values("X-List"),
			"accept": r.Header.Get("Accept"), "from": from.Addr().String(), "close": r.Close, "proto": r.ProtoMajor,
		})
	})
	for port, start := range map[*uint16]func(http.Handler) *httptest.Server{&a.http: httptest.NewServer, &a.https: secure} {
		s := start(mux)
		t.Cleanup(s.Close)
		*port = portOf(s.Listener)
	}
	t.Cleanup(func() { close(a.released) }) // before the servers wait for their handlers
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, state := grpc.NewServer(), health.NewServer()
	state.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(server, state)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	a.grpc = portOf(lis)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.closed = portOf(gone)
	_ = gone.Close()
	return a
}

func secure(h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	return s
}

func portOf(l net.Listener) uint16 { return l.Addr().(*net.TCPAddr).AddrPort().Port() }

// probeCase is a probe of the application, with what kubelet gets for it.
type probeCase struct {
	name  string
	probe string // of the annotation
	want  int
	body  string // that the answer contains
}

// cases are the probes of /app-health/<name>/livez.
func (a *application) cases() []probeCase {
	get := func(path string, port uint16) string {
		return fmt.Sprintf(`{"httpGet":{"path":%q,"port":%d},"timeoutSeconds":30}`, path, port) // long enough for a busy machine
	}
	return []probeCase{
		{"http", get("/ok", a.http), 200, "fine"},
		{"no-slash", get("ok", a.http), 200, "fine"},
		{"status-204", get("/status?204", a.http), 204, ""},
		{"status-404", get("/status?404", a.http), 404, ""},
		{"status-503", get("/status?503", a.http), 503, ""},
		{"status-304", get("/status?304", a.http), 200, ""},
		{"redirect-to-itself", get("/near", a.http), 200, "fine"},
		{"redirect-to-an-error", get("/broken", a.http), 500, ""},
		{"redirect-elsewhere", get("/far", a.http), 200, ""},
		{"redirects-without-end", get("/loop", a.http), 500, ""},
		{"large", get("/big", a.http), 200, "xxx"},
		{"slow", strings.Replace(get("/slow", a.http), `:30}`, `:1}`, 1), 500, ""},
		{"closed", get("/ok", a.closed), 500, ""},
		{"seen", get("/seen?a=b%20c", a.http), 200, `"host":"kubelet:` + fmt.Sprint(a.http) + `"`},
		{"https", strings.Replace(get("/ok", a.https), `"path"`, `"scheme":"HTTPS","path"`, 1), 200, "fine"},
		{"https-seen", strings.Replace(get("/seen", a.https), `"path"`, `"scheme":"HTTPS","path"`, 1), 200, `"proto":2`},
		{"tls-port-by-http", get("/ok", a.https), 400, ""},
		{"http-port-by-https", strings.Replace(get("/ok", a.http), `"path"`, `"scheme":"HTTPS","path"`, 1), 500, ""},
		{"tcp", fmt.Sprintf(`{"tcpSocket":{"port":%d},"timeoutSeconds":30}`, a.http), 200, ""},
		{"tcp-closed", fmt.Sprintf(`{"tcpSocket":{"port":%d},"timeoutSeconds":30}`, a.closed), 500, ""},
		{"grpc", fmt.Sprintf(`{"grpc":{"port":%d},"timeoutSeconds":30}`, a.grpc), 200, ""},
		{"grpc-down", fmt.Sprintf(`{"grpc":{"port":%d,"service":"down"},"timeoutSeconds":30}`, a.grpc), 500, ""},
		{"grpc-unknown", fmt.Sprintf(`{"grpc":{"port":%d,"service":"nobody"},"timeoutSeconds":30}`, a.grpc), 500, ""},
		{"grpc-of-http", fmt.Sprintf(`{"grpc":{"port":%d},"timeoutSeconds":30}`, a.http), 500, ""},
		{"grpc-closed", fmt.Sprintf(`{"grpc":{"port":%d},"timeoutSeconds":30}`, a.closed), 500, ""},
	}
}

func annotation(cases []probeCase) string {
	var parts []string
	for _, c := range cases {
		parts = append(parts, fmt.Sprintf(`"/app-health/%s/livez":%s`, c.name, c.probe))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// answer is what kubelet sees.
type answer struct {
	status int
	body   string
}

// ask sends kubelet's request of a probe to the agent's port.
func ask(t *testing.T, agent, path string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+agent+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(agent)
	r.Host = net.JoinHostPort("kubelet", port)
	r.Header = http.Header{"User-Agent": {"kube-probe/1.36"}, "Accept": {"*/*"}, "X-List": {"a", "b"}, "Connection": {"close"}}
	client := &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, string(body)}
}

// portLimit is how long the agent's port of a test permits a request to take.
const portLimit = 200 * time.Millisecond

// startAgent serves probes as the agent does, and returns the address.
func startAgent(t *testing.T, text string) string {
	t.Helper()
	probes, err := Parse(text, 15020)
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	destination, v6 := Destination([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, false)
	mux := http.NewServeMux()
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		for err := error(nil); err == nil; {
			_, err = w.Write(make([]byte, 4<<10))
		}
	})
	for _, h := range New(probes, Options{Destination: destination, V6: v6, StatusPort: portOf(lis), Log: testkit.Logger(t)}) {
		mux.Handle(h.Path, h)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second, ReadTimeout: portLimit, WriteTimeout: portLimit}
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(func() { _ = server.Close() })
	return lis.Addr().String()
}
