// Package ops is the operations port of every service, over HTTP: /metrics, /livez and /readyz for everybody, and pages
// under /debug/, profiles included, for authenticated callers. A service adds checks (Server.Ready) and pages
// (Server.Debug) and runs Server.Run as a task.
package ops

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/time/rate"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/version"
)

const (
	// maxConnections is many times what probes, scrapers and operators have open, and costs 3 MiB.
	// maxConnectionsPerAddress is half of it, so that one address cannot use up all.
	maxConnections           = 256
	maxConnectionsPerAddress = maxConnections / 2
	// maxHeaderBytes has room for a token many times over.
	maxHeaderBytes    = 32 << 10
	maxBodyBytes      = 1 << 20
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	// idleTimeout is longer than the usual interval between two scrapes.
	idleTimeout = 20 * time.Second
	// writeTimeout is long enough for a 60 s profile; anonymousWriteTimeout is for /metrics and the probes.
	writeTimeout          = 90 * time.Second
	anonymousWriteTimeout = 15 * time.Second
	stopTimeout           = 3 * time.Second
)

// Config of an ops server. Log, Gatherer and one of Address and Listener are required.
type Config struct {
	// Address is host:port to listen on.
	Address string
	// Listener is used instead of Address if set; Run closes it.
	Listener net.Listener
	// TLS makes the server speak TLS only. Without it, /debug/ is served on loopback only, because a bearer token must
	// not cross a network in the clear.
	TLS      *tls.Config
	Log      *slog.Logger
	Gatherer prometheus.Gatherer
	// Authenticate authenticates requests to /debug/, usually auth.HTTP; nil denies all.
	Authenticate func(*http.Request) error
}

// Handler describes a page.
type Handler struct {
	Path  string `json:"path"`
	About string `json:"about"`
	// Anonymous handlers need no authentication.
	Anonymous bool `json:"anonymous"`
}

// Server is an operations port. Ready and Debug may be called before and while it runs.
type Server struct {
	cfg     Config
	mux     *http.ServeMux
	logRate *rate.Limiter

	mu       sync.Mutex
	handlers []Handler
	checks   []check
	// orders are the paths of Order.
	orders []string
}

type check struct {
	name string
	run  func() error
}

// New makes a server; Run starts it.
func New(cfg Config) *Server {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	s := &Server{cfg: cfg, mux: http.NewServeMux(), logRate: rate.NewLimiter(rate.Every(time.Minute), 1)}
	s.handle("/livez", "200 while the process can answer at all", true, http.HandlerFunc(live))
	s.handle("/readyz", "200 when every check passes, else 503 and the checks that fail", true, http.HandlerFunc(s.ready))
	s.handle("/metrics", "Prometheus metrics", true, promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelError), MaxRequestsInFlight: 8, Timeout: 30 * time.Second,
	}))
	s.Debug("/debug/", "this list", http.HandlerFunc(s.index))
	s.Debug("/debug/version", "the running build", JSON(func(*http.Request) (any, error) { return version.Info(), nil }))
	s.Debug("/debug/pprof/", "profiles; ?debug=1 for text", http.HandlerFunc(pprof.Index))
	s.Debug("/debug/pprof/cmdline", "command line", http.HandlerFunc(pprof.Cmdline))
	s.Debug("/debug/pprof/profile", "CPU profile of ?seconds=", http.HandlerFunc(pprof.Profile))
	s.Debug("/debug/pprof/symbol", "symbols of program counters", http.HandlerFunc(pprof.Symbol))
	s.Debug("/debug/pprof/trace", "execution trace of ?seconds=", http.HandlerFunc(pprof.Trace))
	return s
}

// Ready adds a readiness check. run is called for every request to /readyz and must return at once; nil means ready.
// Its error is shown to anonymous callers.
func (s *Server) Ready(name string, run func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checks = append(s.checks, check{name, run})
}

// Debug adds an authenticated page. It panics if path does not start with /debug/ or exists already, as http.ServeMux
// does: both are mistakes in the program.
func (s *Server) Debug(path, about string, h http.Handler) {
	if !strings.HasPrefix(path, "/debug/") {
		panic(fmt.Sprintf("ops: debug path %q must start with /debug/", path))
	}
	s.handle(path, about, false, h)
}

// Public adds a page that answers GET to everybody. It must not reveal configuration or secrets. It panics if the path
// exists already.
func (s *Server) Public(path, about string, h http.Handler) { s.handle(path, about, true, h) }

// Order adds a page that answers POST, without authentication, to callers on this machine whose request comes from no
// web page: for what another container of the Pod may tell a proxy to do. It panics if the path exists already.
func (s *Server) Order(path, about string, h http.Handler) {
	s.mu.Lock()
	s.orders = append(s.orders, path)
	s.mu.Unlock()
	s.handle(path, about, false, h)
}

func (s *Server) isOrder(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.orders, path)
}

