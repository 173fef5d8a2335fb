// Package sts is a Security Token Service (RFC 8693) for the workload's Envoy: it exchanges the workload's token for
// one of a cloud. It listens on loopback, admits this agent's user and root only, and keeps tokens until shortly before
// they expire. Package app calls New and Server.Run if there is a port for it. The exchange itself is a Plugin.
package sts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/telemetry"
)

// Identifiers of RFC 8693, sections 2.1 and 3.
const (
	grantTokenExchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeJWT            = "urn:ietf:params:oauth:token-type:jwt"
	typeAccessToken    = "urn:ietf:params:oauth:token-type:access_token"
)

// Path is where tokens are exchanged.
const Path = "/token"

// Bounds of a request in bytes.
const (
	maxBody  = 64 << 10
	maxToken = 16 << 10
	maxParam = 2 << 10
)

// Codes of errors, of RFC 6749, section 5.2, and RFC 8693, section 2.2.2. temporarily_unavailable is that of RFC 6749,
// section 4.1.2.1.
const (
	invalidRequest       = "invalid_request"
	invalidTarget        = "invalid_target"
	unsupportedGrantType = "unsupported_grant_type"
	unavailable          = "temporarily_unavailable"
)

// Request is a request whose parameters have passed the checks.
type Request struct {
	SubjectToken string
	Audience     string
	Scope        string
}

// Token is what a Plugin has got.
type Token struct {
	Value  string
	Expiry time.Time
}

// Refused is the error of a Plugin whose server has refused the token or the target. Any other error means that the
// server cannot be asked now.
type Refused struct{ Reason string }

func (r Refused) Error() string { return r.Reason }

// Plugin exchanges tokens.
type Plugin interface {
	Exchange(ctx context.Context, r Request) (Token, error)
}

// Config of a Server. Port, Plugin and Log are required.
type Config struct {
	// Port of the loopback addresses.
	Port   uint16
	Plugin Plugin
	// UIDs are the users who may connect; this agent's own and root if there are none.
	UIDs       []uint32
	Log        *slog.Logger
	Clock      clock.Clock
	Registerer prometheus.Registerer
}

// Server is the Security Token Service.
type Server struct {
	cfg      Config
	cache    *cache
	lis      []net.Listener
	requests *prometheus.CounterVec
}

// New opens the port on the loopback addresses of the machine.
func New(c Config) (*Server, error) {
	c.Clock = clock.Or(c.Clock)
	if len(c.UIDs) == 0 {
		c.UIDs = []uint32{0, uint32(os.Geteuid())}
	}
	s := &Server{cfg: c, cache: newCache(c.Plugin, c.Clock), requests: telemetry.CounterVec(c.Registerer, prometheus.CounterOpts{
		Name: "fairlead_node_agent_sts_requests_total",
		Help: "Requests to exchange a token, by result: ok, or the code of the error.",
	}, "result", "ok", invalidRequest, invalidTarget, unsupportedGrantType, unavailable)}
	for _, ip := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		lis, err := new(net.ListenConfig).Listen(context.Background(), "tcp", netip.AddrPortFrom(ip, c.Port).String())
		if err != nil && ip.Is6() { // a machine without IPv6
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("--sts-port %d: %w", c.Port, err)
		}
		s.lis = append(s.lis, lis)
	}
	return s, nil
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle(Path, s)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(s.lis))
	for _, lis := range s.lis {
		go func() {
			ended <- ops.HTTP{Listener: userListener{lis, s.cfg.UIDs, s.cfg.Log}, Handler: mux, Log: s.cfg.Log}.Serve(ctx)
		}()
	}
	var errs []error
	for range s.lis {
		errs = append(errs, <-ended)
		cancel()
	}
	return errors.Join(errs...)
}

// fault is an error for the caller.
type fault struct {
	status            int
	code, description string
}

