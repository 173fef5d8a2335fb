// Package ops is the HTTP side of every service: /metrics, /livez and /readyz for anybody, and everything under /debug/, profiles
// included, for authenticated callers.
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
	// maxConnectionsPerAddress is half of it, so that no address makes another's connections go.
	maxConnections           = 256
	maxConnectionsPerAddress = maxConnections / 2
	// maxHeaderBytes has room for a token many times over.
	maxHeaderBytes    = 32 << 10
	maxBodyBytes      = 1 << 20
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	// idleTimeout is longer than the pause between two scrapes of most.
	idleTimeout = 20 * time.Second
	// writeTimeout leaves room for a 60 s profile, anonymousWriteTimeout for what anybody may ask for.
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
	// TLS makes the server speak TLS only. Without it, /debug/ is served on loopback only: a bearer token must not cross a
	// network in the clear.
	TLS      *tls.Config
	Log      *slog.Logger
	Gatherer prometheus.Gatherer
	// Authenticate admits callers to /debug/: usually auth.HTTP. nil admits nobody.
	Authenticate func(*http.Request) error
}

// Handler describes one thing the server answers.
type Handler struct {
	Path  string `json:"path"`
	About string `json:"about"`
	// Anonymous handlers need no authentication.
	Anonymous bool `json:"anonymous"`
}

// Server is an ops server. Ready and Debug may be called until and while it runs.
type Server struct {
	cfg     Config
	mux     *http.ServeMux
	logRate *rate.Limiter

	mu       sync.Mutex
	handlers []Handler
	checks   []check
}

type check struct {
	name string
	run  func() error
}

// New makes a server; Run starts it.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
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

// Ready adds a readiness check. check is called on every request to /readyz, must return at once and gives nil when ready; its
// error is shown to anonymous callers.
func (s *Server) Ready(name string, run func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checks = append(s.checks, check{name, run})
}

// Debug adds an authenticated handler. path must start with /debug/ and be new; as with http.ServeMux, anything else is a
// programming error and panics.
func (s *Server) Debug(path, about string, h http.Handler) {
	if !strings.HasPrefix(path, "/debug/") {
		panic(fmt.Sprintf("ops: debug path %q must start with /debug/", path))
	}
	s.handle(path, about, false, h)
}

// Public adds a handler that answers GET to anybody; for what a probe or a scraper asks. It must not reveal configuration or
// secrets. As with Debug, a path that exists already panics.
func (s *Server) Public(path, about string, h http.Handler) { s.handle(path, about, true, h) }

func (s *Server) handle(path, about string, anonymous bool, h http.Handler) {
	s.mux.Handle(path, h)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers = append(s.handlers, Handler{Path: path, About: about, Anonymous: anonymous})
}

// Handlers lists everything the server answers, by path.
func (s *Server) Handlers() []Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.handlers)
	slices.SortFunc(out, func(a, b Handler) int { return cmp.Compare(a.Path, b.Path) })
	return out
}

// ServeHTTP is the one way in: what is not listed as anonymous is authenticated, unknown paths too.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if s.isAnonymous(r.URL.Path) {
		// Only recorders in tests have no write deadline.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(anonymousWriteTimeout))
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			writeError(w, http.StatusMethodNotAllowed, "use GET")
			return
		}
		s.mux.ServeHTTP(w, r)
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

// onLoopback is about the transport, not about who calls: both ends of a connection to a loopback address are on this machine.
func onLoopback(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	tcp, ok := local.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// logEvicted logs, at a limited rate, that connLimiter closes a connection to make room for another.
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

// Failure is one failed check in the answer of /readyz.
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

// NotFoundError says that there is no such thing as the request asks for.
type NotFoundError struct{ Err error }

// Error implements error.
func (e *NotFoundError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *NotFoundError) Unwrap() error { return e.Err }

// JSON makes a handler of a function; its error becomes a 500 with the error's text, a NotFoundError a 404.
func JSON(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			status := http.StatusInternalServerError
			if missing := new(NotFoundError); errors.As(err, &missing) {
				status = http.StatusNotFound
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