// order answers a request for a page of Order.
func (s *Server) order(w http.ResponseWriter, r *http.Request) {
	switch {
	case !onLoopback(r):
		writeError(w, http.StatusForbidden, "only a loopback connection may ask for this, such as one to localhost")
	case r.Header.Get("Origin") != "":
		writeError(w, http.StatusForbidden, "requests from web pages are not allowed")
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "POST")
		writeError(w, http.StatusMethodNotAllowed, "use POST")
	default:
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(anonymousWriteTimeout))
		r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
		s.mux.ServeHTTP(w, r)
	}
}

func (s *Server) handle(path, about string, anonymous bool, h http.Handler) {
	s.mux.Handle(path, h)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers = append(s.handlers, Handler{Path: path, About: about, Anonymous: anonymous})
}

// Handlers lists all pages, sorted by path.
func (s *Server) Handlers() []Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.handlers)
	slices.SortFunc(out, func(a, b Handler) int { return cmp.Compare(a.Path, b.Path) })
	return out
}

// ServeHTTP authenticates every request, also for unknown paths, except those for anonymous pages.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if s.isAnonymous(r.URL.Path) {
		// An error means a recorder of a test, which has no deadline.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(anonymousWriteTimeout))
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			writeError(w, http.StatusMethodNotAllowed, "use GET")
			return
		}
		s.mux.ServeHTTP(w, r)
		return
	}
	if s.isOrder(r.URL.Path) {
		s.order(w, r)
		return
	}
	if status, err := s.admit(r); err != nil {
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		writeError(w, status, err.Error())
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
	s.mux.ServeHTTP(w, r)
}

func (s *Server) isAnonymous(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.handlers, func(h Handler) bool { return h.Anonymous && h.Path == path })
}

func (s *Server) admit(r *http.Request) (int, error) {
	if r.Header.Get("Origin") != "" {
		return http.StatusForbidden, errors.New("requests from web pages are not allowed")
	}
	if r.TLS == nil && !onLoopback(r) {
		return http.StatusForbidden, errors.New("debug endpoints need TLS or a loopback connection")
	}
	if s.cfg.Authenticate == nil {
		return http.StatusForbidden, errors.New("debug endpoints are off: no authentication is configured")
	}
	err := s.cfg.Authenticate(r)
	if errors.Is(err, auth.ErrForbidden) {
		return http.StatusForbidden, err
	}
	return http.StatusUnauthorized, err
}

// onLoopback reports whether both ends of the connection are on this machine: its local address is a loopback address.
func onLoopback(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	tcp, ok := local.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// logEvicted logs, at most once a minute, that connLimiter closes a connection to make room for another.
func (s *Server) logEvicted(c net.Conn) {
	if s.logRate.Allow() {
		s.cfg.Log.Warn("ops connection closed to make room for another", "address", c.RemoteAddr().String(), "limit", maxConnections,
			"limit_per_address", maxConnectionsPerAddress)
	}
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	lis := s.cfg.Listener
	if lis == nil {
		var err error
		if lis, err = (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Address); err != nil {
			return fmt.Errorf("ops server: %w", err)
		}
	}
	s.cfg.Log.Info("ops server listens", "address", lis.Addr().String())
	if err := (HTTP{Listener: lis, TLS: s.cfg.TLS, Handler: s, Log: s.cfg.Log, OnEvict: s.logEvicted}).Serve(ctx); err != nil {
		return fmt.Errorf("ops server: %w", err)
	}
	return nil
}

func live(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]bool{"live": true})
}

// Failure is a failed check in the answer of /readyz.
type Failure struct {
	Check string `json:"check"`
	Error string `json:"error"`
}

// Readiness is the answer of /readyz.
type Readiness struct {
	Ready  bool      `json:"ready"`
	Failed []Failure `json:"failed"`
}

// Readiness runs the checks.
func (s *Server) Readiness() Readiness {
	s.mu.Lock()
	checks := slices.Clone(s.checks)
	s.mu.Unlock()
	out := Readiness{Ready: true, Failed: []Failure{}}
	for _, c := range checks {
		if err := c.run(); err != nil {
			out.Ready = false
			out.Failed = append(out.Failed, Failure{Check: c.name, Error: err.Error()})
		}
	}
	return out
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	r := s.Readiness()
	status := http.StatusOK
	if !r.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, r)
}

func (s *Server) index(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/debug/" {
		writeError(w, http.StatusNotFound, "no such handler; /debug/ lists them")
		return
	}
	writeJSON(w, http.StatusOK, s.Handlers())
}

// StatusError is a page's error that has an HTTP status of its own, such as 404 for something that does not exist.
type StatusError struct {
	Code int
	Err  error
}

// Error implements error.
func (e *StatusError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *StatusError) Unwrap() error { return e.Err }

// JSON makes a page of a function, whose result it writes as JSON. An error becomes its text with status 500, or the
// status of a StatusError.
func JSON(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			status := http.StatusInternalServerError
			if own := new(StatusError); errors.As(err, &own) {
				status = own.Code
			}
			writeError(w, status, err.Error())
			return
		}
		writeJSON(w, http.StatusOK, v)
	})
}

func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, map[string]string{"error": message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error": "answer cannot be encoded"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