// ServeHTTP implements http.Handler: it answers POST /token.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store") // RFC 6749, section 5.1
	w.Header().Set("Pragma", "no-cache")
	token, failed := s.exchange(r)
	if failed != nil {
		s.requests.WithLabelValues(failed.code).Inc()
		s.cfg.Log.Warn("token not exchanged", "error", failed.code, "description", failed.description)
		if failed.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", http.MethodPost)
		}
		w.WriteHeader(failed.status)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": failed.code, "error_description": failed.description})
		return
	}
	s.requests.WithLabelValues("ok").Inc()
	_ = json.NewEncoder(w).Encode(map[string]any{
		"access_token": token.Value, "issued_token_type": typeAccessToken, "token_type": "Bearer",
		"expires_in": int64(token.Expiry.Sub(s.cfg.Clock.Now()) / time.Second),
	})
}

func (s *Server) exchange(r *http.Request) (Token, *fault) {
	req, failed := parse(r)
	if failed != nil {
		return Token{}, failed
	}
	token, err := s.cache.get(r.Context(), req)
	if refused, ok := errors.AsType[Refused](err); ok {
		return Token{}, &fault{http.StatusBadRequest, invalidTarget, refused.Reason}
	}
	if err != nil {
		return Token{}, &fault{http.StatusServiceUnavailable, unavailable, err.Error()}
	}
	return token, nil
}

// known are the parameters of a request; RFC 8693, section 2.1.
var known = []string{
	"grant_type", "resource", "audience", "scope", "requested_token_type", "subject_token", "subject_token_type", "actor_token",
	"actor_token_type",
}

// parse checks a request.
func parse(r *http.Request) (Request, *fault) {
	bad := func(format string, args ...any) (Request, *fault) {
		return Request{}, &fault{http.StatusBadRequest, invalidRequest, fmt.Sprintf(format, args...)}
	}
	if r.Method != http.MethodPost {
		return Request{}, &fault{http.StatusMethodNotAllowed, invalidRequest, "method " + strconv.Quote(r.Method) + ": want POST"}
	}
	if host, _, err := net.SplitHostPort(r.Host); err != nil || host != "localhost" && host != "127.0.0.1" && host != "::1" {
		return bad("host %q: want localhost", r.Host) // a page in a browser may have any name for this address
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/x-www-form-urlencoded" {
		return bad("content type %q: want application/x-www-form-urlencoded", r.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return bad("the body cannot be read: %v", err)
	}
	if len(body) > maxBody {
		return bad("the body has more than %d bytes", maxBody)
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return bad("the body is not form data: %v", err)
	}
	return check(form)
}

// check checks the parameters of a request.
func check(form url.Values) (Request, *fault) {
	bad := func(format string, args ...any) (Request, *fault) {
		return Request{}, &fault{http.StatusBadRequest, invalidRequest, fmt.Sprintf(format, args...)}
	}
	for name, values := range form {
		limit := maxParam
		if name == "subject_token" || name == "actor_token" {
			limit = maxToken
		}
		switch {
		case !slices.Contains(known, name): // unknown ones are ignored; RFC 6749, section 3.2
			continue
		case len(values) != 1:
			return bad("%s is there %d times", name, len(values))
		case len(values[0]) > limit:
			return bad("%s has more than %d bytes", name, limit)
		}
	}
	if grant := form.Get("grant_type"); grant != grantTokenExchange {
		code := unsupportedGrantType
		if grant == "" {
			code = invalidRequest
		}
		return Request{}, &fault{http.StatusBadRequest, code, fmt.Sprintf("grant_type %q: want %s", grant, grantTokenExchange)}
	}
	if form.Get("subject_token") == "" {
		return bad("subject_token is missing")
	}
	if kind := form.Get("subject_token_type"); kind != typeJWT {
		return bad("subject_token_type %q: want %s", kind, typeJWT)
	}
	if kind := form.Get("requested_token_type"); kind != "" && kind != typeAccessToken {
		return bad("requested_token_type %q: want %s", kind, typeAccessToken)
	}
	if form.Get("actor_token") != "" || form.Get("actor_token_type") != "" {
		return bad("actor_token: tokens are not exchanged for another actor")
	}
	return Request{SubjectToken: form.Get("subject_token"), Audience: form.Get("audience"), Scope: form.Get("scope")}, nil
}
